"""llama-cpp-python's own caches, beside ours: its high-level class in a child process that answers one line a question.

A child, because it takes the GPU, threads and memory as its own, and because its cache needs packages that llmcli does
not. Run as a script this file is that child.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("LlamaDiskCache", "LlamaRAMCache")


class PeerCaches:
    """The child with an open model."""

    names = NAMES
    how = "llama-cpp-python's class, its defaults"

    def __init__(self, model: Path, n_ctx: int, threads: int, folder: Path) -> None:
        """Raises ChildProcessError with the reason where the child cannot start."""
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.prefix_peers"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._request({"model": str(model), "n_ctx": n_ctx, "threads": threads, "folder": str(folder)})
        except ChildProcessError:
            self.close()
            raise

    def ask(self, name: str, ids: Sequence[int]) -> dict[str, float]:
        """Two tokens of an answer, with this cache: seconds to the first and until all is kept, bytes written."""
        return self._request({"cache": name, "ids": list(ids)})

    def _request(self, request: dict[str, Any]) -> dict[str, float]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise ChildProcessError("llama-cpp-python's caches did not answer")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise ChildProcessError(reply["error"])
        return reply

    def close(self) -> None:
        """End the child."""
        if self._child.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._child.stdout:
            self._child.stdout.close()

    def __enter__(self) -> PeerCaches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer(llama: Any, cache: Any, ids: Sequence[int]) -> dict[str, float]:
    """One prompt in a class that holds nothing of it: as in a process that has just opened the model."""
    from benchmarks.prefix_rows import written_by_process

    llama.reset()
    llama.set_cache(cache)
    written, begun, first_s = written_by_process() or 0, time.perf_counter(), 0.0
    for _ in llama.create_completion(list(ids), max_tokens=2, temperature=0.0, stream=True):
        first_s = first_s or time.perf_counter() - begun
    whole_s = time.perf_counter() - begun
    return {"first_s": first_s, "whole_s": whole_s, "written_bytes": (written_by_process() or 0) - written}


def serve() -> None:
    """Open the model that the first line names, then answer line by line."""
    replies = sys.stdout
    sys.stdout = sys.stderr
    try:
        import llama_cpp

        opening = json.loads(sys.stdin.readline())
        llama = llama_cpp.Llama(
            model_path=opening["model"],
            n_ctx=opening["n_ctx"],
            n_threads=opening["threads"],
            n_threads_batch=opening["threads"],
            verbose=False,
        )
        caches = {
            "LlamaDiskCache": llama_cpp.LlamaDiskCache(opening["folder"]),
            "LlamaRAMCache": llama_cpp.LlamaRAMCache(),
        }
    except (ImportError, ValueError, OSError, AttributeError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        return
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(llama, caches[request["cache"]], request["ids"])), file=replies, flush=True)


if __name__ == "__main__":
    serve()
