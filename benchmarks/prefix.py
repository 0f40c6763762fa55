"""What the prefix store costs and wins, against its targets and beside its peers, in one run.

    .venv/bin/python benchmarks/prefix.py [--quick] [--json] [-m MODEL]        or: make bench

Ratios of two sides come from rounds in which both run in turns; a row is the median of the rounds. `engine` measures in
one process with an open model, `answer` and `document` time whole `llmcli run` processes, `store` is the store alone,
without a model (store.py). Peers are used where present: llama-cpp-python's two caches, and llama.cpp's
llama-completion --prompt-cache where LLMCLI_PEER_DIR or PATH has it. Everything is written into a folder beside the
user's own store, on the same disk, and removed at the end. Nothing is a test: it always exits 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file and not with -m: then this folder stands there
    sys.path.append(str(ROOT))

from benchmarks.prefix_engine import OpenModel, adding, restoring, second_question, sharing  # noqa: E402
from benchmarks.prefix_peers import PeerCaches  # noqa: E402
from benchmarks.prefix_rows import BenchError, Row, in_turns, ratios, say, table  # noqa: E402
from benchmarks.speed import LLMCLI, find_peer, same_library  # noqa: E402
from llmcli.base.errors import LlmcliError  # noqa: E402
from llmcli.base.settings import Settings, load  # noqa: E402
from llmcli.engine.engine import open_engine  # noqa: E402
from llmcli.engine.plan import Request  # noqa: E402
from llmcli.models.progress import silent  # noqa: E402

PARTS = ("engine", "answer", "document", "store")
PREDICT = 64
ROOM_TOKENS = 256  # of the context, behind the long prefix: the question and the answer


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured. Targets hold for the full sizes."""

    prefix_tokens: int = 4096
    rounds: int = 5
    shared_tokens: int = 2048
    prompt_tokens: int = 1000
    answers: int = 11
    blocks: int = 20_000


QUICK = Sizes(prefix_tokens=1024, rounds=3, shared_tokens=1024, prompt_tokens=500, answers=3, blocks=3_000)


class Quiet:
    """The engine's Reporter: notes on stderr, no bars."""

    progress = staticmethod(silent)

    def notify(self, line: str) -> None:
        """One line for the user."""
        say(line)


@dataclass(frozen=True, slots=True)
class Subject:
    """The model and how it is run, the same for every side; texts of its tokens."""

    path: Path
    threads: int
    document: str
    prompt: str
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """What the parts need."""

    options: argparse.Namespace
    sizes: Sizes
    settings: Settings
    folder: Path

    @contextlib.contextmanager
    def open_model(self) -> Iterator[OpenModel]:
        """The model, with room for the long prefix."""
        n_ctx, threads = self.sizes.prefix_tokens + ROOM_TOKENS, self.options.threads or None
        request = Request(n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads)
        with open_engine(self.options.model, request, self.settings, Quiet()) as engine:
            yield OpenModel(engine, self.folder, self.settings)

    def subject(self, model: OpenModel) -> Subject:
        """What the parts that start processes need to know."""
        sizes, engine = self.sizes, model.engine
        return Subject(
            engine.inspected.path,
            engine.plan.n_threads,
            model.text(11, sizes.prefix_tokens),
            model.text(12, sizes.prompt_tokens),
            tuple(model.text(300 + number, ROOM_TOKENS // 4) for number in range(sizes.rounds + 1)),
        )


# ---- in one process --------------------------------------------------------------------------------------------------


def in_one_process(bench: Bench, model: OpenModel) -> Iterator[list[Row]]:
    """Everything that needs one open model."""
    sizes = bench.sizes
    yield restoring(model, sizes.prefix_tokens, sizes.rounds)
    yield adding(model, sizes.prefix_tokens)
    yield sharing(model, sizes.shared_tokens, 64, 8)
    yield sharing(model, sizes.shared_tokens - 48, 64, 8)
    with contextlib.ExitStack() as stack:
        yield second_question(model, _peer_caches(bench, model, stack), sizes.prefix_tokens, sizes.rounds)


def _peer_caches(bench: Bench, model: OpenModel, stack: contextlib.ExitStack) -> PeerCaches | None:
    engine = model.engine
    try:
        peers = PeerCaches(engine.inspected.path, engine.plan.n_ctx, engine.plan.n_threads, bench.folder / "peer")
    except ChildProcessError as error:
        say(f"llama-cpp-python's caches are left out: {error}")
        return None
    return stack.enter_context(peers)


# ---- whole processes -------------------------------------------------------------------------------------------------


def run(command: Sequence[str], env: dict[str, str] | None = None) -> tuple[float, str]:
    """Seconds and stdout of a process that must succeed."""
    begun = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env, check=False)
    taken_s = time.perf_counter() - begun
    if done.returncode:
        reason = (done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BenchError(f"{Path(command[0]).name}: {reason}")
    return taken_s, done.stdout.decode("utf-8", "replace")


def llmcli(subject: Subject, text: Path, n_ctx: int, predict: int, store: Path | None) -> tuple[float, dict[str, Any]]:
    """One greedy answer by a process of its own: its seconds, saving included, and its account."""
    cache = ["--cache", "off"] if store is None else ["--cache", "auto", "--cache-dir", str(store)]
    fixed = ["--raw", "--json", "--temp", "0", "--ignore-eos", "--no-stdin", "-n", str(predict), "-c", str(n_ctx)]
    command = [LLMCLI, "run", "-m", str(subject.path), "-t", str(subject.threads), *fixed, *cache, "-f", str(text)]
    taken_s, stdout = run(command)
    account: dict[str, Any] = json.loads(stdout)
    return taken_s, account


def answers(bench: Bench, subject: Subject) -> list[Row]:
    """A prompt that is new to the store: answer and save everything, against the store switched off.

    The store is empty each time but for what was learnt about the model: its self-test, once per model and build, is
    measured beside it.
    """
    say("answer: the self-test")
    text = bench.folder / "prompt.txt"
    text.write_text(subject.prompt, encoding="utf-8")
    n_ctx = 2 * bench.sizes.prompt_tokens
    tested = bench.folder / "tested"
    _, first = llmcli(subject, text, n_ctx, PREDICT, tested)

    def on(number: int, *, learnt: bool = True) -> float:
        store = bench.folder / f"answer-{number}-{learnt}"
        if learnt:
            for notes in tested.glob("v*/fingerprints"):
                shutil.copytree(notes, store / notes.relative_to(tested))
        taken_s, account = llmcli(subject, text, n_ctx, PREDICT, store)
        same = account["text"] == first["text"] and account["cache"]["written_bytes"] == first["cache"]["written_bytes"]
        if not same or account["usage"]["restored_tokens"]:
            raise BenchError(f"not the first run's answer: {account['usage']}, {account['cache']}")
        shutil.rmtree(store)
        return taken_s

    def off(_: int) -> float:
        taken_s, account = llmcli(subject, text, n_ctx, PREDICT, None)
        if account["text"] != first["text"]:
            raise BenchError("another answer with the store off")
        return taken_s

    say("answer: store on and off, in turns")
    sides: dict[str, Callable[[int], float]] = {"on": on, "off": off}
    found = in_turns(bench.sizes.answers, sides)
    say("answer: with the self-test and without, in turns")
    sides = {"new": lambda number: on(number, learnt=False), "known": on}
    new = in_turns(max(3, bench.sizes.answers // 3), sides)
    usage = first["usage"]
    what = f"answer time on/off, {usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    how = f"processes, {first['cache']['written_bytes'] / 1e6:.0f} MB saved and flushed, same text"
    once = [1000 * (one - other) for one, other in zip(new["new"], new["known"], strict=True)]
    return [
        Row.of(what, ratios(found["on"], found["off"]), "ratio", how, bound=1.03, details=found),
        Row.of("the self-test, once per model and build", once, "ms", "what the first answer of all takes longer"),
    ]


def document(bench: Bench, subject: Subject) -> list[Row]:
    """The second question about a document by a new process: cold, from the store, by llama.cpp's --prompt-cache."""
    say("document: the first question")
    n_ctx, store = bench.sizes.prefix_tokens + ROOM_TOKENS, bench.folder / "document"
    texts = []
    for number, question in enumerate(subject.questions):
        texts.append(bench.folder / f"question-{number}.txt")
        texts[-1].write_text(f"{subject.document}\n\n{question}", encoding="utf-8")
    llmcli(subject, texts[-1], n_ctx, 1, store)
    restored: list[int] = []

    def warm(number: int) -> float:
        taken_s, account = llmcli(subject, texts[number], n_ctx, 1, store)
        restored.append(account["usage"]["restored_tokens"])
        if not restored[-1]:
            raise BenchError(f"nothing was restored: {account['cache']}")
        return taken_s

    sides: dict[str, Callable[[int], float]] = {
        "cold": lambda number: llmcli(subject, texts[number], n_ctx, 1, None)[0],
        "warm": warm,
    }
    if program := find_peer("llama-completion"):
        env, library = same_library(program)
        kept = bench.folder / "prompt-cache.bin"
        same = ["-c", str(n_ctx), "-t", str(subject.threads), "-n", "1", "--temp", "0", "--prompt-cache", str(kept)]
        start = [program, "-m", str(subject.path), "-no-cnv", "--no-display-prompt", *same, "-f"]
        run([*start, str(texts[-1])], env)
        sides["peer"] = lambda number: run([*start, str(texts[number])], env)[0]
    say("document: in turns")
    found = in_turns(bench.sizes.rounds, sides)
    what = f"second question, new process, {min(restored)} tokens restored"
    rows = [
        Row.of(f"{what}: cold by warm", ratios(found["cold"], found["warm"]), "times", "run -n 1, to its end",
               details=found),
        Row.of("… warm", found["warm"], "s", "saving the question's own tokens included"),
        Row.of("… cold", found["cold"], "s", "--cache off"),
    ]  # fmt: skip
    if "peer" in found:
        how = f"llama-completion --prompt-cache, {library}, {kept.stat().st_size / 1e6:.0f} MB written anew"
        rows.append(Row.of("… llama.cpp's by llmcli's warm", ratios(found["peer"], found["warm"]), "times", how))
    return rows


def store_alone(bench: Bench) -> list[Row]:
    """store.py, in a process of its own."""
    say(f"store: filling {bench.sizes.blocks} blocks")
    script, count = ROOT / "benchmarks" / "store.py", f"{bench.sizes.blocks:,} blocks"
    _, stdout = run([sys.executable, str(script), "--blocks", str(bench.sizes.blocks), "--folder", str(bench.folder)])
    found: dict[str, float] = json.loads(stdout)
    return [
        Row.of(f"match 4,196 tokens in {count}", [found["match_diverging_ms"]], "ms", "store.py", bound=5,
               details=found),
        Row.of(f"match 32,768 tokens in {count}", [found["match_128_blocks_ms"]], "ms", "store.py"),
        Row.of("open", [found["open_ms"]], "ms", "store.py, in new processes", bound=10),
        Row.of("memory: largest store against an empty one", [found["memory_growth_kib"]], "KiB",
               "store.py, peak of processes that open and look up", bound=1024),
    ]  # fmt: skip


# ---- all of it -------------------------------------------------------------------------------------------------------


def measure(bench: Bench) -> Iterator[list[Row]]:
    """The rows of the parts that were asked for, as they come."""
    parts = set(bench.options.only)
    subject = None
    if parts - {"store"}:
        with bench.open_model() as model:
            subject = bench.subject(model)
            if "engine" in parts:
                yield from in_one_process(bench, model)
    if subject and "answer" in parts:
        yield answers(bench, subject)
    if subject and "document" in parts:
        yield document(bench, subject)
    if "store" in parts:
        yield store_alone(bench)


def conditions(bench: Bench, loads: list[float], taken_s: float) -> dict[str, Any]:
    """What a reader must know to believe or to repeat the figures."""
    return {
        "llmcli": importlib.metadata.version("llmcli"),
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load_average_1min": f"{loads[0]:.1f} before, {loads[1]:.1f} after",
        "model": bench.options.model,
        "threads": bench.options.threads or "as llmcli chooses",
        "sizes": "quick: targets hold for the full ones" if bench.options.quick else "full",
        "seconds": round(taken_s),
    }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure the prefix store against its targets and beside its peers.")
    parser.add_argument("-m", "--model", default="smollm2", help="a reference that llmcli understands")
    parser.add_argument("-t", "--threads", type=int, default=0, help="for all sides; default: what llmcli chooses")
    parser.add_argument("-r", "--rounds", type=int, default=0, help="of each comparison; default: 5, answers 11")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="two minutes: smaller sizes, fewer rounds")
    parser.add_argument("--json", action="store_true", help="one object instead of the table")
    return parser.parse_args()


def main() -> int:
    """Measure and print what could be measured."""
    options, settings = parse(), load()
    sizes = QUICK if options.quick else Sizes()
    if options.rounds:
        sizes = Sizes(**{**asdict(sizes), "rounds": options.rounds, "answers": options.rounds})
    rows, begun, before = list[Row](), time.perf_counter(), os.getloadavg()[0]
    settings.cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=settings.cache_dir) as folder:
        bench = Bench(options, sizes, settings, Path(folder))
        try:
            for more in measure(bench):
                rows += more
        except (BenchError, LlmcliError, ChildProcessError) as error:
            say(f"error: {error}")
    how = conditions(bench, [before, os.getloadavg()[0]], time.perf_counter() - begun)
    if options.json:
        print(json.dumps({"conditions": how, "rows": [{**asdict(row), "met": row.met} for row in rows]}))
    else:
        print(table(rows))
        print("\n" + "\n".join(f"{key}: {value}" for key, value in how.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
