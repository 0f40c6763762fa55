"""The child process in which llama.cpp quantizes: reads jobs from stdin, tells what happens on stdout, line by line.

A process of its own, because the native call does not return when asked to, and because input that llama.cpp does not
expect ends the process it runs in. The child ends when its stdin does, which is also when the parent is killed: then
it removes the folder it was writing to, so that no half file is left.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.engine import native
from llmcli.engine.quantizer import NativeSettings, Weights, quantize

_STDOUT = 1
# The parent decides when the child ends; a Ctrl-C or a closed terminal is told to the whole group.
_PARENTS_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def main() -> None:
    """Work until stdin ends."""
    for name in _PARENTS_SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    folders: list[str] = []
    threading.Thread(target=_read_jobs, args=(jobs, folders), daemon=True).start()
    native.LOG.listen(lambda level, line: _tell({"log": [level, line]}))
    while True:
        _tell(_done(jobs.get()))


def _read_jobs(jobs: queue.Queue[dict[str, Any]], folders: list[str]) -> None:
    """Runs beside the native call: its end of stdin is what ends the process."""
    for line in sys.stdin:
        job = json.loads(line)
        if folder := job.get("folder"):
            folders.append(folder)
        jobs.put(job)
    _end(folders)


def _end(folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _tell(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the parent is gone, and so will be stdin
        os.write(_STDOUT, json.dumps(message).encode() + b"\n")


def _done(job: dict[str, Any]) -> dict[str, Any]:
    """Carry out one job: {source, target, settings, imatrix, include, exclude, folder}."""
    begun = time.perf_counter()
    try:
        settings = _settings(job["settings"])
        quantize(Path(job["source"]), Path(job["target"]), settings, _weights(job))
    except LlmcliError as error:
        return {"error": error.message}
    except MemoryError:
        return {"error": "not enough memory"}
    return {"done_s": time.perf_counter() - begun}


def _settings(values: dict[str, Any]) -> NativeSettings:
    """JSON has lists where the settings have tuples."""
    pairs = {name: tuple(tuple(pair) for pair in values[name]) for name in ("tensor_types", "overrides")}
    return NativeSettings(**{**values, **pairs, "prune_layers": tuple(values["prune_layers"])})


def _weights(job: dict[str, Any]) -> tuple[Weights, ...]:
    if job.get("imatrix") is None:
        return ()
    return _read(job["imatrix"], tuple(job["include"]), tuple(job["exclude"]))


@functools.lru_cache(maxsize=1)
def _read(path: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> tuple[Weights, ...]:
    """Once for the plan and the runs of all types."""
    from llmcli.quant.weights import read_weights  # with numpy behind it 0.1 s, for those who have a matrix

    return read_weights(Path(path), "", include, exclude).native()
