"""What is believed of a store: nothing that was not tried here, and no note that could be another's or made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.base.settings import load
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.store import PrefixStore
from llmcli.engine.engine import Engine
from llmcli.engine.kv_description import UnknownLayoutError, from_json, to_json
from llmcli.engine.prefix_identity import base_facts, probe_fingerprint
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.prefix_trust import Trust
from llmcli.engine.state_probe import confirm, probe
from tests.prefix_case import KINDS, P1, P2, cold, opened, prefill, store_options, tiny, tokens, warm  # noqa: F401

LONG = tokens(900, seed=4)


def stop_before_the_test(engine: Engine, options: CacheOptions, ids: list[int]) -> None:
    """A run that Ctrl-C ends when its prompt is computed."""
    with opened(engine, options) as prefix:
        prefill(engine, prefix, ids)
        engine.stop.set()
        prefix.finish(None, 0)
    engine.stop.clear()


@pytest.mark.parametrize("kind", ["plain", "iswa"])
def test_a_test_that_never_was_is_made_up_for_before_the_restore(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, LONG)
        stop_before_the_test(engine, options, LONG)
        logits, report = warm(engine, LONG, options)
        with opened(engine, options) as prefix:
            assert prefix.grid_tokens == 64
    assert (logits == expected, report.restored_tokens) == (True, 896)


@pytest.mark.parametrize(("kind", "ids"), [("plain", tokens(400)), ("hybrid", LONG)])
def test_where_that_would_cost_more_it_waits_for_the_end(
    kind: str, ids: list[int], random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model(kind)) as engine:
        stop_before_the_test(engine, options, ids)
        _, second = warm(engine, ids, options)
        _, third = warm(engine, ids, options)
    assert (second.restored_tokens, second.miss_reason, second.miss_detail) == (
        (0, "not_tested", "a run with these settings has to show first that a restore is exact")
    )  # fmt: skip
    assert third.restored_tokens == len(ids) // 64 * 64


@pytest.mark.parametrize("exact_on", [256, None])
def test_the_grid_is_what_was_found_exact(
    exact_on: int | None,
    random_model: Callable[[str], Path],
    options: CacheOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine where cuts at multiples of 64 change bits."""
    ends = []

    def is_exact(self: Trust, restorer: Any, ids: Any, end: int, cold: bytes) -> bool:
        ends.append(end)
        return exact_on is not None and end % exact_on == 0

    monkeypatch.setattr(Trust, "_is_exact", is_exact)
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        assert ends == [448, 512]  # the cold run made no cut at 448
        _, report = warm(engine, P2, options)
        _, most = warm(engine, P2, replace(options, mode="max"))
    if exact_on:
        assert (report.restored_tokens, report.miss_reason) == (256, None)
    else:
        assert (report.restored_tokens, report.miss_reason) == (0, "off")
        assert report.miss_detail == "restoring is not exact on this machine; --cache max allows it"
        assert most.restored_tokens == 512


def test_a_u_batch_that_makes_no_cut_at_256_needs_the_fine_grid(
    random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where cuts at multiples of 64 change bits, one at 256 does so too, unless the cold run made it."""
    monkeypatch.setattr(Trust, "_is_exact", lambda self, restorer, ids, end, cold: end % 256 == 0)
    with tiny(random_model("plain"), n_ubatch=512) as engine:
        warm(engine, P1, options)
        _, report = warm(engine, P2, options)
    assert (report.restored_tokens, report.miss_reason) == (0, "off")


@pytest.mark.parametrize("count", [65, 100, 128, 129, 192, 256, 257, 320, 321])
def test_short_prompts_are_tested_too(count: int, random_model: Callable[[str], Path], options: CacheOptions) -> None:
    ids = tokens(count, seed=count)
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, ids)
        warm(engine, ids, options)
        logits, report = warm(engine, ids, options)
    assert (logits == expected, report.restored_tokens) == (True, (count - 1) // 64 * 64)


def test_ctrl_c_in_the_test_leaves_it_undone(
    random_model: Callable[[str], Path], options: CacheOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trust._logits

    def logits(self: Trust, ids: Any) -> bytes:
        self._engine.stop.set()
        return real(self, ids)

    with tiny(random_model("plain")) as engine:
        monkeypatch.setattr(Trust, "_logits", logits)
        warm(engine, P1, options)
        engine.stop.clear()
        monkeypatch.undo()
        with opened(engine, options) as prefix:
            assert prefix.grid_tokens is None


# ---- notes -----------------------------------------------------------------------------------------------------------


def plant(engine: Engine, options: CacheOptions, structure: str) -> None:
    """Note this structure for the engine, with all checksums right."""
    facts = base_facts(
        content_id=engine.inspected.content_id,
        build=engine.build.digest,
        model=engine.model,
        plan=engine.plan,
        rope=engine.rope,
        loras=engine.loras,
        settings=load(),
    )
    assert options.folder is not None
    with PrefixStore.open(options.folder, options.policy, notify=print) as store:
        store.note(probe_fingerprint(facts), {"structure": structure})


@pytest.mark.parametrize("kind", KINDS)
def test_a_structure_that_lies_changes_no_answer(
    kind: str, random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    """Every number, word and list of the noted structure changed in turn, and other kinds' structures."""
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, P1)
        true = probe(engine.context)
        lies = [*_lies(json.loads(to_json(true))), *("null", "[]", "3", '"x"', "{}", "[" * 4000, "9" * 5000)]
        for lie in lies:
            if not _is_refused(engine, lie):
                plant(engine, options, lie)
                assert [warm(engine, P1, options)[0] for _ in range(2)] == [expected] * 2, lie
        plant(engine, options, lies[0])
        assert warm(engine, P1, options)[0] == expected


def _is_refused(engine: Engine, text: str) -> bool:
    """Whether the structure is not even tried: the usual case, which needs no run to be shown harmless."""
    try:
        return not confirm(engine.context, from_json(text))
    except UnknownLayoutError:
        return True


def _lies(true: Any) -> list[str]:
    found: list[str] = []

    def walk(node: Any, put: Callable[[Any], None]) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            walk(value, lambda new, node=node, key=key: node.__setitem__(key, new))  # type: ignore[misc]
        for other in _others(node):
            put(other)
            found.append(json.dumps(root[0]))
            put(node)

    root = [true]
    walk(true, lambda new: root.__setitem__(0, new))
    return found


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool) or value is None:
        return [not value, 7, "x", [], {}]
    if isinstance(value, int):
        return [value + 1, -1, 0, 1 << 31, 1 << 64, 1.5, "1", None, True]
    if isinstance(value, str):
        return ["plain", "window", "hybrid", "recurrent", "token", "position", "none", 3, None, [], {}]
    return [None, [], {}, 1, [*value, *value], [[[]]]]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=5,
)
_ROWS = st.lists(st.lists(st.integers(-5, 1 << 33) | _JSON, max_size=4), max_size=3) | _JSON
_CELLS = st.fixed_dictionaries(
    {"transposed": st.booleans() | _JSON, "cell_extra": st.just("none") | _JSON, "keys": _ROWS, "values": _ROWS}
)
_STRUCTURES = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["plain", "window", "hybrid", "hybrid-window", "recurrent"]) | _JSON,
        "window_tokens": st.integers() | _JSON,
        "attention": _CELLS | _JSON,
        "window": _CELLS | _JSON,
        "recurrent": st.fixed_dictionaries({"n_layer": st.integers() | _JSON, "rows": _ROWS}) | _JSON,
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_STRUCTURES | _JSON)
def test_any_json_is_a_structure_or_refused(found: Any) -> None:
    try:
        structure = from_json(json.dumps(found))
    except UnknownLayoutError:
        return
    assert from_json(to_json(structure)) == structure
    assert structure.token_bytes() <= 1 << 26


def test_notes_of_another_fingerprint_are_none(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """Swapped files: the grid of one model is not believed of another."""
    assert options.folder is not None
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        expected = cold(engine, P2)
        folder = options.folder / "v1" / "fingerprints"
        notes = {path.name: path.read_bytes() for path in folder.glob("*.notes")}
        assert len(notes) == 2
        for name, data in zip(notes, reversed(notes.values()), strict=True):
            (folder / name).write_bytes(data)
        with opened(engine, options) as prefix:
            assert prefix.grid_tokens is None
        assert warm(engine, P2, options)[0] == expected


def test_a_least_length_above_the_place_of_the_test(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    most = replace(options, policy=Policy(max_bytes=1 << 30, min_free_bytes=0, min_tokens=500))
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, most)
        assert warm(engine, P1, most)[1].restored_tokens == 512
