"""What coming back to a conversation costs, against computing it anew, in one run.

    .venv/bin/python benchmarks/chat.py [--quick] [--json] [-m MODEL] [-t THREADS]

A session of some 4,000 tokens is made, turn by turn, as a chat that is left at its end. Then, in turns: a chat that
comes back to it with the prefix store, and one that computes it all (--cache off). Each asks the same new question;
what is held against each other is the time from the question to the first token and the time of the cold prefill. The
answers must be the same, and the same as that of the chat that was never left. Everything is written into a folder
beside the user's own store, and removed at the end. Nothing is a test: it always exits 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file and not with -m: then this folder stands there
    sys.path.append(str(ROOT))

from benchmarks.prefix_rows import BenchError, Row, in_turns, ratios, say, table  # noqa: E402
from llmcli.base.errors import LlmcliError  # noqa: E402
from llmcli.base.settings import Settings, load  # noqa: E402
from llmcli.engine.chat_open import open_conversation  # noqa: E402
from llmcli.engine.chat_reply import Reply  # noqa: E402
from llmcli.engine.conversation import ChatRequest, Conversation  # noqa: E402
from llmcli.engine.plan import Request  # noqa: E402
from llmcli.engine.prefix_report import CacheOptions  # noqa: E402
from llmcli.engine.sampling import Sampling  # noqa: E402
from llmcli.models.progress import silent  # noqa: E402
from llmcli.sessions.library import Library  # noqa: E402

ANSWER_TOKENS = 32
WORDS = (
    *("river", "bridge", "stone", "water", "light", "morning", "paper", "window", "garden", "engine", "letter"),
    *("story", "market", "winter", "summer", "island", "mountain", "music", "kitchen", "table", "doctor", "teacher"),
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured, and with what. session_tokens: how long the conversation is made."""

    settings: Settings
    folder: Path
    model: str
    threads: int | None
    session_tokens: int

    @property
    def library(self) -> Library:
        """Sessions of this run alone."""
        return Library(self.folder / "sessions")

    @contextlib.contextmanager
    def chat(self, session: str, *, stored: bool) -> Iterator[Conversation]:
        """The session, with the store or without."""
        request = ChatRequest(
            reference=self.model,
            plan=Request(n_ctx=self.session_tokens + 1024, n_threads=self.threads, n_threads_batch=self.threads),
            sampling=Sampling(temp=0.0, seed=1),
            max_tokens=ANSWER_TOKENS,
            cache=CacheOptions("auto" if stored else "off", self.folder / "store"),
        )
        with (
            self.library.open(session, create=True) as log,
            open_conversation(request, self.settings, Quiet(), log=log) as conversation,
        ):
            yield conversation


class Quiet:
    """The engine's Reporter: notes on stderr, no bars."""

    progress = staticmethod(silent)

    def notify(self, line: str) -> None:
        """One line for the user."""
        say(line)


@dataclass(frozen=True, slots=True)
class Measured:
    """One question to a conversation that was opened for it."""

    text: str
    ttft_s: float
    prefill_s: float
    restored_tokens: int
    prompt_tokens: int


def question(number: int) -> str:
    """A question of its own."""
    return f"Question {number}: which of these words is the best one, and why?"


def make(subject: Subject) -> str:
    """The conversation, in full; the answer that a chat which is never left gives to the first new question."""
    rng = random.Random(7)
    with subject.chat("base", stored=True) as conversation:
        while not conversation.history.turns or len(conversation.history.turns[-1].ids) < subject.session_tokens:
            words = " ".join(rng.choices(WORDS, k=250))
            read(conversation.say(f"Here are some words: {words}. Say something about them."))
            conversation.settle()
        subject.library.copy(conversation.log, "live")
        reply = read(conversation.say(question(0)))
        return reply.text


def read(reply: Reply) -> Reply:
    """The answer, to its end."""
    for _ in reply.parts():
        pass
    return reply


def ask(subject: Subject, number: int, *, stored: bool) -> Measured:
    """Come back to the conversation and ask."""
    session = f"round-{number}-{stored}"
    subject.library.fork("live", session)
    with subject.chat(session, stored=stored) as conversation:
        reply = read(conversation.say(question(number)))
        timings = reply.timings
        if timings.ttft_s is None or bool(reply.restored_tokens) is not stored:
            raise BenchError(f"nothing restored, or no token: {reply.stats_line()}")
        return Measured(reply.text, timings.ttft_s, timings.prefill_s, reply.restored_tokens, reply.prompt_tokens)


def measure(subject: Subject, rounds: int) -> list[Row]:
    """Both sides in turns."""
    say(f"making a conversation of {subject.session_tokens:,} tokens")
    live = make(subject)
    say("coming back, with the store and without, in turns")
    found = in_turns(
        rounds,
        {
            "back": lambda number: ask(subject, number, stored=True),
            "cold": lambda number: ask(subject, number, stored=False),
        },
    )
    back, cold = found["back"], found["cold"]
    same = all(one.text == other.text for one, other in zip(back, cold, strict=True)) and live == back[0].text
    what = f"first token after a break, {back[0].prompt_tokens:,} tokens"
    share = ratios([one.ttft_s for one in back], [one.prefill_s for one in cold])
    return [
        Row.of(what + ", by cold prefill", share, "share", f"{min(one.restored_tokens for one in back):,} restored",
               bound=0.05, details={side: [asdict(one) for one in values] for side, values in found.items()}),
        Row.of("… first token", [1000 * one.ttft_s for one in back], "ms", "from the question, restore included"),
        Row.of("… cold prefill", [one.prefill_s for one in cold], "s", "--cache off"),
        Row.of("answers: back, cold, never left the same", [float(same)], "yes", "greedy", bound=1, at_least=True),
    ]  # fmt: skip


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure what coming back to a conversation costs.")
    parser.add_argument("-m", "--model", default="smollm2", help="a reference that llmcli understands")
    parser.add_argument("-t", "--threads", type=int, default=None, help="for all sides; default: what llmcli chooses")
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a conversation of 1,000 tokens: the bound is for 4,000")
    parser.add_argument("--json", action="store_true", help="the rows as an array in place of the table")
    return parser.parse_args()


def main() -> int:
    """Measure and print."""
    options, settings, rows = parse(), load(), list[Row]()
    settings.cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=settings.cache_dir) as folder:
        subject = Subject(settings, Path(folder), options.model, options.threads, 1000 if options.quick else 4000)
        try:
            rows = measure(subject, options.rounds)
        except (BenchError, LlmcliError) as error:
            say(f"error: {error}")
    if options.json:
        print(json.dumps([{**asdict(row), "met": row.met} for row in rows]))
    else:
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
