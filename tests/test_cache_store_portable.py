from __future__ import annotations

import errno
import os
import random
import stat
import struct
from pathlib import Path

import pytest
import xxhash

from llmcli.base.errors import LlmcliError, ModelError
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.policy import Policy
from llmcli.cache_store.portable import read_manifest
from tests.cache_store_case import (  # noqa: F401
    FACTS,
    FINGERPRINT,
    Told,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    put,
    temp_files,
)

TOKENS = list(range(600))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with open_store(tmp_path / "strong") as store:
        refs = put(store, TOKENS, state=True, preview="Once")
        written = store.keeper().export_chain(refs[-1].key.hex(), tmp_path / "prefix.kv")
    assert written == (tmp_path / "prefix.kv").stat().st_size
    return tmp_path / "prefix.kv"


def test_a_chain_moves_to_another_store_and_another_salt(exported: Path, tmp_path: Path) -> None:
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    manifest = read_manifest(exported)
    assert (manifest.fingerprint, manifest.blocks, manifest.tokens) == (FINGERPRINT, 3, 600)
    with open_store(tmp_path / "small", salt="tenant") as store:
        imported = store.keeper().import_chain(exported, FINGERPRINT)
        assert (imported.blocks, imported.tokens, imported.refused) == (3, 600, None)
        found = store.match(FINGERPRINT, TOKENS, ending_part="state")
        assert found.matched_tokens == 600
        assert_right(store, found.blocks)
        assert store.read(found.blocks[-1], "state") == b"state" * 10
        assert imported.end == found.blocks[-1]
        assert found.blocks[0].preview == "Once"
        assert store.keeper().import_chain(exported, None).written_bytes == 0
        assert store.keeper().verify(repair=False).problems == ()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["prefix.kv", "small", "strong"]


@pytest.mark.parametrize("salt", ["", "tenant", "third"])
def test_it_does_not_matter_under_which_salt_it_is_exported(salt: str, tmp_path: Path) -> None:
    """The key of a block follows from the salt that it was saved under, and so must the header that goes out."""
    with open_store(tmp_path / "s", salt="tenant") as store:
        refs = put(store, TOKENS)
    with open_store(tmp_path / "s", salt=salt) as store:
        store.keeper().export_chain(refs[-1].key.hex(), tmp_path / "prefix.kv")
    with open_store(tmp_path / "small") as store:
        assert store.keeper().import_chain(tmp_path / "prefix.kv", FINGERPRINT).tokens == 600


def test_another_model_is_refused_with_the_reason_and_nothing_is_stored(exported: Path, tmp_path: Path) -> None:
    other = Fingerprint.of({**FACTS, "type_k": "q8_0"})
    words = r"does not fit: other kv type \(type_k: stored f16, now q8_0\)"
    with open_store(tmp_path / "small") as store, pytest.raises(ModelError, match=words):
        store.keeper().import_chain(exported, other)
    assert block_files(tmp_path / "small") == []


def test_what_was_never_exported(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        for data in (b"", b"\x89LLMPX", b"GGUF" * 100, os.urandom(3000)):
            (tmp_path / "f").write_bytes(data)
            with pytest.raises(LlmcliError, match="is not a prefix that llmcli exported"):
                store.keeper().import_chain(tmp_path / "f", None)
        (tmp_path / "f").write_bytes(b"\x89LLMPX\r\n" + struct.pack("<II", 2, 2) + b"{}" + bytes(16))
        with pytest.raises(LlmcliError, match="version 2, this llmcli reads 1"):
            store.keeper().import_chain(tmp_path / "f", None)


@pytest.mark.parametrize(
    "manifest",
    [
        b"[]",
        b"{",
        b"[" * 60_000,
        b'{"description":{"a":[1]},"blocks":1,"tokens":1}',
        b'{"description":{},"blocks":0,"tokens":1}',
        b'{"description":{},"blocks":99999999999,"tokens":1}',
        b'{"description":{},"blocks":"1","tokens":1}',
        b'{"description":3,"blocks":1,"tokens":1}',
        b'{"description":{},"blocks":3,"tokens":600}',
    ],
)
def test_hostile_manifests(exported: Path, tmp_path: Path, manifest: bytes) -> None:
    blocks = exported.read_bytes()[len(_head(exported.read_bytes())) :]
    head = b"\x89LLMPX\r\n" + struct.pack("<II", 1, len(manifest)) + manifest
    exported.write_bytes(head + xxhash.xxh3_128_digest(head) + blocks)
    with open_store(tmp_path / "small") as store, pytest.raises(DamagedError) as caught:
        store.keeper().import_chain(exported, None)
    assert caught.value.hint == "copy or export it again"
    assert block_files(tmp_path / "small") == []


def _head(data: bytes) -> bytes:
    (nbytes,) = struct.unpack_from("<I", data, 12)
    return data[: 16 + nbytes + 16]


def test_flipped_and_cut_files_never_store_anything_wrong(exported: Path, tmp_path: Path) -> None:
    data, source = exported.read_bytes(), random.Random(5)
    with open_store(tmp_path / "small") as store:
        for _ in range(150):
            bad = bytearray(data)
            bad[source.randrange(len(data))] ^= 1 << source.randrange(8)
            exported.write_bytes(bytes(bad) if source.random() < 0.7 else data[: source.randrange(len(data))])
            with pytest.raises(LlmcliError):
                store.keeper().import_chain(exported, None)
        exported.write_bytes(data + b"more")
        with pytest.raises(DamagedError, match="4 bytes behind the last block") as caught:
            store.keeper().import_chain(exported, None)
        assert caught.value.hint == "copy or export it again"
        found = store.match(FINGERPRINT, TOKENS)
        assert_right(store, found.blocks)
        assert store.keeper().verify(repair=False).problems == ()
    assert temp_files(tmp_path) == []


def test_blocks_in_another_order_or_of_another_chain(exported: Path, tmp_path: Path) -> None:
    data = exported.read_bytes()
    head, sizes, offset = _head(data), list[int](), len(_head(data))
    while offset < len(data):
        sizes.append(int(struct.unpack_from("<Q", data, offset + 16)[0]))
        offset += sizes[-1]
    starts = [len(head) + sum(sizes[:n]) for n in range(3)]
    one, two, three = (data[start : start + size] for start, size in zip(starts, sizes, strict=True))
    with open_store(tmp_path / "small") as store:
        for order in (two + one + three, one + one + two, one + three + two):
            exported.write_bytes(head + order)
            with pytest.raises(DamagedError, match="does not continue the chain"):
                store.keeper().import_chain(exported, None)
        exported.write_bytes(head + one + two + three)
        assert store.keeper().import_chain(exported, None).tokens == 600


def test_an_import_that_does_not_fit_keeps_the_beginning_and_says_so(exported: Path, tmp_path: Path) -> None:
    told = Told()
    with open_store(tmp_path / "small", Policy(max_bytes=6_000, min_free_bytes=0), notify=told) as store:
        imported = store.keeper().import_chain(exported, FINGERPRINT)
        assert imported.refused == "over the budget"
        assert imported.tokens < 600
    assert len(told) == 1


def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_store(tmp_path / "strong") as store:
        refs = put(store, TOKENS)
        monkeypatch.setattr(os, "writev", full)
        with pytest.raises(OSError, match="No space left") as caught:
            store.keeper().export_chain(refs[-1].key.hex(), tmp_path / "out")
        monkeypatch.undo()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "out"))
    assert [file.name for file in tmp_path.iterdir()] == ["strong"]


def test_a_damaged_block_is_not_exported(tmp_path: Path) -> None:
    with open_store(tmp_path / "strong") as store:
        refs = put(store, TOKENS)
        data = bytearray(Path(refs[1].path).read_bytes())
        data[-1] ^= 1
        Path(refs[1].path).write_bytes(data)
        with pytest.raises(DamagedError):
            store.keeper().export_chain(refs[-1].key.hex(), tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["strong"]
