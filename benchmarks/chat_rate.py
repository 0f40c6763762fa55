"""How fast an answer comes in `llmcli chat` at a terminal, drawn as Markdown, against `llmcli run` into a pipe.

    .venv/bin/python benchmarks/chat_rate.py [-m smollm2] [-t 2] [--json] [--check]

The same greedy answer of so many tokens from both, a process each, in turns; the rates are those that llmcli tells,
and the result is the median of the rounds' ratios. Python's standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file and not with -m: then this folder stands there
    sys.path.append(str(ROOT))

from benchmarks.chat_echo import CTRL_D, ENTER, LLMCLI, QUESTION, BenchError, Chat  # noqa: E402

RATIO_WANTED = 0.95
ENDED = re.compile(rb"([0-9,]+) tokens in ([0-9.]+) s")


def run_rate(options: argparse.Namespace, common: list[str]) -> float:
    """Tokens per second of `llmcli run`."""
    command = [LLMCLI, "run", *common, "--json", QUESTION]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        raise BenchError(done.stderr.decode(errors="replace").strip())
    answer = json.loads(done.stdout)
    if answer["usage"]["completion_tokens"] != options.tokens:
        raise BenchError("the answer of run has another length")
    return float(answer["timings"]["decode_tok_s"])


def chat_rate(options: argparse.Namespace, common: list[str]) -> float:
    """The same of `llmcli chat`."""
    chat = Chat([*common, "--no-save", "--stats"])
    try:
        chat.waits_for(b"a message, or /help")
        chat.quiet(0.5)  # what is done once, behind the first prompt
        os.write(chat.fd, QUESTION.encode() + ENTER)
        chat.waits_for(b"ended by")
        found = ENDED.search(chat.tail)
        if not found or int(found[1].replace(b",", b"")) != options.tokens:
            raise BenchError(f"no answer of a second or more and of that length: {chat.tail[-300:]!r}")
        return float(options.tokens - 1) / float(found[2])  # its own rate has no decimals
    finally:
        os.write(chat.fd, CTRL_D)
        chat.close()


def main() -> int:
    """Measure and print; 0, 1 when it could not be measured, 5 when --check finds the bound missed."""
    parser = argparse.ArgumentParser(description="Decode rate of llmcli chat at a terminal against llmcli run.")
    parser.add_argument("-m", "--model", default="smollm2", help="a reference that llmcli understands")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--rounds", type=int, default=7)
    parser.add_argument("-n", "--tokens", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="one object instead of lines")
    parser.add_argument("--check", action="store_true", help=f"exit 5 where the ratio is below {RATIO_WANTED:g}")
    options = parser.parse_args()
    common = ["-m", options.model, "-t", str(options.threads), "-n", str(options.tokens), "-c", "4096"]
    common += ["--temp", "0", "--ignore-eos", "--cache", "off"]
    rounds: list[dict[str, float]] = []
    try:
        for number in range(options.rounds):
            sides = [("run", run_rate), ("chat", chat_rate)]
            rounds.append({name: rate(options, common) for name, rate in sides[:: 1 if number % 2 else -1]})
    except BenchError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    ratios = [one["chat"] / one["run"] for one in rounds]
    ratio = statistics.median(ratios)
    how = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}"
    if options.json:
        print(json.dumps({"conditions": how, "rounds": rounds, "ratio": ratio, "met": ratio >= RATIO_WANTED}))
    else:
        for name in ("run", "chat"):
            print(f"{name:<5} {statistics.median(one[name] for one in rounds):8.1f} tok/s")
        print(f"ratio {ratio:8.3f}, {min(ratios):.3f} to {max(ratios):.3f} in {len(rounds)} rounds\n{how}")
    return 5 if options.check and ratio < RATIO_WANTED else 0


if __name__ == "__main__":
    sys.exit(main())
