"""Does `llmcli bench` measure what llama-bench measures: both programs in turns, the same file, sizes and settings.

    .venv/bin/python benchmarks/bench_parity.py [-m MODEL] [--runs 9] [--json] [--check]

A round starts each program once (one sample after its warm-up); who goes first changes every round. llama-bench comes
from LLMCLI_PEER_DIR or PATH and loads the very libllama that llmcli uses, where it fits. The result is the median of
the rounds' ratios, wanted within 3%. Python's standard library only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.speed import LLMCLI, BenchError, alternate, find_peer, run, same_library, say

BOUND = 0.03


@dataclass(frozen=True, slots=True)
class Parity:
    """One test: medians in tokens per second, and the median, lowest and highest of the rounds' ratios."""

    test: str
    ours_tok_s: float
    theirs_tok_s: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def met(self) -> bool:
        """Whether the two agree."""
        return abs(self.ratio - 1) <= BOUND


def compare(options: argparse.Namespace) -> list[Parity]:
    """Run both programs in turns."""
    peer = find_peer("llama-bench")
    if peer is None:
        raise BenchError("no llama-bench in LLMCLI_PEER_DIR or PATH")
    env, how = same_library(peer)
    say(f"{peer}, {how}")
    same = ["-m", options.model, "-t", str(options.threads), "-ub", str(options.ubatch), "-r", "1"]
    same += ["-p", str(options.prompt), "-n", str(options.predict), "-d", options.depth]
    ours = [LLMCLI, "bench", *same, "-o", "json"]
    theirs = [peer, *same, "-o", "json"]
    names = [row["test"] for row in json.loads(run(ours))]
    columns = alternate(
        options.runs,
        lambda _: [row["samples_ts"][0] for row in json.loads(run(ours))],
        lambda _: [row["samples_ts"][0] for row in json.loads(run(theirs, env))],
    )
    return [parity(name, pairs) for name, pairs in zip(names, columns, strict=True)]


def parity(name: str, pairs: list[tuple[float, float]]) -> Parity:
    """The figures of one test."""
    ratios = [mine / other for mine, other in pairs]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Parity(name, ours, theirs, statistics.median(ratios), min(ratios), max(ratios), len(pairs))


def main() -> int:
    """Measure and print; 0, 1 when it could not be measured, 5 when --check finds more than 3% between them."""
    parser = argparse.ArgumentParser(description="Compare llmcli bench with llama-bench, in turns.")
    parser.add_argument("-m", "--model", required=True, help="a GGUF file")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("-ub", "--ubatch", type=int, default=256)
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--predict", type=int, default=64)
    parser.add_argument("-d", "--depth", default="0", help="a list, as both programs take it")
    parser.add_argument("--runs", type=int, default=9, help="rounds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    try:
        found = compare(options)
    except BenchError as error:
        say(f"error: {error}")
        return 1
    if options.json:
        print(json.dumps([asdict(one) for one in found]))
    else:
        for one in found:
            mark = "" if one.met else "  MISSED"
            print(
                f"{one.test:<16} llmcli {one.ours_tok_s:8.2f}  llama-bench {one.theirs_tok_s:8.2f} tok/s  "
                f"ratio {one.ratio:.3f} ({one.low:.3f} to {one.high:.3f}, n={one.rounds}){mark}"
            )
    return 5 if options.check and not all(one.met for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
