"""The one promise: what comes out of the store gives the logits of a cold run, to the last bit, or is not used."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.engine.context import Rope
from llmcli.engine.lora import Lora
from llmcli.engine.prefix import open_prefix_cache
from llmcli.engine.prefix_report import CacheOptions
from tests.fixtures.lora import write_key_lora
from tests.fixtures.random_models import HEAD_DIM, KV_HEADS, WIDTH
from tests.prefix_case import KINDS, P1, P2, P3, block_files, cold, store_options, tiny, tokens, warm  # noqa: F401

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
    off = replace(options, mode="off")
    with tiny(random_model("plain")) as engine, open_prefix_cache(engine, off, load(), print) as prefix:
        assert prefix is None
    assert options.folder is not None
    assert not options.folder.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"content_id": "c" * 64}, "other_model"),
        ({"build": "c" * 64}, "other_build"),
        ({"type_k": "q8_0", "type_v": "q8_0"}, "other_kv_type"),
        ({"rope": Rope(freq_base=5000.0)}, "other_settings"),
        ({"rope": Rope(freq_scale=0.5)}, "other_settings"),
        ({"rope": Rope(scaling="yarn", freq_scale=0.5, yarn_orig_ctx=1024)}, "other_settings"),
        ({"n_ubatch": 100}, "other_settings"),
        ({"n_ubatch": 128}, "other_settings"),
        ({"n_ubatch": 512}, "other_settings"),
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


def test_a_lora_of_another_scale_is_another_model(
    random_model: Callable[[str], Path], options: CacheOptions, tmp_path: Path
) -> None:
    """Keys of every layer differ by it, so blocks of one must never be restored under the other."""
    lora = write_key_lora(tmp_path / "l.gguf", width=WIDTH, keys=KV_HEADS * HEAD_DIM, layers=2)
    other = write_key_lora(tmp_path / "m.gguf", width=WIDTH, keys=KV_HEADS * HEAD_DIM, layers=1)
    variants: list[list[Lora]] = [
        [], [Lora(lora)], [Lora(lora, 0.5)], [Lora(lora, 0.50000001)], [Lora(other)], [Lora(lora), Lora(other)]
    ]  # fmt: skip
    seen = []
    for loras in variants:
        with tiny(random_model("plain"), loras=loras) as engine:
            expected = cold(engine, P1)
            first, second = warm(engine, P1, options), warm(engine, P1, options)
        assert (first[0], second[0]) == (expected, expected)
        assert (first[1].restored_tokens, second[1].restored_tokens) == (0, 512)
        assert first[1].miss_reason == ("other_settings" if loras else "nothing_stored")
        seen.append(expected)
    assert len({*seen}) == 5  # 0.5 and 0.50000001 are the same float32; all others give other answers


def test_reuse_to_the_last_token_leaves_nothing_that_passes_for_exact(
    random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """A run that goes on off the grid computes other bits: what it saves is not for runs that want exact ones."""
    long = [*P1[:530], *tokens(400, seed=5)]
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, long)
        warm(engine, P1, replace(options, mode="max"))
        _, most = warm(engine, long, replace(options, mode="max"))
        exact, after = warm(engine, long, options)
        again, last = warm(engine, long, options)
    assert (most.restored_tokens, after.restored_tokens, last.restored_tokens) == (530, 512, 896)
    assert (exact, again) == (expected, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_block_gives_the_cold_answer(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """Any byte of any block: what lies before it may still be restored, and it is never used itself."""
    draw = random.Random(kind)
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        for _ in range(12):
            victim = draw.choice(block_files(options))
            data = bytearray(victim.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            os.chmod(victim, 0o600)
            victim.write_bytes(data)
            warnings: list[str] = []
            logits, report = warm(engine, P1, options, warnings)
            assert logits == expected
            assert report.restored_tokens <= 512
            assert len(warnings) <= 1
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
    assert (report.restored_tokens, report.miss_reason) == (0, "shares_too_little")
    assert report.miss_detail == f"{len('date:2026-11-2') + 3} tokens with what is stored, the minimum is 64"
    assert report.first_difference is not None
    assert "28" in report.first_difference["stored"]
    assert "29" in report.first_difference["prompt"]


@pytest.mark.parametrize(
    ("shared", "least", "detail"),
    [
        (25, 64, "25 tokens with what is stored, the minimum is 64"),
        (120, 100, "120 tokens with what is stored, of which 64 may be restored, the minimum is 100"),
        (60, 10, "60 tokens with what is stored, of which 0 may be restored, the minimum is 64"),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "max"])
def test_too_little_in_common_is_one_reason_in_every_mode(
    mode: Any, shared: int, least: int, detail: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    options = replace(options, policy=replace(options.policy, min_tokens=least))
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        _, report = warm(engine, [*P1[:shared], *tokens(200, seed=9)], replace(options, mode=mode))
    if mode == "max" and shared >= least:
        assert (report.restored_tokens, report.miss_reason) == (shared, None)
    else:
        assert (report.restored_tokens, report.miss_reason, report.miss_detail) == (0, "shares_too_little", detail)


def test_a_prompt_of_the_least_length_is_told_with_its_own_length(
    random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model("plain")) as engine:
        _, report = warm(engine, P1[:64], options)
    told = "64 tokens, the last of which is always computed, the minimum is 64"
    assert (report.miss_reason, report.miss_detail) == ("too_short", told)


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
