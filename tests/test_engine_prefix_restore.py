"""Blocks that are not what they say: made up with every checksum right, they give the cold answer or none at all."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.cache_store.block_file import read_header, read_part
from llmcli.cache_store.block_format import NewBlock, pack_header
from llmcli.cache_store.cost import Rates
from llmcli.engine.kv_layout import Structure
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.state_probe import probe
from tests.prefix_case import (  # noqa: F401
    KINDS,
    P1,
    P2,
    block_files,
    cold,
    opened,
    prefill,
    store_options,
    tiny,
    warm,
)

Parts = dict[str, bytearray]


def forge(path: Path, change: Callable[[Parts], object]) -> None:
    """Write the block anew with changed parts and right checksums."""
    header, _ = read_header(path)
    parts: Parts = {name: bytearray(read_part(path, header.key, name)) for name in header.parts}
    change(parts)
    block = NewBlock(
        header.namespace, header.key, header.parent, header.grandparent, header.start_tokens, header.tokens,
        header.exact, header.preview, header.created_s, {name: memoryview(data) for name, data in parts.items()},
    )  # fmt: skip
    path.unlink()
    path.write_bytes(pack_header(block) + b"".join(parts.values()))


def layout_words(structure: Structure, path: Path) -> list[tuple[str, int]]:
    """Where in the parts of a block the numbers stand that llama.cpp goes by: (part, offset)."""
    header, _ = read_header(path)
    tokens = [0] * header.n_tokens
    words = []
    for name in header.parts:
        offset = 0
        for fixed, nbytes in structure.chunks(name, header.start_tokens, tokens):
            words += [(name, at) for at in range(offset, offset + len(fixed) - 3, 4)]
            offset += len(fixed) + nbytes
    return words


@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_that_lies_is_refused(kind: str, random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """Counts, positions, sequences, types, row sizes, transposition: any of them, in any block, by any amount."""
    draw = random.Random(kind)
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        structure = probe(engine.context)
        for _ in range(15):
            # Of a snapshot behind which the prompt goes on, nothing is read.
            victim = block_files(options)[-1] if kind == "mamba" else draw.choice(block_files(options))
            words = layout_words(structure, victim)
            few = [word for word in words if word[1] < 16] + words[-40:]  # the rest are cells
            name, offset = draw.choice([draw.choice(words), draw.choice(few)])
            lie = draw.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\2\0\0\0", b"\0\0\0\x80", draw.randbytes(4)])

            def change(parts: Parts, name: str = name, offset: int = offset, lie: bytes = lie) -> None:
                parts[name][offset : offset + 4] = lie

            forge(victim, change)
            warnings: list[str] = []
            assert warm(engine, P1, options, warnings)[0] == expected
            assert len(warnings) <= 1
        assert warm(engine, P1, options)[1].restored_tokens == 512


def without(name: str) -> Callable[[Parts], None]:
    return lambda parts: parts.__delitem__(name) if name in parts else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts.clear(),
        lambda parts: [data.extend(bytes(1)) for data in parts.values()],
        lambda parts: [data.__delitem__(slice(-1, None)) for data in parts.values()],
        lambda parts: [data.clear() for data in parts.values()],
        without("attn"),
        without("window"),
        without("state"),
        lambda parts: parts.update(zip(list(parts), reversed(list(parts.values())), strict=True)),
        lambda parts: parts.update(more=bytearray(b"unknown")),
    ],
    ids=["no-parts", "longer", "shorter", "empty", "no-attn", "no-window", "no-state", "swapped", "one-more"],
)
def test_parts_that_are_missing_or_of_another_size(
    kind: str, change: Callable[[Parts], object], random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    with tiny(random_model(kind)) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        for victim in block_files(options):
            forge(victim, change)
        warnings: list[str] = []
        assert [warm(engine, P1, options, warnings)[0] for _ in range(2)] == [expected] * 2
        assert warm(engine, P1, options)[1].restored_tokens == 512  # removed, and saved again


def test_a_part_as_large_as_a_disk_is_not_read(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        first = next(path for path in block_files(options) if read_header(path)[0].start_tokens == 0)
        forge(first, lambda parts: parts["attn"].extend(bytes(64 << 20)))
        warnings: list[str] = []
        logits, report = warm(engine, P1, options, warnings)
    assert (logits == expected, report.read_bytes, report.miss_reason) == (True, 0, "damaged")
    assert [("expected" in warning) for warning in warnings] == [True]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_anything_kill_nothing(kind: str, random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """Who can write into the store can change an answer; but not end the process, even with rows of not-a-number."""
    with tiny(random_model(kind)) as engine:
        warm(engine, P1, options)
        structure = probe(engine.context)
        for victim in block_files(options):
            header, _ = read_header(victim)

            def fill(parts: Parts, tokens: bytes = header.tokens, start: int = header.start_tokens) -> None:
                for name, data in parts.items():
                    offset = 0
                    for fixed, nbytes in structure.chunks(name, start, [0] * (len(tokens) // 4)):
                        offset += len(fixed)
                        data[offset : offset + nbytes] = b"\xff" * nbytes
                        offset += nbytes

            forge(victim, fill)
        assert warm(engine, P1, options)[1].restored_tokens == 512


@pytest.mark.parametrize("what", ["row", "layout", "tokens", "cut"])
def test_an_export_file_that_lies(
    what: str, random_model: Callable[[str], Path], options: CacheOptions, tmp_path: Path
) -> None:
    """Imported it stores what is sound; a run afterwards gives the cold answer, and nothing lies outside the store."""
    assert options.folder is not None
    exported, other = tmp_path / "p.kvx", replace(options, folder=tmp_path / "other")
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        with opened(engine, options) as prefix:
            keeper = prefix.store.keeper()
            keeper.export_chain(keeper.entries()[0].key.hex(), exported)
        data = bytearray(exported.read_bytes())
        at = {"row": len(data) - 9, "layout": len(data) // 2, "tokens": 1000, "cut": len(data) // 2}[what]
        if what == "cut":
            del data[at:]
        else:
            data[at] ^= 1
        exported.write_bytes(data)
        before = set(tmp_path.rglob("*"))
        with opened(engine, other) as prefix:
            try:
                imported = prefix.store.keeper().import_chain(exported, prefix.fingerprint).tokens
            except LlmcliError:
                imported = None
        assert imported is None
        outside = {path for path in set(tmp_path.rglob("*")) - before if not path.is_relative_to(tmp_path / "other")}
        assert outside == set()
        assert [warm(engine, P1, other)[0] for _ in range(2)] == [expected] * 2


def test_an_export_file_with_forged_blocks(
    random_model: Callable[[str], Path], options: CacheOptions, tmp_path: Path
) -> None:
    """All checksums right, positions wrong: it can be imported, and is refused when it is to be used."""
    exported, other = tmp_path / "p.kvx", replace(options, folder=tmp_path / "other")
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        for victim in block_files(options):
            forge(victim, lambda parts: parts["attn"].__setitem__(slice(16, 20), b"\5\0\0\0"))
        with opened(engine, options) as prefix:
            keeper = prefix.store.keeper()
            keeper.export_chain(keeper.entries()[0].key.hex(), exported)
        with opened(engine, other) as prefix:
            assert prefix.store.keeper().import_chain(exported, prefix.fingerprint).tokens == 512
        warnings: list[str] = []
        for _ in range(4):  # each run meets one of them
            logits, report = warm(engine, P1, other, warnings)
            assert logits == expected
        assert report.restored_tokens == 512


def test_links_lead_nowhere(random_model: Callable[[str], Path], options: CacheOptions, tmp_path: Path) -> None:
    """Folders and files of the store that are links: nothing outside is written, changed or removed."""
    assert options.folder is not None
    outside = tmp_path / "outside"
    for name in ("a", "b"):
        (outside / name).mkdir(parents=True)
        (outside / name / "file").write_text("mine")
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        base = options.folder / "v1"
        shard = block_files(options)[0].parent
        for file in shard.iterdir():
            file.unlink()
        shard.rmdir()
        shard.symlink_to(outside / "a")
        (base / "index.sqlite").unlink()
        (outside / "b" / "empty").touch()
        (base / "index.sqlite").symlink_to(outside / "b" / "empty")
        for notes in (base / "fingerprints").glob("*.notes"):
            notes.unlink()
            notes.symlink_to(outside / "b" / "file")
        warnings: list[str] = []
        for _ in range(2):
            assert warm(engine, P1, options, warnings)[0] == expected
        with opened(engine, options, warnings) as prefix:
            prefix.store.keeper().verify(repair=True)
            prefix.store.keeper().clear()
    assert sorted(path.name for path in outside.rglob("*")) == ["a", "b", "empty", "file", "file"]
    assert (outside / "b" / "empty").read_bytes() == b""
    assert {path.read_text() for path in outside.rglob("file")} == {"mine"}


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    random_model: Callable[[str], Path], options: CacheOptions
) -> None:
    assert options.folder is not None
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P1)
        warm(engine, P1, options)
        for path in [*block_files(options), *(options.folder / "v1" / "fingerprints").iterdir()]:
            path.unlink()
            os.mkfifo(path)
        os.mkfifo(options.folder / "v1" / "names" / b"name".hex())
        warnings: list[str] = []
        assert warm(engine, P1, options, warnings)[0] == expected


def test_ctrl_c_while_restoring_removes_nothing(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        before = block_files(options)
        with opened(engine, options) as prefix:
            engine.stop.set()
            prefix.restore(P1)
            assert (prefix.report.restored_tokens, engine.session.tokens) == (0, [])
        engine.stop.clear()
        assert block_files(options) == before
        assert warm(engine, P1, options)[1].restored_tokens == 512


def test_what_once_cost_more_is_tried_again(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    """One slow day must not switch the store off: each time a restore is passed over it looks better."""
    with tiny(random_model("plain")) as engine:
        warm(engine, P1, options)
        with opened(engine, options) as prefix:
            prefix.store.learn_rates(prefix.fingerprint, Rates(restore_bytes_s=50_000.0))
        seen = [warm(engine, P1, options)[1] for _ in range(8)]
    assert seen[0].miss_reason == "costs_more"
    assert seen[-1].restored_tokens == 512


def test_removing_an_entry_leaves_what_others_share(random_model: Callable[[str], Path], options: CacheOptions) -> None:
    with tiny(random_model("plain")) as engine:
        expected = cold(engine, P2)
        warm(engine, P2, options)
        longer = [*P1, *P1, *P1]
        warm(engine, longer, options)
        before = {path.name for path in block_files(options)}
        with opened(engine, options) as prefix:
            keeper = prefix.store.keeper()
            entry = max(keeper.entries(), key=lambda entry: entry.tokens)
            plan = keeper.plan_rm(entry.key.hex())
            blocks, nbytes = keeper.carry_out(plan)
        gone = before - {path.name for path in block_files(options)}
        # Of 1,620 tokens 256 were shared; the others end at 448, where the two part, and at multiples of 256.
        assert (len(gone), blocks, nbytes > 0) == (7, 7, True)
        logits, report = warm(engine, P2, options)
    assert (logits == expected, report.restored_tokens) == (True, 512)
