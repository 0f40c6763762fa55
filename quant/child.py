"""The parent's end of the worker: starts it, gives it jobs, hears its log, and ends it for certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from llmcli.base.errors import LlmcliError, ResourceError
from llmcli.base.text import printable
from llmcli.engine.quantizer import NativeSettings

# The parent's import path as arguments: `-c` would put the working folder first, where a json.py may lie.
_CHILD = "import sys\nsys.path[:] = sys.argv[1:]\nfrom llmcli.quant.worker import main\nmain()"
_PATIENCE_S = 5.0
_ERROR_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """One call of llama_model_quantize. `folder` is removed by the child if the parent dies meanwhile."""

    source: Path
    target: Path
    settings: NativeSettings
    imatrix: Path | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    folder: Path | None = None

    def as_line(self) -> bytes:
        """The job as the worker reads it; paths that are not UTF-8 keep their bytes as surrogates."""
        values = {name: value for name, value in asdict(self).items() if name != "settings"}
        shown = {name: os.fspath(value) if isinstance(value, Path) else value for name, value in values.items()}
        return json.dumps({**shown, "settings": asdict(self.settings)}).encode() + b"\n"


class Child:
    """A running worker. Use as a context manager: on any way out the process is gone."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        try:
            self._process = subprocess.Popen(
                command or [sys.executable, "-c", _CHILD, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
            )
        except OSError as error:
            self._stderr.close()
            raise LlmcliError(f"no child process to quantize in: {error.strerror}") from None

    def run(self, job: Job, on_log: Callable[[int, str], None]) -> float:
        """Run one job and return its seconds. Raises LlmcliError with llama.cpp's reason, or how the child died."""
        jobs, messages = self._process.stdin, self._process.stdout
        if jobs is None or messages is None:
            raise self._death()
        try:
            jobs.write(job.as_line())
            jobs.flush()
        except BrokenPipeError:
            raise self._death() from None
        for line in messages:
            message: dict[str, Any] = json.loads(line)
            if "log" in message:
                on_log(*message["log"])
            elif "error" in message:
                raise LlmcliError(str(message["error"]))
            else:
                return float(message["done_s"])
        raise self._death()

    def _death(self) -> LlmcliError:
        """How the child ended, in words."""
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read(_ERROR_BYTES).decode("utf-8", "replace").split("\n")
        said = next((line.strip() for line in lines if "ASSERT" in line or "rror" in line), "")
        detail = f": {printable(said)}" if said else ""
        if code == -signal.SIGBUS:
            return LlmcliError("the model changed or shrank while it was read", hint="wait until it is complete")
        if code == -signal.SIGKILL:
            return ResourceError("the process that quantizes was killed; the system may be out of memory")
        if code < 0:
            return LlmcliError(f"llama.cpp ended in {_signal_name(-code)}{detail}", hint="-v shows its log")
        return LlmcliError(f"the process that quantizes ended with exit code {code}{detail}")

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: nothing more can be done
            self._process.wait(_PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
