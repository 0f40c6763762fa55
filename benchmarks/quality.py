"""How fast `llmcli imatrix` and `llmcli quality` are, against a prefill of the same model and llama.cpp's own tools.

    python benchmarks/quality.py MODEL [-t N] [--windows N] [--rounds N] [--peers FOLDER]

For each: tokens a second over the windows of a text, the opening of the model left out. The yardstick is the prefill
rate: the same windows through the same context, with the logits of the last token alone, as of an answer's prompt. What
a tool must compute beyond that is told beside it: quality needs the logits of half of the tokens, an importance matrix
of none. All is measured in turn, so that a slow minute hits all alike; the figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from llmcli.base.settings import load
from llmcli.engine.evaluator import Evaluator, Measured, open_evaluator
from llmcli.engine.plan import Request
from llmcli.models.progress import ProgressFactory, silent
from llmcli.quant.corpus import CALIBRATION, Windows, cut, shipped
from llmcli.quant.imatrix_collect import Collector
from llmcli.quant.quality_compare import scored
from llmcli.quant.quality_score import Scorer

_WINDOW = 512
_BOUND = 0.9


class _Quiet:
    """Nobody is told anything."""

    def notify(self, line: str) -> None:
        """Drop it."""

    @property
    def progress(self) -> ProgressFactory:
        """Silence."""
        return silent


def main() -> int:
    """Measure, print a table, exit 1 where a bound is missed."""
    args = _arguments()
    settings, text = load(), shipped(CALIBRATION)
    collector = Collector()
    request = Request(n_ctx=_WINDOW, n_threads=args.threads)

    def opening(watched: Collector | None = None) -> AbstractContextManager[Measured]:
        watcher = watched.watcher if watched else None
        return open_evaluator(args.model, request, settings, _Quiet(), piece_tokens=_WINDOW, watcher=watcher)

    with opening() as plain, opening(collector) as watched:
        windows = cut(text, plain.model.tokenizer, _WINDOW, most=args.windows)
        scorer = Scorer(plain.model.tokenizer.n_vocab)
        tasks: dict[str, Callable[[], None]] = {
            "prefill": lambda: _prefill(plain.evaluator, windows, 1),
            "prefill with half of the logits": lambda: _prefill(plain.evaluator, windows, _WINDOW // 2),
            "imatrix": lambda: _imatrix(watched.evaluator, windows, collector),
            "quality, perplexity": lambda: _perplexity(plain.evaluator, windows, scorer),
            "quality, base and model": lambda: _divergence(plain.evaluator, windows, scorer),
        }
        rates = _in_turn(tasks, args.rounds, windows.count * _WINDOW)
    rates["quality, base and model"] = [2 * rate for rate in rates["quality, base and model"]]  # both are read
    if args.peers:
        rates |= _peers(args, text.text, windows.count)
    return _print(rates)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("-t", "--threads", type=int, default=None)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", help="the folder of llama-imatrix and llama-perplexity, to be measured too")
    return parser.parse_args()


def _in_turn(tasks: dict[str, Callable[[], None]], rounds: int, n_tokens: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            begun = time.perf_counter()
            task()
            if number:  # the first round warms up
                rates[name].append(n_tokens / (time.perf_counter() - begun))
    return rates


def _prefill(evaluator: Evaluator, windows: Windows, wanted: int) -> None:
    for window in windows:
        evaluator.clear()
        evaluator.decode(window, 0, wanted=wanted)


def _imatrix(evaluator: Evaluator, windows: Windows, collector: Collector) -> None:
    for window in windows:
        evaluator.clear()
        collector.begin()
        evaluator.decode(window, 0, wanted=len(window))
        collector.take()


def _perplexity(evaluator: Evaluator, windows: Windows, scorer: Scorer) -> None:
    for window in windows:
        for logits, following in scored(evaluator, window):
            scorer.nll(logits, following)


def _divergence(evaluator: Evaluator, windows: Windows, scorer: Scorer) -> None:
    """The same model twice: what a comparison with a base costs."""
    for window in windows:
        base = [scorer.encode(logits, following) for logits, following in scored(evaluator, window)]
        for (logits, following), piece in zip(scored(evaluator, window), base, strict=True):
            scorer.score(logits, following, piece)


def _peers(args: argparse.Namespace, text: str, count: int) -> dict[str, list[float]]:
    """llama.cpp's own tools on the same windows, by their own time for one pass: the opening is left out there too."""
    found: dict[str, list[float]] = {}
    threads = ["-t", str(args.threads)] if args.threads else []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text, encoding="utf-8")
        common = ["-m", args.model, "-f", str(file), "-c", str(_WINDOW), "-b", str(_WINDOW), *threads]
        for tool, more in (("llama-imatrix", ["-o", f"{folder}/out.gguf"]), ("llama-perplexity", [])):
            command = [str(Path(args.peers) / tool), *common, "--chunks", str(count), *more]
            found[tool] = [_peer_rate(command) for _ in range(args.rounds)]
    return found


def _peer_rate(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passed = re.search(r"([0-9.]+) seconds per pass", done.stdout + done.stderr)
    if not passed:
        raise SystemExit(f"{command[0]} tells no time for a pass")
    return _WINDOW / float(passed[1])


def _print(rates: dict[str, list[float]]) -> int:
    plain = statistics.median(rates["prefill"])
    half = statistics.median(rates["prefill with half of the logits"])
    print(f"{'':<32} {'tok/s':>8} {'of prefill':>11} {'with half of the logits':>24}")
    missed = False
    for name, values in rates.items():
        rate = statistics.median(values)
        bound = {"imatrix": plain, "quality, perplexity": half, "quality, base and model": half}.get(name)
        missed |= bound is not None and rate < _BOUND * bound
        print(f"{name:<32} {rate:>8.1f} {rate / plain:>11.3f} {rate / half:>24.3f}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
