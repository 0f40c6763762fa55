"""How fast llmcli is, in ratios measured in one run: against the interpreter, and llama.cpp where it is present.

    .venv/bin/python benchmarks/speed.py [--json] [--check]        or: make bench

Only processes are timed, so what is measured is what a user gets. The two sides of a ratio run in turns, and who goes
first changes every round, so that a machine that warms up or is busy hurts both alike; a result is the median of the
rounds' ratios. llama-bench and llama-completion are used where LLMCLI_PEER_DIR or PATH has them; they are made to load
the very libllama that llmcli uses, where it fits. Python's standard library only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LLMCLI = str(Path(sys.executable).parent / "llmcli")
STARTUP_ROUNDS_FACTOR = 3  # starting a process is short and noisy: more rounds cost little
CONTEXT_TOKENS = 2048
UBATCH_TOKENS = 256  # llmcli's own; llama-bench takes 512 unasked, which is another setting and some 2% faster here
BUSY_LOAD_PER_CPU = 0.25  # other work on this part of the machine spoils the ratios of two programs that use all of it
# Counting goes on for ever at temperature 0, so an answer ends by length; " 1," is a token or two everywhere.
FILLER = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, "


class BenchError(Exception):
    """The measurement cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """One comparison.

    ours, theirs  medians, in `unit`
    ratio         median of ours / theirs per round; low and high are the extremes
    wanted        the bound that docs/benchmarks.md promises: at least for a rate, at most for a time
    """

    what: str
    peer: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    wanted: str
    met: bool
    rounds: int


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: the model as llmcli names it and as a file, and the threads of both sides."""

    model: str
    path: str
    threads: int


# ---- running ---------------------------------------------------------------------------------------------------------


def run(command: Sequence[str], env: dict[str, str] | None = None) -> str:
    """The stdout of a command that must succeed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BenchError(f"{Path(command[0]).name}: {reason}")
    return done.stdout


def wall_s(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Seconds from start to end of the process."""
    started = time.perf_counter()
    run(command, env)
    return time.perf_counter() - started


def alternate(
    rounds: int, ours: Callable[[int], list[float]], theirs: Callable[[int], list[float]]
) -> list[list[tuple[float, float]]]:
    """`rounds` pairs of measurements, who goes first changing every time; one list of pairs per value measured."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            second, first = theirs(number), ours(number)
        else:
            first, second = ours(number), theirs(number)
        pairs.append(list(zip(first, second, strict=True)))
    return [list(column) for column in zip(*pairs, strict=True)]


def summary(what: str, peer: str, unit: str, pairs: list[tuple[float, float]], bound: float | None) -> Result:
    """The medians of a list of pairs; `unit` decides whether more or less is better."""
    ratios = [a / b for a, b in pairs]
    ratio, rate = statistics.median(ratios), unit == "tok/s"
    met = bound is None or (ratio >= bound if rate else ratio <= bound)
    wanted = "" if bound is None else f"{'>=' if rate else '<='} {bound:g}"
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Result(what, peer, unit, ours, theirs, ratio, min(ratios), max(ratios), wanted, met, len(pairs))


# ---- the three comparisons -------------------------------------------------------------------------------------------


def startup(rounds: int) -> list[Result]:
    """`llmcli --version` and `--help` against importing click and against the bare interpreter."""
    results = []
    for flag in ("--version", "--help"):
        for peer, code, bound in (("python -c 'import click'", "import click", 1.5), ("python -c pass", "pass", None)):
            (pairs,) = alternate(
                rounds * STARTUP_ROUNDS_FACTOR,
                lambda _, flag=flag: [wall_s([LLMCLI, flag])],  # type: ignore[misc]
                lambda _, code=code: [wall_s([sys.executable, "-c", code])],  # type: ignore[misc]
            )
            results.append(summary(f"llmcli {flag}", peer, "s", pairs, bound))
    return results


def whole_process(subject: Subject, peer: str, env: dict[str, str], rounds: int) -> Result:
    """`llmcli run -n 1` as a whole against llama-completion doing the same."""
    same = ["-c", str(CONTEXT_TOKENS), "-t", str(subject.threads), "-n", "1", "--temp", "0"]
    ours = [LLMCLI, "run", "-m", subject.path, *same, "--raw", "Once upon a time"]
    theirs = [peer, "-m", subject.path, *same, "-no-cnv", "-p", "Once upon a time"]
    wall_s(ours), wall_s(theirs, env)  # both files in the page cache, the content id remembered
    (pairs,) = alternate(rounds, lambda _: [wall_s(ours)], lambda _: [wall_s(theirs, env)])
    return summary("llmcli run -n 1", "llama-completion -n 1", "s", pairs, 1.0)


def rates(subject: Subject, peer: str, env: dict[str, str], rounds: int, prompt: int, predict: int) -> list[Result]:
    """Prefill and decode rates that `llmcli run --json` reports, against llama-bench at the same KV depth."""
    text = FILLER * (prompt // 36)  # SmolLM2 takes 36 tokens for one filler; others differ, which is read below
    lengths: dict[int, tuple[int, int]] = {}

    def ours(number: int) -> list[float]:
        # A first word of its own: nothing of an earlier run may be restored.
        answer = ask(subject, f"{os.getpid()}-{number}: {text}", predict)
        usage, timings = answer["usage"], answer["timings"]
        if usage.get("restored_tokens") or usage["completion_tokens"] < predict:
            raise BenchError(f"the run restored a prefix or ended early: {usage}")
        lengths[number] = usage["prompt_tokens"], usage["completion_tokens"]
        return [timings["prefill_tok_s"], timings["decode_tok_s"]]

    def theirs(number: int) -> list[float]:
        # Both lengths are the same in every round but for the digits of the round's number.
        n_prompt, n_predict = lengths.get(number) or next(iter(lengths.values()))
        common = [
            peer,
            "-m",
            subject.path,
            "-t",
            str(subject.threads),
            "-ub",
            str(UBATCH_TOKENS),
            "-r",
            "1",
            "-o",
            "json",
        ]
        (prefill,) = json.loads(run([*common, "-p", str(n_prompt), "-n", "0"], env))
        (decode,) = json.loads(run([*common, "-p", "0", "-n", str(n_predict), "-d", str(n_prompt)], env))
        return [prefill["avg_ts"], decode["avg_ts"]]

    prefill, decode = alternate(rounds, ours, theirs)
    n_prompt, n_predict = lengths[0]
    return [
        summary(f"prefill of {n_prompt} tokens", f"llama-bench -p {n_prompt}", "tok/s", prefill, 0.97),
        summary(
            f"decode {n_predict} after {n_prompt}", f"llama-bench -n {n_predict} -d {n_prompt}", "tok/s", decode, 0.97
        ),
    ]


def ask(subject: Subject, prompt: str, predict: int) -> dict[str, Any]:
    """One greedy answer as `llmcli run --json` tells it."""
    command = [LLMCLI, "run", "-m", subject.path or subject.model, "--json", "--raw", "--temp", "0", "-n", str(predict)]
    command += [
        "-c",
        str(CONTEXT_TOKENS),
        "-ub",
        str(UBATCH_TOKENS),
        *(["-t", str(subject.threads)] if subject.threads else []),
        prompt,
    ]
    answer: dict[str, Any] = json.loads(run(command))
    return answer


# ---- peers and report ------------------------------------------------------------------------------------------------


def find_peer(name: str) -> str | None:
    """The program in LLMCLI_PEER_DIR, else on PATH."""
    folder = os.environ.get("LLMCLI_PEER_DIR")
    return (shutil.which(name, path=folder) if folder else None) or shutil.which(name)


def same_library(peer: str) -> tuple[dict[str, str], str]:
    """An environment in which `peer` loads llmcli's own libllama, and a word on whether that worked."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise BenchError("llama-cpp-python is not installed: run `make install`")
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    env = {**os.environ, variable: str(Path(spec.origin).parent / "lib")}
    if subprocess.run([peer, "--help"], env=env, capture_output=True, check=False).returncode == 0:
        return env, "the same libllama"
    return dict(os.environ), "its own libllama"


def table(results: list[Result]) -> str:
    """The results as aligned columns."""
    rows = [("what", "against", "llmcli", "peer", "ratio", "(extremes)", "wanted", "")]
    for r in results:
        digits = 1 if r.unit == "tok/s" else 3
        rows.append(
            (
                r.what,
                r.peer,
                f"{r.ours:.{digits}f} {r.unit}",
                f"{r.theirs:.{digits}f} {r.unit}",
                f"{r.ratio:.3f}",
                f"({r.low:.2f} to {r.high:.2f}, n={r.rounds})",
                r.wanted,
                "" if r.met else "MISSED",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def conditions(subject: Subject | None, peers: dict[str, str]) -> dict[str, Any]:
    """What a reader must know to believe or to repeat the figures."""
    return {
        "llmcli": importlib.metadata.version("llmcli"),
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load_average_1min": os.getloadavg()[0],
        "model": subject.path if subject else None,
        "threads": subject.threads if subject else None,
        "peers": peers,
    }


def measure(options: argparse.Namespace) -> tuple[list[Result], dict[str, Any]]:
    """Everything that was asked for and can be had."""
    results, peers, subject = [], {}, None
    if os.getloadavg()[0] > BUSY_LOAD_PER_CPU * (os.cpu_count() or 1):
        say(f"the machine is busy (load average {os.getloadavg()[0]:.1f}): do not trust what comes")
    if "startup" in options.only:
        say("starting")
        results += startup(options.runs)
    if {"process", "rates"} & set(options.only):
        first = ask(Subject(options.model, "", options.threads), "Once upon a time", 1)
        subject = Subject(options.model, first["model"]["path"], options.threads or first["plan"]["threads"])
        for part, name in (("process", "llama-completion"), ("rates", "llama-bench")):
            if part not in options.only:
                continue
            peer = find_peer(name)
            if peer is None:
                say(f"no {name} in LLMCLI_PEER_DIR or PATH: left out")
                continue
            env, peers[name] = same_library(peer)
            say(f"{part}: {peer}, {peers[name]}")
            if part == "process":
                results.append(whole_process(subject, peer, env, options.runs))
            else:
                results += rates(subject, peer, env, options.runs, options.prompt_tokens, options.predict)
    return results, conditions(subject, peers)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print; 0, 1 when it could not be measured, 5 when --check finds a bound missed."""
    parser = argparse.ArgumentParser(description="Measure llmcli in ratios, in one run, in turns with its peers.")
    parser.add_argument("-m", "--model", default="smollm2", help="a reference that llmcli understands")
    parser.add_argument("-t", "--threads", type=int, default=0, help="for both sides; default: what llmcli chooses")
    parser.add_argument("-r", "--runs", type=int, default=7, help="rounds of each comparison")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="about this many, also the depth of decoding")
    parser.add_argument("-n", "--predict", type=int, default=64)
    parser.add_argument(
        "--only", nargs="+", choices=("startup", "process", "rates"), default=["startup", "process", "rates"]
    )
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    parser.add_argument("--check", action="store_true", help="exit 5 where a bound is missed")
    options = parser.parse_args()
    try:
        results, how = measure(options)
    except BenchError as error:
        say(f"error: {error}")
        return 1
    if options.json:
        print(json.dumps({"conditions": how, "results": [asdict(r) for r in results]}))
    else:
        print(table(results))
        print("\n" + "\n".join(f"{key}: {value}" for key, value in how.items() if value not in (None, {})))
    return 5 if options.check and not all(r.met for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
