"""Saving beside the answer: it waits for nothing, it is waited for only so long, and it never saves what is not so."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.cache_store import block_file, save
from llmcli.cache_store.store import PrefixStore
from llmcli.engine import prefix_save
from llmcli.engine.engine import Engine
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.prefix_save import Span, plan_spans
from tests.prefix_case import (  # noqa: F401
    KINDS,
    P1,
    P2,
    block_files,
    cold,
    opened,
    prefill,
    store_options,
    temp_files,
    tiny,
    tokens,
    warm,
)

LONG = tokens(1500, seed=8)


class StuckDisk:
    """Every put waits until `goes_on` is set; `began` and `ended` count them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = threading.Event()
        self.began = self.ended = 0
        real = PrefixStore.put

        def put(*args: Any, **named: Any) -> Any:
            self.began += 1
            assert self.goes_on.wait(60)
            stored = real(*args, **named)
            self.ended += 1
            return stored

        monkeypatch.setattr(PrefixStore, "put", put)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[StuckDisk]:
    stuck = StuckDisk(monkeypatch)
    yield stuck
    stuck.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "prefix store":
            thread.join(10)


@pytest.mark.parametrize(
    ("start", "end", "states", "exact_end", "expected"),
    [
        (0, 540, (), 540, [Span(0, 256, False), Span(256, 512, False), Span(512, 540, False)]),
        (0, 300, (64,), 300, [Span(0, 64, True), Span(64, 256, False), Span(256, 300, False)]),
        (448, 600, (), 576, [Span(448, 512, False), Span(512, 576, False), Span(576, 600, False, exact=False)]),
        (512, 600, (), 512, [Span(512, 600, False, exact=False)]),
    ],
)
def test_spans_end_at_multiples_of_256_at_states_and_where_exactness_ends(
    start: int, end: int, states: tuple[int, ...], exact_end: int, expected: list[Span]
) -> None:
    assert plan_spans(start, end, states, exact_end=exact_end) == expected


@pytest.mark.parametrize(
    ("start", "parting", "expected"),
    [
        (256, 448, [Span(256, 448, False), Span(448, 512, False), Span(512, 576, False)]),
        (256, 256, [Span(256, 512, False), Span(512, 576, False)]),
        (256, 0, [Span(256, 512, False), Span(512, 576, False)]),
    ],
)
def test_a_span_ends_where_the_prompt_parts_from_a_stored_one(start: int, parting: int, expected: list[Span]) -> None:
    assert plan_spans(start, 576, (), exact_end=576, parting=parting) == expected


@pytest.mark.parametrize("kind", ["plain", "iswa"])
def test_prompts_that_part_inside_a_block_share_what_lies_before(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """Of 500 shared tokens the second prompt saves [256, 448) once more, and the others nothing."""
    prompts = [[*tokens(500), *tokens(80, seed=20 + number)] for number in range(5)]
    with tiny(random_model(kind)) as engine:
        written = []
        for ids in prompts:
            logits, report = warm(engine, ids, options)
            assert logits == cold(engine, ids)
            written.append(report.written_bytes)
        with opened(engine, options) as prefix:
            own = sum(prefix.structure.part_bytes(name, 64) for name in prefix.structure.part_names)
        # [448, 512) and [512, 576), which are all that is left; the headers are what may come on top
        assert [number // own for number in written] == [9, 5, 2, 2, 2]
        for ids in prompts:
            logits, report = warm(engine, ids, options)
            assert (logits == cold(engine, ids), report.written_bytes) == (True, 0)


def test_a_prompt_that_ends_inside_a_block_does_not_part_from_it(
    random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)  # after the self-test the last block of a prompt is kept, too
        warm(engine, LONG[:512], options)
        before = block_files(options)
        _, report = warm(engine, LONG[:512], options)
        assert (report.restored_tokens, report.written_bytes, block_files(options)) == (448, 0, before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_stands_still_does_not_delay_the_first_token(
    kind: str, disk: StuckDisk, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """More blocks and states than there are buffers: with one put that never returned, all is computed."""
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, LONG)
        with opened(engine, options) as prefix:
            prefix.restore(LONG, (128, 320, 640, 960, 1300))
            engine.session.prefill(LONG, cuts=prefix.cuts, on_progress=prefix.advance)
            prefix.prefilled()
            logits = bytes(engine.context.logits())
            assert (disk.began, disk.ended, logits == expected) == (1, 0, True)
            disk.goes_on.set()
            prefix.finish(1000.0, len(LONG))
            assert prefix.report.written_bytes > 0
        logits, report = warm(engine, LONG, options)
    assert (logits == expected, report.restored_tokens) == (True, 1472)


def test_a_new_model_writes_nothing_before_its_first_token(
    random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny(random_model("plain")) as engine, opened(engine, options) as prefix:
        monkeypatch.setattr(PrefixStore, "note", None)
        prefix.restore(P1)
        engine.session.prefill(P1, on_progress=prefix.advance)
        prefix.prefilled()
        monkeypatch.undo()
        prefix.finish(1000.0, len(P1))


def leave_with(engine: Engine, options: CacheOptions) -> float:
    """A whole run; the seconds from the end of the answer to the end of the store."""
    with opened(engine, options) as prefix:
        prefill(engine, prefix, LONG)
        begun = time.monotonic()
        prefix.finish(1000.0, len(LONG))
    return time.monotonic() - begun


def test_the_end_is_bounded(
    disk: StuckDisk, random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that never answers is left behind, with its marker; the next run is right, and cleans up after it."""
    monkeypatch.setattr(prefix_save, "_PATIENCE_S", 0.3)
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P2)
        assert 0.3 <= leave_with(engine, options) < 5
        assert disk.ended == 0
        disk.goes_on.set()
        logits, _ = warm(engine, P2, options)
        assert logits == expected
    assert temp_files(options) == []


@pytest.mark.parametrize("already", [True, False])
def test_ctrl_c_ends_the_waiting(
    already: bool,
    disk: StuckDisk,
    random_model: Callable[[str], Path],
    options: CacheOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefix_save, "_INTERRUPTED_S", 0.3)
    with tiny(random_model("plain")) as engine, opened(engine, options) as prefix:
        prefill(engine, prefix, LONG)
        if already:
            engine.stop.set()
        else:
            threading.Timer(0.2, engine.stop.set).start()
        begun = time.monotonic()
        prefix.finish(1000.0, len(LONG))
        assert time.monotonic() - begun < 5


def test_what_an_error_leaves_is_whole(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """A reader that goes away, a second Ctrl-C: no temp file and no marker stays, and what is there is right."""
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, LONG)
        with contextlib.suppress(BrokenPipeError), opened(engine, options) as prefix:
            prefill(engine, prefix, LONG)
            raise BrokenPipeError
        assert options.folder is not None
        assert (temp_files(options), list((options.folder / "v1" / "writers").iterdir())) == ([], [])
        assert block_files(options) != []
        logits, report = warm(engine, LONG, options)
    assert (logits == expected, report.restored_tokens > 0) == (True, True)


def test_an_error_in_the_middle_of_a_write(
    random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker stays as long as the temp file may: whoever comes next can tell whose it is."""
    goes_on = threading.Event()

    def write_temp(temp: Path, buffers: Any) -> int:
        written = block_file.write_temp(temp, buffers)
        assert goes_on.wait(60)
        return written

    monkeypatch.setattr(save, "write_temp", write_temp)
    with tiny(random_model("plain")) as engine:
        begun = time.monotonic()
        with contextlib.suppress(BrokenPipeError), opened(engine, options) as prefix:
            prefill(engine, prefix, LONG)
            while not temp_files(options):
                time.sleep(0.01)
            raise BrokenPipeError
        assert time.monotonic() - begun < 20
        assert options.folder is not None
        (marker,) = (options.folder / "v1" / "writers").iterdir()
        assert [marker.name in temp.name for temp in temp_files(options)] == [True]
        goes_on.set()
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "prefix store")
        thread.join(10)
        assert temp_files(options) == []


@pytest.mark.parametrize("ids", [LONG, [7] * 1500], ids=["other-tokens", "the-same-tokens"])
def test_a_shifted_context_is_not_saved(
    ids: list[int], disk: StuckDisk, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """What finds no buffer before the shift is never taken out after it: its rows know what was dropped."""
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, ids)
        with opened(engine, options) as prefix:
            prefill(engine, prefix, ids)
            engine.session.drop(1, 700)
            for token in tokens(600, seed=9) if ids is LONG else ids[:700]:
                engine.session.decode(token)
            disk.goes_on.set()
            prefix.finish(1000.0, len(ids))
        assert len(block_files(options)) == 3
        logits, report = warm(engine, ids, options)
    assert (logits == expected, report.restored_tokens) == (True, 768)


def test_another_prompt_in_the_session_is_not_saved_as_this_one(
    disk: StuckDisk, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    other = tokens(1500, seed=10)
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, LONG)
        with opened(engine, options) as prefix:
            prefill(engine, prefix, LONG)
            engine.session.forget()
            engine.session.prefill(other)
            disk.goes_on.set()
            prefix.finish(1000.0, len(LONG))
        assert len(block_files(options)) == 3
        assert warm(engine, LONG, options)[0] == expected


def test_a_bug_in_the_writer_costs_no_answer(
    random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(*args: Any, **named: Any) -> Any:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(PrefixStore, "put", put)
    warnings: list[str] = []
    begun = time.monotonic()
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, LONG)
        logits, report = warm(engine, LONG, options, warnings)
    assert (logits == expected, report.written_bytes) == (True, 0)
    assert warnings == [
        "the prefix was not saved, an internal error, please report it: RuntimeError: what nobody thought of"
    ]
    assert time.monotonic() - begun < 20
