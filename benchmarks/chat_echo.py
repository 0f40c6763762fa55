"""How soon a key shows in `llmcli chat`: while nothing happens, against while an answer streams. Ratios of one run.

    .venv/bin/python benchmarks/chat_echo.py [-m smollm2] [--json] [--check]

A chat runs in a pseudo-terminal. Keys are pressed one at a time, at uneven intervals, and timed from the write of the
key to the read of its glyph; the glyphs are Greek letters, which the answers do not have. Rounds with an idle chat and
rounds with an answer on its way take turns; each gives the median and the 95th percentile of its keys, and the result
is the median of the rounds. Python's standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import pty
import random
import select
import signal
import statistics
import struct
import sys
import termios
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LLMCLI = str(Path(sys.executable).parent / "llmcli")
GLYPHS = "αβγδεζηθικλμνξοπρστυφχψω"
QUESTION = "Write a very long story about a ship and its crew. Do not stop before they are home."
RATIO_WANTED = 3.0  # an echo that takes three times as long while an answer streams would be felt from 30 ms on
PATIENCE_S = 60.0
ENTER, CTRL_C, CTRL_D, CTRL_U = b"\r", b"\x03", b"\x04", b"\x15"


class BenchError(Exception):
    """The measurement cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: medians over the rounds, in milliseconds."""

    median_ms: float
    p95_ms: float
    worst_ms: float
    keys: int


@dataclass(frozen=True, slots=True)
class Result:
    """Both sides, and how they compare."""

    idle: Side
    streaming: Side
    median_ratio: float
    p95_ratio: float
    rounds: int


class Chat:
    """`llmcli chat` in a pseudo-terminal of its own."""

    def __init__(self, options: Sequence[str]) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(LLMCLI, [LLMCLI, "chat", *options])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.tail = b""

    def reads(self, timeout_s: float) -> bytes:
        """What comes within this time, at once when something does; b"" otherwise."""
        if not select.select([self.fd], [], [], timeout_s)[0]:
            return b""
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        if not data:
            raise BenchError(f"the chat ended: {self.tail[-300:]!r}")
        self.tail = (self.tail + data)[-65536:]
        return data

    def waits_for(self, wanted: bytes) -> None:
        """Until this was written."""
        deadline, seen = time.monotonic() + PATIENCE_S, b""
        while wanted not in seen:
            if time.monotonic() > deadline:
                raise BenchError(f"{wanted!r} did not come: {seen[-300:]!r}")
            seen += self.reads(0.5)

    def quiet(self, seconds: float) -> bytes:
        """What comes in this time."""
        end, seen = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            seen += self.reads(left)
        return seen

    def press(self, glyph: str) -> float:
        """Seconds from the key to its echo."""
        wanted, seen = glyph.encode(), b""
        begun = time.perf_counter()
        os.write(self.fd, wanted)
        while wanted not in seen:
            seen += self.reads(PATIENCE_S)
            if time.perf_counter() - begun > PATIENCE_S:
                raise BenchError(f"the key {glyph} was never shown")
        return time.perf_counter() - begun

    def close(self) -> None:
        """Leave, or make it."""
        os.write(self.fd, CTRL_C + CTRL_U + CTRL_D)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
            select.select([self.fd], [], [], 0.1)
            try:
                os.read(self.fd, 65536)
            except OSError:
                continue
        else:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def measure(options: argparse.Namespace) -> Result:
    """Rounds of both sides in turns."""
    threads = ["-t", str(options.threads)] if options.threads else []
    chat = Chat(["--no-save", "--cache", "off", "-m", options.model, "-c", "8192", *threads])
    chance = random.Random(7)
    try:
        chat.waits_for(b"a message, or /help")
        keys(chat, options.keys, chance)  # imports, caches
        rounds: dict[str, list[list[float]]] = {"idle": [], "streaming": []}
        for number in range(options.rounds):
            order = ("idle", "streaming") if number % 2 else ("streaming", "idle")
            for side in order:
                rounds[side].append(
                    during_an_answer(chat, options, chance) if side == "streaming" else keys(chat, options.keys, chance)
                )
        idle, streaming = (summed(rounds[side]) for side in ("idle", "streaming"))
        pairs = list(zip(rounds["idle"], rounds["streaming"], strict=True))
        return Result(
            idle,
            streaming,
            statistics.median(statistics.median(b) / statistics.median(a) for a, b in pairs),
            statistics.median(p95(b) / p95(a) for a, b in pairs),
            len(pairs),
        )
    finally:
        chat.close()


def keys(chat: Chat, count: int, chance: random.Random) -> list[float]:
    """The echo times of so many keys; the line is emptied before a letter would come a second time."""
    times = list[float]()
    while len(times) < count:
        os.write(chat.fd, CTRL_U)
        chat.quiet(0.15)
        for glyph in GLYPHS[: count - len(times)]:
            chat.quiet(chance.uniform(0.02, 0.12))
            times.append(chat.press(glyph))
    os.write(chat.fd, CTRL_U)
    chat.quiet(0.15)
    return times


def during_an_answer(chat: Chat, options: argparse.Namespace, chance: random.Random) -> list[float]:
    """The same while an answer streams; asks again where it ended too early."""
    for _ in range(5):
        os.write(chat.fd, b"/clear" + ENTER)
        chat.quiet(0.5)
        os.write(chat.fd, QUESTION.encode() + ENTER)
        chat.waits_for(b"answering")
        times = keys(chat, options.keys, chance)
        chat.quiet(0.2)
        os.write(chat.fd, CTRL_C)
        stopped = b"[stopped]" in chat.quiet(1.0)
        if stopped:  # so it was streaming to the last key
            return times
        os.write(chat.fd, b"x" + CTRL_U)  # Ctrl-C at the prompt counts: take it back
        chat.quiet(0.2)
    raise BenchError("the answers end before the keys are pressed: fewer --keys, or another model")


def summed(rounds: list[list[float]]) -> Side:
    """The medians over the rounds."""
    every = [seconds for one in rounds for seconds in one]
    return Side(
        statistics.median(statistics.median(one) for one in rounds) * 1000,
        statistics.median(p95(one) for one in rounds) * 1000,
        max(every) * 1000,
        len(every),
    )


def p95(times: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(times, n=20)[-1]


def main() -> int:
    """Measure and print; 0, 1 when it could not be measured, 5 when --check finds the bound missed."""
    parser = argparse.ArgumentParser(description="Time from key press to echo in llmcli chat, idle and streaming.")
    parser.add_argument("-m", "--model", default="smollm2", help="a reference that llmcli understands")
    parser.add_argument("-t", "--threads", type=int, default=0, help="default: what llmcli chooses")
    parser.add_argument("-r", "--rounds", type=int, default=7)
    parser.add_argument("-k", "--keys", type=int, default=48, help="keys per round and side")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    parser.add_argument("--check", action="store_true", help=f"exit 5 where the ratio is above {RATIO_WANTED:g}")
    options = parser.parse_args()
    try:
        result = measure(options)
    except BenchError as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    met = result.median_ratio <= RATIO_WANTED
    how = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load_average_1min": os.getloadavg()[0],
        "model": options.model,
        "threads": options.threads or "default",
    }
    if options.json:
        print(json.dumps({"conditions": how, "result": asdict(result), "met": met}))
    else:
        for name, side in (("idle", result.idle), ("streaming", result.streaming)):
            print(
                f"{name:<10} median {side.median_ms:6.2f} ms   p95 {side.p95_ms:6.2f} ms   "
                f"worst {side.worst_ms:6.1f} ms   {side.keys} keys"
            )
        print(
            f"ratio      median {result.median_ratio:6.2f}      p95 {result.p95_ratio:6.2f}      {result.rounds} rounds"
        )
        print("\n" + "\n".join(f"{key}: {value}" for key, value in how.items()))
    return 5 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
