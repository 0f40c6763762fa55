"""How fast llmcli quantizes, against llama-quantize where it is present, in ratios measured in one run.

    LLMCLI_PEER_DIR=DIR .venv/bin/python benchmarks/quantize.py MODEL [--types Q8_0,Q4_K_M] [--rounds 5] [--check]

MODEL is an F16 or F32 GGUF. Both sides tell how long llama.cpp's quantizing took, and both are timed as a whole; they
run in turns, and who goes first changes every round. llama-quantize is made to load the libllama that llmcli uses.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file and not with -m: then this folder stands there
    sys.path.append(str(ROOT))

from benchmarks.speed import LLMCLI, BenchError, Result, alternate, find_peer, run, summary  # noqa: E402

BOUND = 0.98
_QUANTIZE_MS = re.compile(r"quantize time = +([\d.]+) ms")


def ours(model: str, type_name: str, threads: int, folder: Path) -> list[float]:
    """Rates of llmcli in files per second: of the quantizing alone, and of the whole process."""
    out = folder / "ours.gguf"
    begun = time.perf_counter()
    told = run([LLMCLI, "quantize", "-q", "--json", "--force", "-t", str(threads), model, str(out), type_name])
    whole_s = time.perf_counter() - begun
    return [1 / json.loads(told)["outputs"][0]["quantize_s"], 1 / whole_s]


def theirs(peer: str, env: dict[str, str], model: str, type_name: str, threads: int, folder: Path) -> list[float]:
    """The same of llama-quantize."""
    begun = time.perf_counter()
    told = run([peer, model, str(folder / "theirs.gguf"), type_name, str(threads)], env)
    whole_s = time.perf_counter() - begun
    found = _QUANTIZE_MS.search(told)
    if not found:
        raise BenchError("llama-quantize tells no time")
    return [1000 / float(found[1]), 1 / whole_s]


def _ours(model: str, type_name: str, threads: int, folder: Path, _number: int) -> list[float]:
    return ours(model, type_name, threads, folder)


def _theirs(
    peer: str, env: dict[str, str], model: str, type_name: str, threads: int, folder: Path, _number: int
) -> list[float]:
    return theirs(peer, env, model, type_name, threads, folder)


def library_environment(peer: str) -> dict[str, str]:
    """An environment in which the peer loads llmcli's own libllama, where that fits."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise BenchError("llama-cpp-python is not installed: run `make install`")
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    env = {**os.environ, variable: str(Path(spec.origin).parent / "lib")}
    # llama-quantize ends its help with exit code 1, so that it loads shows in what it prints.
    shown = subprocess.run([peer, "--help"], env=env, capture_output=True, text=True, check=False).stdout
    return env if "usage" in shown else dict(os.environ)


def compare(peer: str, model: str, types: Sequence[str], threads: int, rounds: int) -> list[Result]:
    """Both sides on every type."""
    results = []
    env = library_environment(peer)
    with tempfile.TemporaryDirectory(dir=Path(model).resolve().parent) as name:
        folder = Path(name)
        for kind in types:
            ours(model, kind, threads, folder)  # the file is then in the page cache for both
            mine = functools.partial(_ours, model, kind, threads, folder)
            peers = functools.partial(_theirs, peer, env, model, kind, threads, folder)
            columns = alternate(rounds, mine, peers)
            bounds = (BOUND, None)
            for what, pairs, bound in zip(("quantizing", "whole process"), columns, bounds, strict=True):
                results.append(summary(f"{kind}, {what}", "llama-quantize", "tok/s", pairs, bound))
    return results


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--types", default="Q8_0,Q4_0,Q4_K_M")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bound is missed")
    options = parser.parse_args()
    peer = find_peer("llama-quantize")
    if peer is None:
        print("llama-quantize is not there: set LLMCLI_PEER_DIR", file=sys.stderr)
        return 0
    results = compare(peer, options.model, options.types.split(","), options.threads, options.rounds)
    for r in results:
        print(
            f"{r.what}: {1 / r.ours:.2f} s, {r.peer} {1 / r.theirs:.2f} s, ratio {r.ratio:.3f} "
            f"({r.low:.3f} to {r.high:.3f}) {r.wanted} {'' if r.met else 'MISSED'}"
        )
    return 1 if options.check and not all(r.met for r in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
