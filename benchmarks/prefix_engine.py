"""The prefix store in one process with an open model: restoring, writing, sharing, the second question.

Nothing is taken apart: every figure comes from the calls that `llmcli run` makes, in their order (engine.prefix).
"""

from __future__ import annotations

import ctypes
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.prefix_peers import PeerCaches
from benchmarks.prefix_rows import BenchError, Row, disk_bytes, in_turns, ratios, say, written_by_process
from llmcli.base.settings import Settings
from llmcli.engine.engine import Engine
from llmcli.engine.prefix import open_prefix_cache
from llmcli.engine.prefix_report import CacheOptions, CacheReport

GRID_TOKENS = 64
LEARNT = "learnt"
# Words of one or two tokens in most vocabularies: a text of any length, and another one for every seed.
WORDS = (
    "river", "stone", "winter", "market", "paper", "window", "letter", "garden", "bridge", "music", "doctor", "school",
    "summer", "engine", "island", "planet", "mirror", "kitchen", "castle", "forest", "number", "valley", "harbor",
    "ticket", "camera", "button", "circle", "shadow", "silver", "copper", "velvet", "marble",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt on its way to its first token.

    first_s          from the tokens to the logits of the first one, opening the store included
    whole_s          until everything is saved
    stored_tokens    how many tokens of it are stored then
    written_bytes    given to the system to write in that time, by the whole process; None where it does not tell
    """

    report: CacheReport
    first_s: float
    whole_s: float
    stored_tokens: int
    written_bytes: int | None
    logits: bytes


class OpenModel:
    """An engine and folders for its stores."""

    def __init__(self, engine: Engine, root: Path, settings: Settings) -> None:
        self.engine, self.root, self._settings = engine, root, settings
        self.kv_token_bytes = 0

    def tokens(self, seed: int, count: int) -> list[int]:
        """So many tokens of a text that is another one for every seed."""
        pick = random.Random(seed)
        text = " ".join(pick.choice(WORDS) for _ in range(count + 1))  # a word is at least one token
        return self.engine.model.tokenizer.tokenize(text, parse_special=False)[:count]

    def text(self, seed: int, count: int) -> str:
        """The text of as many tokens, more or less: tokenized again it may be a few others."""
        tokenizer = self.engine.model.tokenizer
        return b"".join(tokenizer.piece(token) for token in self.tokens(seed, count)).decode("utf-8", "replace")

    def store(self, name: str) -> Path:
        """The folder of a store; a new one is empty but for what `learn` learnt."""
        folder, learnt = self.root / name, self.root / LEARNT
        if not folder.exists():
            for notes in learnt.glob("v*/fingerprints"):
                shutil.copytree(notes, folder / notes.relative_to(learnt))
        return folder

    def learn(self) -> None:
        """Let the store test itself with this model, as the first run of all does."""
        self.ask(self.tokens(0, 5 * GRID_TOKENS), LEARNT)

    def ask(self, ids: Sequence[int], store: str, *, boundary: int = 0, save: bool = True) -> Asked:
        """What `run` does with a prompt up to the first token, and then with the store.

        boundary   where the part ends that others share; only recurrent memory needs to be told
        save       False: leave when the logits are there, nothing of the prompt is kept
        """
        session = self.engine.session
        session.cut(0)
        options = CacheOptions(mode="auto" if save else "readonly", folder=self.store(store))
        written, begun = written_by_process(), time.perf_counter()
        with open_prefix_cache(self.engine, options, self._settings, say) as prefix:
            if prefix is None:
                raise BenchError("the KV state of this model cannot be stored")
            self.kv_token_bytes = prefix.structure.token_bytes()
            prefix.restore(ids, (boundary,) if boundary and prefix.wants_boundaries else ())
            rest, computing = ids[len(session.tokens) :], time.perf_counter()
            session.prefill(rest, cuts=prefix.cuts, on_progress=prefix.advance)
            prefix.prefilled()
            now = time.perf_counter()
            first_s, rate = now - begun, len(rest) / (now - computing)
            logits = bytes(self.engine.context.logits())
            stored = prefix.saved()
            prefix.finish(rate, len(rest))
        wrote = None if written is None else (written_by_process() or 0) - written
        end = stored[-1].end_tokens if stored else 0
        return Asked(prefix.report, first_s, time.perf_counter() - begun, end, wrote, logits)

    def cold_s(self, ids: Sequence[int]) -> float:
        """Seconds to compute the tokens without a store."""
        self.engine.session.cut(0)
        begun = time.perf_counter()
        self.engine.session.prefill(ids)
        return time.perf_counter() - begun

    def restored(self, ids: Sequence[int], store: str) -> tuple[float, CacheReport]:
        """Open the store and restore what it has of the prompt: the seconds of both, and the report."""
        self.engine.session.cut(0)
        options = CacheOptions(folder=self.store(store))
        begun = time.perf_counter()
        with open_prefix_cache(self.engine, options, self._settings, say) as prefix:
            if prefix is None:
                raise BenchError("the KV state of this model cannot be stored")
            prefix.restore(ids)
            return time.perf_counter() - begun, prefix.report


def restoring(model: OpenModel, prefix_tokens: int, rounds: int) -> list[Row]:
    """Save a long prompt into a new store, then restore it against computing it and against copying its bytes."""
    model.learn()
    say(f"restore: computing and saving {prefix_tokens} tokens")
    ids, store = model.tokens(1, prefix_tokens + GRID_TOKENS), "restore"
    first = model.ask(ids[:prefix_tokens], store, boundary=prefix_tokens)
    rows = _written(model, first, prefix_tokens, f"writing: {prefix_tokens} new tokens")
    _, report = model.restored(ids, store)
    nbytes = report.read_bytes
    if report.restored_tokens != prefix_tokens:
        raise BenchError(f"{report.as_line(len(ids))}: nothing to measure")
    source, target = bytearray(b"\x5a") * nbytes, bytearray(b"\xa5") * nbytes
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in (target, source)]

    def copy_s(_: int) -> float:
        begun = time.perf_counter()
        ctypes.memmove(addresses[0], addresses[1], nbytes)
        return time.perf_counter() - begun

    say("restore: in turns with computing it, then with memcpy")

    def restore_s(_: int) -> float:
        return model.restored(ids, store)[0]

    long = in_turns(rounds, {"cold": lambda _: model.cold_s(ids[:prefix_tokens]), "restore": restore_s})
    short = in_turns(4 * rounds, {"copy": copy_s, "restore": restore_s})
    shares, by_memcpy = ratios(long["restore"], long["cold"]), ratios(short["copy"], short["restore"])
    details = {"bytes": nbytes, "cold_s": long["cold"], "restore_s": long["restore"], "copy_s": short["copy"]}
    again = model.ask(ids, store, save=False)
    model.cold_s(ids)
    equal = again.logits == bytes(model.engine.context.logits())
    how = f"{nbytes / 1e6:.1f} MB: open, look up, read, verify, load"
    return [
        Row.of(f"restore {prefix_tokens} tokens: share of computing them", shares, "share", how, bound=0.02,
               details=details),
        Row.of("restore: bytes/s by memcpy's", by_memcpy, "ratio", "memmove of as many bytes, buffers touched before",
               bound=0.5, at_least=True),
        Row.of("restore", [1000 * s for s in short["restore"]], "ms", f"computing: {min(long['cold']):.2f} s at best"),
        Row.of("after it: logits equal to a cold run's", [float(equal)], "yes", f"{GRID_TOKENS} tokens behind it",
               bound=1, at_least=True),
        *rows,
    ]  # fmt: skip


def adding(model: OpenModel, prefix_tokens: int) -> list[Row]:
    """64 tokens more behind a long prompt that is stored; most of that is what `restoring` stored."""
    length = prefix_tokens - 96  # 4,000 of 4,096
    own = model.tokens(2, 160 + GRID_TOKENS)
    prompt = [*model.tokens(1, length - 160), *own]
    before = model.ask(prompt[:-GRID_TOKENS], "restore")
    after = model.ask(prompt, "restore")
    return _written(model, after, after.stored_tokens - before.stored_tokens, f"writing: {length} tokens, then 64 more")


def _written(model: OpenModel, asked: Asked, new_tokens: int, what: str) -> list[Row]:
    kv_bytes = new_tokens * model.kv_token_bytes
    if not new_tokens or not kv_bytes or asked.report.written_bytes < kv_bytes:
        raise BenchError(f"{what}: only {asked.report.written_bytes} bytes for {new_tokens} tokens were kept")
    ratio = asked.report.written_bytes / kv_bytes
    rows = [Row.of(what, [ratio], "ratio", f"block files by KV bytes of {new_tokens} tokens", bound=1.02)]
    if asked.written_bytes is not None:
        all_of_it = asked.written_bytes / kv_bytes
        rows.append(Row.of(f"{what}: all", [all_of_it], "ratio", "every write of the process: index, log, notes"))
    return rows


def sharing(model: OpenModel, shared_tokens: int, own_tokens: int, count: int) -> list[Row]:
    """Prompts with one beginning, each saved; bytes on disk by the bytes of the tokens that differ from each other."""
    say(f"sharing: {count} prompts of {shared_tokens} + {own_tokens} tokens")
    store = f"sharing-{shared_tokens}"
    beginning = model.tokens(3, shared_tokens)
    for number in range(count):
        asked = model.ask([*beginning, *model.tokens(100 + number, own_tokens)], store, boundary=shared_tokens)
        if asked.stored_tokens < (shared_tokens + own_tokens) // GRID_TOKENS * GRID_TOKENS:
            raise BenchError(f"only {asked.stored_tokens} tokens of a prompt were kept")
    distinct = shared_tokens + count * own_tokens
    ratio = disk_bytes(model.root / store) / (distinct * model.kv_token_bytes)
    aligned = shared_tokens % 256 == 0
    return [
        Row.of(
            f"disk: {count} prompts, {shared_tokens} shared + {own_tokens} own",
            [ratio],
            "ratio",
            f"whole store by KV bytes of {distinct} tokens" + ("" if aligned else "; they part inside a block"),
            bound=1.10 if aligned else None,
        )
    ]


def second_question(model: OpenModel, peers: PeerCaches | None, prefix_tokens: int, rounds: int) -> list[Row]:
    """One document, another question every round, the model open all the time: until the first token's logits."""
    document = model.tokens(1, prefix_tokens)
    prompts = [[*document, *model.tokens(200 + number, GRID_TOKENS)] for number in range(rounds + 1)]
    model.ask(prompts[-1], "restore", boundary=prefix_tokens)
    sides = {"llmcli": lambda number: _as_figures(model.ask(prompts[number], "restore", boundary=prefix_tokens))}
    if peers:
        for name in peers.names:
            say(f"second question: {name} computes and saves")
            peers.ask(name, prompts[-1])
            sides[name] = lambda number, name=name: peers.ask(name, prompts[number])  # type: ignore[misc]
    say("second question: in turns")
    found = in_turns(rounds, sides)
    ours, rows = found.pop("llmcli"), list[Row]()
    firsts = [1000 * one["first_s"] for one in ours]
    rows.append(Row.of("second question, model open: first token", firsts, "ms", f"{prefix_tokens} + 64 tokens"))
    rows.append(Row.of("… written for it", [one["written_bytes"] / 1e6 for one in ours], "MB", "every write"))
    for name, theirs in found.items():
        by_ours = ratios([one["first_s"] for one in theirs], [one["first_s"] for one in ours])
        rows.append(Row.of(f"… {name}: first token by llmcli's", by_ours, "times", peers.how if peers else ""))
        wholes = ratios([one["whole_s"] for one in theirs], [one["whole_s"] for one in ours])
        rows.append(Row.of(f"… {name}: saved, too, by llmcli's", wholes, "times", "until everything is kept"))
        rows.append(Row.of(f"… {name}: written", [one["written_bytes"] / 1e6 for one in theirs], "MB", "every write"))
    return rows


def _as_figures(asked: Asked) -> dict[str, float]:
    return {"first_s": asked.first_s, "whole_s": asked.whole_s, "written_bytes": float(asked.written_bytes or 0)}
