"""What this machine can do at best: bytes read from memory per second, and 32-bit floating-point operations per second.

Bandwidth: every thread reads its part of a buffer that is larger than the caches and ORs it together, the best of
several rounds. A read-only variant of STREAM (McCalpin, "Memory Bandwidth and Machine Balance in Current High
Performance Computers", 1995): decoding reads weights and writes next to nothing.
Arithmetic: a product of two square matrices of 32-bit floats by numpy's BLAS on all its threads, the best of several
rounds. Kernels for quantized weights multiply bytes, of which a register holds four times as many: a share above 100%
is possible and means that.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from llmcli.base.bounded_file import read_bounded
from llmcli.base.files import atomic_write, make_private_dir
from llmcli.base.settings import Settings
from llmcli.bench.row_check import parse_json
from llmcli.hardware.memory import read_memory

_FOLDER, _FILE = "bench", "machine.json"
_MOST_BYTES = 1 << 16
_BUFFER_BYTES, _LEAST_BYTES = 256 << 20, 16 << 20
_MEMORY_SHARE = 8
_SIDE = 1024
_ROUNDS = 5
_BUDGET_S = 1.5


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured at best. bandwidth_bytes_s: with `threads` threads; ops_s: with all that BLAS uses."""

    threads: int
    bandwidth_bytes_s: float
    ops_s: float


def measure(threads: int) -> Machine:
    """Takes some seconds."""
    return Machine(threads, read_bandwidth(threads), peak_ops())


def read_bandwidth(threads: int, buffer_bytes: int | None = None) -> float:
    """Bytes per second that so many threads read together."""
    import numpy as np

    size = buffer_bytes or max(_LEAST_BYTES, min(_BUFFER_BYTES, read_memory().available_bytes // _MEMORY_SHARE))
    buffer = np.ones(size // 8, np.uint64)  # written once: pages that were never written are all the same one
    parts = np.array_split(buffer, threads)
    return float(buffer.nbytes) / _best_s(lambda: _together(np.bitwise_or.reduce, parts))


def peak_ops(side: int = _SIDE) -> float:
    """Operations per second of a matrix product."""
    import numpy as np

    one = np.ones((side, side), np.float32)
    return 2.0 * side**3 / _best_s(lambda: one @ one)


def _together(function: Callable[[Any], Any], parts: list[Any]) -> None:
    """The function on each part in a thread of its own; numpy computes without the interpreter lock."""
    others = [threading.Thread(target=function, args=(part,)) for part in parts[1:]]
    for thread in others:
        thread.start()
    function(parts[0])
    for thread in others:
        thread.join()


def _best_s(job: Callable[[], Any]) -> float:
    """The shortest of some rounds, within a budget."""
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 2 or (len(times) < 4 * _ROUNDS and time.perf_counter() - started < _BUDGET_S):
        begun = time.perf_counter()
        job()
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)


def remember(machine: Machine, machine_id: str, settings: Settings) -> None:
    """Keep what was measured, for `llmcli doctor --estimate`; where it cannot be kept, it is not."""
    folder = settings.state_dir / _FOLDER
    try:
        make_private_dir(folder)
        data = {"machine": machine_id, **asdict(machine)}
        atomic_write(folder / _FILE, (json.dumps(data) + "\n").encode())
    except OSError:
        return


def recall(machine_id: str, settings: Settings) -> Machine | None:
    """What was measured on this machine before, None where nothing was."""
    try:
        found = parse_json(read_bounded(settings.state_dir / _FOLDER / _FILE, _MOST_BYTES).decode())
        if found["machine"] != machine_id:
            return None
        machine = Machine(int(found["threads"]), float(found["bandwidth_bytes_s"]), float(found["ops_s"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
    return machine if machine.bandwidth_bytes_s > 0 < machine.ops_s else None
