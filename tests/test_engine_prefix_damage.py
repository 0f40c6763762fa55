"""Anything done to any file of the store: the cold answer, at most one warning a run, and sound again soon after."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.cache_store.store import PrefixStore
from llmcli.engine.engine import Engine
from llmcli.engine.prefix_report import CacheOptions
from tests.cache_store_case import no_waiting_for_the_disk  # noqa: F401
from tests.prefix_case import (  # noqa: F401
    P1,
    P2,
    block_files,
    cold,
    opened,
    store_options,
    temp_files,
    tiny,
    tokens,
    warm,
)

Harm = Callable[[random.Random, list[Path]], None]


def files(options: CacheOptions) -> list[Path]:
    """Every file of the store: blocks, index and its side files, notes, descriptions, names, a marker."""
    assert options.folder is not None
    return sorted(path for path in options.folder.rglob("*") if path.is_file())


def fill(engine: Engine, options: CacheOptions) -> None:
    """Two prompts that share blocks, a name, and the marker of a killed process."""
    warm(engine, P1, options)
    warm(engine, P2, options)
    with opened(engine, options) as prefix:
        keeper = prefix.store.keeper()
        keeper.name(keeper.chain(keeper.entries()[0].key.hex())[-1], "mine", pin=True)
    assert options.folder is not None
    (options.folder / "v1" / "writers" / "7fffffff-00000000").touch()


def flip(draw: random.Random, found: list[Path]) -> None:
    path = draw.choice(found)
    data = bytearray(path.read_bytes())
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


def truncate(draw: random.Random, found: list[Path]) -> None:
    path = draw.choice(found)
    os.truncate(path, draw.choice([0, 1, draw.randrange(path.stat().st_size + 1)]))


def lengthen(draw: random.Random, found: list[Path]) -> None:
    with open(draw.choice(found), "ab") as out:
        out.write(draw.randbytes(draw.randrange(1, 5000)))


def overwrite(draw: random.Random, found: list[Path]) -> None:
    path = draw.choice(found)
    path.write_bytes(draw.choice([b"", b"{}", b"[]", b"null", draw.randbytes(300), bytes(path.stat().st_size)]))


def swap(draw: random.Random, found: list[Path]) -> None:
    """Two files of one kind more often than not: only then what is swapped is sound in itself."""
    one = draw.choice(found)
    like = [path for path in found if path != one and path.suffix == one.suffix]
    other = draw.choice(like) if like and draw.random() < 0.8 else draw.choice(found)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def rename(draw: random.Random, found: list[Path]) -> None:
    one, other = draw.choice(found), draw.choice(found)
    os.replace(one, other)


def delete(draw: random.Random, found: list[Path]) -> None:
    draw.choice(found).unlink()


def make_folder(draw: random.Random, found: list[Path]) -> None:
    path = draw.choice(found)
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "harm", [flip, truncate, lengthen, overwrite, swap, rename, delete, make_folder], ids=lambda harm: harm.__name__
)
def test_harm_to_any_file(harm: Harm, random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """Blocks, index, notes, descriptions, names and markers alike; each time from a whole store."""
    assert options.folder is not None
    draw = random.Random(harm.__name__)
    with tiny(random_model("plain")) as engine:
        expected = {1: cold(engine, P1), 2: cold(engine, P2)}
        fill(engine, options)
        whole = options.folder.with_name("whole")
        shutil.copytree(options.folder, whole)
        for _ in range(8):
            kinds = {path.suffix: [p for p in files(options) if p.suffix == path.suffix] for path in files(options)}
            victims = draw.choice([files(options), *kinds.values()]) if harm in (flip, truncate, overwrite) else None
            harm(draw, victims or files(options))
            for ids, number in ((P1, 1), (P2, 2)):
                warnings: list[str] = []
                assert warm(engine, ids, options, warnings)[0] == expected[number]
                assert len(warnings) <= 1, warnings
            shutil.rmtree(options.folder)
            shutil.copytree(whole, options.folder)
            assert temp_files(options) == []


def test_every_byte_of_the_small_files(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """What is in the notes decides what is believed, so no flipped byte of them may count."""
    assert options.folder is not None
    with tiny(random_model("plain")) as engine:
        fill(engine, options)
        with PrefixStore.open(options.folder, options.policy, notify=print) as store, opened(engine, options) as prefix:
            noted = dict(store.notes(prefix.fingerprint))
            assert noted["exact_grid_tokens"] == 64
            path = options.folder / "v1" / "fingerprints" / f"{prefix.fingerprint.digest.hex()}.notes"
            whole = path.read_bytes()
            for at in range(len(whole)):
                data = bytearray(whole)
                data[at] ^= 1 << at % 7
                path.write_bytes(data)
                assert dict(store.notes(prefix.fingerprint)) in ({}, noted)


def test_half_the_files_at_once(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """After a bad disk: right at once, one warning a run, and everything is restored again two runs later."""
    draw = random.Random(5)
    long = tokens(1500, seed=8)
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, long)
        fill(engine, options)
        warm(engine, long, options)
        for path in files(options):
            if draw.random() < 0.5 or path.suffix == ".kv":
                flip(draw, [path])
        for _ in range(2):
            warnings: list[str] = []
            assert warm(engine, long, options, warnings)[0] == expected
            assert len(warnings) <= 1
        logits, report = warm(engine, long, options, [])
    assert (logits == expected, report.restored_tokens) == (True, 1472)


def test_another_format_version_beside_this_one(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """A newer llmcli on the same folder: its files are left alone, by clearing, too; its blocks in ours are misses."""
    assert options.folder is not None
    newer = options.folder / "v2"
    (newer / "blocks" / "aa").mkdir(parents=True)
    (newer / "blocks" / "aa" / "x.kv").write_bytes(b"of another version")
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        assert warm(engine, P1, options)[1].restored_tokens == 512
        shutil.copytree(options.folder / "v1", newer / "copy")
        with opened(engine, options) as prefix:
            prefix.store.keeper().verify(repair=True)
            prefix.store.keeper().clear()
        assert block_files(options) == []
        assert len(list((newer / "copy").rglob("*.kv"))) == 2
        assert (newer / "blocks" / "aa" / "x.kv").read_bytes() == b"of another version"
        warm(engine, P1, options)
        for path in block_files(options):  # the version stands behind the magic, before any checksum
            data = bytearray(path.read_bytes())
            data[8] += 1
            path.write_bytes(data)
        warnings: list[str] = []
        assert warm(engine, P1, options, warnings)[0] == expected
    assert warnings == []


# ---- what the system refuses -----------------------------------------------------------------------------------------


def write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(handle: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "writev", write, raising=False)


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a home on the network whose server has no lock daemon."""

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
            if statement.startswith(("BEGIN", "PRAGMA journal")):
                raise sqlite3.OperationalError("locking protocol")
            return super().execute(statement, *parameters)

    real: Any = sqlite3.connect

    def connect(path: Any, **named: Any) -> Any:
        return real(path, **named) if path == ":memory:" else real(path, factory=Connection, **named)

    monkeypatch.setattr(sqlite3, "connect", connect)


def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = sqlite3.connect

    def connect(path: Any, **named: Any) -> Any:
        if path == ":memory:":
            return real(path, **named)
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.mark.parametrize("trouble", [write_nothing, no_locks, no_index], ids=lambda trouble: trouble.__name__)
@pytest.mark.parametrize("filled", [True, False], ids=["filled", "empty"])
def test_what_the_system_refuses(
    trouble: Callable[[pytest.MonkeyPatch], None],
    filled: bool,
    random_model: Callable[[str], Path],
    options: CacheOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P2)
        if filled:
            warm(engine, P1, options)
        with monkeypatch.context() as patch:
            trouble(patch)
            warnings: list[str] = []
            logits, report = warm(engine, P2, options, warnings)
        assert (logits == expected, report.restored_tokens) == (True, 448 if filled else 0)
        assert len(warnings) == 1, warnings
        assert "the prefix store" in warnings[0]
        assert temp_files(options) == []
        assert warm(engine, P2, options)[0] == expected
