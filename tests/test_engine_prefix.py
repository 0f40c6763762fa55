"""The one promise: what comes out of the store gives the logits of a cold run, to the last bit, or is not used."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.cache_store.policy import Policy
from llmcli.engine.context import Rope
from llmcli.engine.engine import Engine
from llmcli.engine.prefix import CacheOptions, CacheReport, open_prefix_cache
from tests.fixtures.engines import open_tiny_engine

KINDS = ["plain", "iswa", "hybrid", "mamba"]
CONTEXT = {"n_ctx": 2048}


def tokens(count: int, *, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(64), k=count)


P1 = [*tokens(500), *tokens(40, seed=2)]
P2 = [*tokens(500), *tokens(33, seed=3)]
P3 = tokens(250)
BOUNDARIES = (100, 500)


@pytest.fixture
def options(tmp_path: Path) -> CacheOptions:
    return CacheOptions(folder=tmp_path / "store", policy=Policy(max_bytes=1 << 30, min_free_bytes=0))


def cold(engine: Engine, ids: Sequence[int]) -> bytes:
    engine.session.cut(0)
    engine.session.prefill(ids)
    logits = bytes(engine.context.logits())
    engine.session.cut(0)
    return logits


def warm(engine: Engine, ids: Sequence[int], options: CacheOptions) -> tuple[bytes, CacheReport]:
    """The logits of `ids` as a run with the store gets them, and what the store reports."""
    warnings: list[str] = []
    engine.session.cut(0)
    with open_prefix_cache(engine, options, load(), warnings.append) as prefix:
        assert prefix is not None, warnings
        prefix.restore(ids, BOUNDARIES)
        restored = len(engine.session.tokens)
        assert restored == prefix.report.restored_tokens
        engine.session.prefill(ids[restored:], cuts=prefix.cuts, on_progress=prefix.advance)
        prefix.prefilled()
        logits = bytes(engine.context.logits())
        prefix.finish(1000.0, len(ids) - restored)
        return logits, prefix.report


@contextlib.contextmanager
def tiny(path: Path, **changes: Any) -> Iterator[Engine]:
    with open_tiny_engine(path, **{**CONTEXT, **changes}) as engine:
        yield engine


VARIANTS = [
    pytest.param(kind, kv_type, flash, id=f"{kind}-{kv_type}-{flash}")
    for kind in KINDS
    for kv_type in ("f16", "q8_0", "q4_0")
    for flash in ("on", "off")
    if kv_type == "f16" or (flash == "on" and kind != "mamba")
]


@pytest.mark.parametrize(("kind", "kv_type", "flash"), VARIANTS)
def test_four_prompts_give_the_logits_of_a_cold_run(
    kind: str, kv_type: str, flash: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    changes = {"type_k": kv_type, "type_v": kv_type, "flash_attn": flash}
    restored = []
    for ids in (P1, P2, P3, P1):
        with tiny(random_model(kind), **changes) as engine:
            expected = cold(engine, ids)
        with tiny(random_model(kind), **changes) as engine:
            logits, report = warm(engine, ids, options)
        assert logits == expected
        restored.append(report.restored_tokens)
    # P2 shares 500 tokens with P1; recurrent memory goes back to the snapshot before the boundary at 500.
    rewinds = kind in ("plain", "iswa")
    assert restored == [0, 448, 192 if rewinds else 64, 512]


@pytest.mark.parametrize("kind", KINDS)
def test_another_context_size_and_thread_count_make_no_difference(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, P2)
        warm(engine, P1, options)
    with tiny(random_model(kind), n_ctx=1024, n_threads=2, n_threads_batch=2) as engine:
        logits, report = warm(engine, P2, options)
    assert (logits == expected, report.restored_tokens) == (True, 448)


def test_an_entry_survives_being_read(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        first = [warm(engine, P1, options) for _ in range(3)]
    assert {report.restored_tokens for _, report in first} == {512}
    assert len({logits for logits, _ in first}) == 1
    assert [report.written_bytes for _, report in first] == [0, 0, 0]


def test_what_is_not_tested_is_not_trusted(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """A first run that was stopped before its self-test: the second computes and tests, the third restores."""
    with tiny(random_model("plain")) as engine:
        with open_prefix_cache(engine, options, load(), print) as prefix:
            assert prefix is not None
            prefix.restore(P1)
            engine.session.prefill(P1, on_progress=prefix.advance)
            prefix.prefilled()
            engine.stop.set()
            prefix.finish(None, 0)
        engine.stop.clear()
        _, second = warm(engine, P1, options)
        _, third = warm(engine, P1, options)
    assert (second.restored_tokens, second.miss_reason) == (0, "nothing_stored")
    assert third.restored_tokens == 512


def test_max_reuses_to_the_last_token(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    most = replace(options, mode="max")
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, most)
        _, report = warm(engine, P1, most)
        _, exact = warm(engine, P1, options)
    assert report.restored_tokens == len(P1) - 1
    assert exact.restored_tokens == 512


def test_readonly_writes_nothing(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        assert options.folder is not None
        before = {path: path.stat().st_mtime_ns for path in options.folder.rglob("*") if path.suffix == ".kv"}
        _, report = warm(engine, P2, replace(options, mode="readonly"))
        after = {path: path.stat().st_mtime_ns for path in options.folder.rglob("*") if path.suffix == ".kv"}
    assert report.restored_tokens == 448
    assert before == after


def test_off_opens_nothing(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        with open_prefix_cache(engine, replace(options, mode="off"), load(), print) as prefix:
            assert prefix is None
    assert options.folder is not None
    assert not options.folder.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"content_id": "c" * 64}, "other_model"),
        ({"type_k": "q8_0", "type_v": "q8_0"}, "other_kv_type"),
        ({"rope": Rope(freq_base=5000.0)}, "other_settings"),
        ({"flash_attn": "off"}, "other_settings"),
    ],
)
def test_what_belongs_to_something_else_is_a_miss_with_its_reason(
    changes: dict[str, Any], reason: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
    with tiny(random_model("plain"), **changes) as engine:
        expected = cold(engine, P1)
        logits, report = warm(engine, P1, options)
    assert (report.restored_tokens, report.miss_reason, logits == expected) == (0, reason, True)


def test_another_salt_finds_nothing(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, replace(options, salt="one"))
        _, other = warm(engine, P1, replace(options, salt="two"))
        _, same = warm(engine, P1, replace(options, salt="one"))
    assert (other.restored_tokens, same.restored_tokens) == (0, 512)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_block_gives_the_cold_answer(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """Any byte of any block: what lies before it may still be restored, and it is never used itself."""
    draw = random.Random(kind)
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        assert options.folder is not None
        for _ in range(12):
            files = sorted(options.folder.rglob("*.kv"))
            victim = draw.choice(files)
            data = bytearray(victim.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            os.chmod(victim, 0o600)
            victim.write_bytes(data)
            logits, report = warm(engine, P1, options)
            assert logits == expected
            assert report.restored_tokens <= 512
        assert warm(engine, P1, options)[1].restored_tokens == 512  # everything was saved again on the way


def test_a_miss_says_where_the_prompt_leaves_the_nearest_stored_one(
    scripted_model: Callable[..., Path], options: CacheOptions
) -> None:
    with tiny(scripted_model(["Hello"])) as engine:
        tokenizer = engine.model.tokenizer
        one = tokenizer.tokenize("date: 2026-11-28\n" + "x" * 300, parse_special=False)
        two = tokenizer.tokenize("date: 2026-11-29\n" + "x" * 300, parse_special=False)
        warm(engine, one, options)
        _, report = warm(engine, two, options)
    assert (report.restored_tokens, report.miss_reason) == (0, "nothing_stored")
    assert report.first_difference is not None
    assert "28" in report.first_difference["stored"]
    assert "29" in report.first_difference["prompt"]


@pytest.mark.real_model
@pytest.mark.parametrize("model", ["smollm2_path", "gemma3_path"])
def test_real_models_answer_as_cold(model: str, request: pytest.FixtureRequest, options: CacheOptions) -> None:
    path: Path = request.getfixturevalue(model)
    with tiny(path, n_ctx=768) as engine:
        tokenizer = engine.model.tokenizer
        document = tokenizer.tokenize(" ".join(f"Line {i} of {i * i} words." for i in range(40)), parse_special=False)
        first = [*document[:300], *tokenizer.tokenize("\nWho wrote it?", parse_special=False)]
        second = [*document[:300], *tokenizer.tokenize("\nHow long is it, and why?", parse_special=False)]
        expected = cold(engine, second)
        warm(engine, first, options)
        logits, report = warm(engine, second, options)
    assert (logits == expected, report.restored_tokens) == (True, 256)
