"""Measures a pull from loopback against curl's download of the same file: whole processes, in turns, in one run.

    python benchmarks/pull.py [--mebibytes 1024] [--rounds 7] [--folder DIR]

Both write to the same disk, and neither waits until the bytes are on it. The pull also computes the sha256, reads the
header and gives the file its name; curl does none of that. Before each side memory is used and given back: a virtual
machine hands what lies free for two seconds to its host, and to get a GiB of it again costs up to a second, which else
falls on one side or the other. Prints one JSON object; a ratio of 1 means as fast as curl.
`transfer` leaves out what a pull costs before its first byte (the start of the process and the list of files),
measured with --dry-run. Not a test: machines differ.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import http.server
import json
import multiprocessing
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SETTLE_S = 1.0  # a file system that discards what was removed is busy with that for a while
_PAGE_BYTES = 4096
REPO, FILE, COMMIT = "bench/model-GGUF", "model-Q8_0.gguf", "a" * 40


def serve(path: Path, digest: str, ready: Any) -> None:
    """A hub with one file, sent by the kernel: the server must not be what is measured."""
    size = path.stat().st_size
    lfs = {"sha256": digest, "size": size}
    listing = {"id": REPO, "sha": COMMIT, "siblings": [{"rfilename": FILE, "size": size, "lfs": lfs}]}

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a short answer waits 40 ms for the acknowledgement of its headers

        def log_message(self, *_: object) -> None:
            """Silence."""

        def do_GET(self) -> None:
            with contextlib.suppress(ConnectionError), open(path, "rb") as source:
                if self.path.startswith("/api/"):
                    body = json.dumps(listing).encode()
                    self.answer(200, len(body))
                    self.wfile.write(body)
                    return
                first, _, last = self.headers.get("Range", "bytes=0-")[6:].partition("-")
                start, end = int(first), int(last) + 1 if last else size
                self.answer(206 if "Range" in self.headers else 200, end - start, f"bytes {start}-{end - 1}/{size}")
                self.connection.sendfile(source, start, end - start)

        def answer(self, status: int, length: int, span: str | None = None) -> None:
            self.send_response(status)
            self.send_header("ETag", f'"{digest}"')
            self.send_header("Content-Length", str(length))
            if span and status == 206:
                self.send_header("Content-Range", span)
            self.end_headers()
            self.wfile.flush()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    ready.put(server.server_address[1])
    server.serve_forever()


def write_model(path: Path, mebibytes: int) -> str:
    """A sound GGUF file of random bytes; its sha256."""
    digest = hashlib.sha256()
    with open(path, "wb") as out:
        for piece in (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), *(os.urandom(1 << 20) for _ in range(mebibytes))):
            digest.update(piece)
            out.write(piece)
    return digest.hexdigest()


def use_memory(mebibytes: int) -> None:
    """Touch and give back four times what the file takes, or half of what there is, in a process that then ends."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    nbytes = min(4 * mebibytes << 20, there // 2 // _PAGE_BYTES * _PAGE_BYTES)
    touch = f"import mmap\nm = mmap.mmap(-1, {nbytes})\nm[::{_PAGE_BYTES}] = bytes({nbytes // _PAGE_BYTES})"
    subprocess.run([sys.executable, "-c", touch], check=True)


def seconds(command: list[str], env: dict[str, str]) -> float:
    """The wall time of a process that must succeed."""
    begun = time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def measure(folder: Path, mebibytes: int, rounds: int) -> dict[str, Any]:
    """Both sides in turns; who is first changes every round, and nothing of a round is left for the next."""
    served = folder / "served.gguf"
    digest = write_model(served, mebibytes)
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    server = context.Process(target=serve, args=(served, digest, ready), daemon=True)
    server.start()
    endpoint = f"http://127.0.0.1:{ready.get()}"
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(folder / "hub"),
        "LLMCLI_HOME": str(folder / "home"),
    }
    env.pop("HF_HUB_OFFLINE", None)
    pull = [str(Path(sys.executable).with_name("llmcli")), "pull", REPO]
    target = folder / "curl.gguf"
    curl = ["curl", "--silent", "--fail", "--output", str(target), f"{endpoint}/{REPO}/resolve/{COMMIT}/{FILE}"]
    sides: dict[str, Callable[[], float]] = {"curl": lambda: seconds(curl, env), "pull": lambda: seconds(pull, env)}
    times: dict[str, list[float]] = {"curl": [], "pull": [], "start": []}
    try:
        for number in range(rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                use_memory(mebibytes)
                times[name].append(sides[name]())
                shutil.rmtree(folder / "hub", ignore_errors=True)
                target.unlink(missing_ok=True)
                os.sync()
                time.sleep(_SETTLE_S)
            times["start"].append(seconds([*pull, "--dry-run"], env))
    finally:
        server.terminate()
        server.join()
    return report(times, mebibytes)


def report(times: dict[str, list[float]], mebibytes: int) -> dict[str, Any]:
    """Medians, and the ratios of the rates."""
    median = {name: statistics.median(values) for name, values in times.items()}
    transfer = median["pull"] - median["start"]
    return {
        "mebibytes": mebibytes,
        "curl_mib_s": round(mebibytes / median["curl"], 1),
        "pull_mib_s": round(mebibytes / median["pull"], 1),
        "start_s": round(median["start"], 3),
        "ratio_whole_process": round(median["curl"] / median["pull"], 3),
        "ratio_transfer": round(median["curl"] / transfer, 3),
        "curl_s": [round(value, 3) for value in times["curl"]],
        "pull_s": [round(value, 3) for value in times["pull"]],
    }


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description="pull against curl, from loopback")
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="llmcli-pull-") as name:
        print(json.dumps(measure(Path(name), arguments.mebibytes, arguments.rounds)))


if __name__ == "__main__":
    main()
