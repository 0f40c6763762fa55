from __future__ import annotations

import gc
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from llmcli.cache_store.block_file import read_header
from llmcli.cache_store.block_format import DamagedError, NewBlock, pack_header
from llmcli.cache_store.cost import Rates
from llmcli.cache_store.keys import pack_tokens
from llmcli.cache_store.store import BytesLike, PrefixStore
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    Told,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    put,
)

TOKENS = list(range(600))


def read_all(store: PrefixStore, tokens: list[int]) -> int:
    """Restore like an engine: read every part; a block that is damaged ends what is used. Returns the tokens."""
    found = store.match(FINGERPRINT, tokens)
    usable = 0
    for ref in found.blocks:
        try:
            for part in ref.part_bytes:
                store.read(ref, part)
        except DamagedError:
            break
        assert_right(store, [ref])
        assert tokens[ref.start_tokens : ref.end_tokens] == list(ref.token_ids)
        usable = ref.end_tokens
    return usable


def test_an_entry_survives_being_read(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS)
        before = {file: file.read_bytes() for file in block_files(tmp_path / "s")}
        assert [read_all(store, TOKENS) for _ in range(3)] == [600] * 3
        assert {file: file.read_bytes() for file in block_files(tmp_path / "s")} == before


def test_any_flipped_byte_of_any_block_is_a_shorter_match_and_never_a_wrong_one(tmp_path: Path) -> None:
    told, source = Told(), random.Random(1)
    with open_store(tmp_path / "s", notify=told) as store:
        refs = put(store, TOKENS, state=True)
        for number, ref in enumerate(refs):
            data = Path(ref.path).read_bytes()
            header_bytes = len(data) - sum(ref.part_bytes.values())
            some = source.sample(range(header_bytes, len(data)), 40)
            for position in (*range(0, header_bytes, 7), header_bytes - 1, header_bytes, len(data) - 1, *some):
                bad = bytearray(data)
                bad[position] ^= 1 << source.randrange(8)
                Path(ref.path).write_bytes(bad)
                assert read_all(store, TOKENS) == refs[number].start_tokens
                Path(ref.path).write_bytes(data)
        assert read_all(store, TOKENS) == 600
    assert len(told) == 1
    assert "damaged block was removed" in told[0]


def test_truncation_at_any_length(tmp_path: Path) -> None:
    told = Told()
    with open_store(tmp_path / "s", notify=told) as store:
        refs = put(store, TOKENS)
        data = Path(refs[1].path).read_bytes()
        for length in (*range(0, len(data), 101), len(data) - 1):
            Path(refs[1].path).write_bytes(data[:length])
            assert read_all(store, TOKENS) == 256
        Path(refs[1].path).write_bytes(data + b"\0")
        assert read_all(store, TOKENS) == 256


def test_truncated_under_the_reader_between_look_up_and_read(tmp_path: Path) -> None:
    """No SIGBUS: the size is checked on the open file, and the pages are fetched before they are touched."""
    told = Told()
    with open_store(tmp_path / "s", notify=told) as store:
        stored = store.put(FINGERPRINT, None, [1, 2], {"attn": os.urandom(1 << 20)})
        assert stored.ref is not None
        os.truncate(stored.ref.path, 500_000)
        with pytest.raises(DamagedError):
            store.read(stored.ref, "attn")
        assert not Path(stored.ref.path).exists()


def test_swapped_files(tmp_path: Path) -> None:
    told = Told()
    with open_store(tmp_path / "s", notify=told) as store:
        refs, others = put(store, TOKENS), put(store, [9, *TOKENS])
        for one, two in ((refs[0], refs[1]), (refs[1], others[1]), (refs[0], others[0])):
            a, b = Path(one.path).read_bytes(), Path(two.path).read_bytes()
            Path(one.path).write_bytes(b)
            Path(two.path).write_bytes(a)
            assert read_all(store, TOKENS) == one.start_tokens
            for ref, data in ((one, a), (two, b)):
                Path(ref.path).write_bytes(data)
            assert read_all(store, TOKENS) == 600


def test_a_made_up_header_under_a_right_name_is_refused(tmp_path: Path) -> None:
    """Checksums and lengths are right, name and key are those of the prompt; the tokens are not."""
    told = Told()
    for tokens in (TOKENS[:256], TOKENS[:40]):
        with open_store(tmp_path / "s", notify=told) as store:
            (ref,) = put(store, tokens)
            header, _ = read_header(ref.path)
            other = pack_tokens([*tokens[:-1], 9])
            made_up = NewBlock(
                header.namespace, ref.key, ref.parent, ref.grandparent, 0, other, True, "", 1.0,
                {"attn": memoryview(b"poison")},
            )  # fmt: skip
            Path(ref.path).write_bytes(pack_header(made_up) + b"poison")
            assert store.match(FINGERPRINT, tokens).matched_tokens == 0
            assert store.match(FINGERPRINT, [*tokens[:-1], 9]).matched_tokens == 0
            assert not Path(ref.path).exists()


def test_a_file_replaced_after_the_look_up_is_read_by_its_own_header(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        (ref,) = put(store, [1, 2, 3])
        Path(ref.path).unlink()
        stored = store.put(FINGERPRINT, None, [1, 2, 3], {"more": b"x", "attn": b"other bytes"})
        assert stored.ref is not None
        assert stored.ref.key == ref.key
        assert bytes(store.read(ref, "attn")) == b"other bytes"


def test_a_block_evicted_after_the_look_up_is_a_miss_and_not_damage(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        (ref,) = put(store, [1, 2, 3])
        Path(ref.path).unlink()
        with pytest.raises(DamagedError, match="removed in the meantime") as caught:
            store.read(ref, "attn")
        assert not caught.value.removable


def test_an_unknown_version_is_a_miss_and_stays(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        (ref,) = put(store, [1, 2, 3])
        data = bytearray(Path(ref.path).read_bytes())
        data[8] = 2
        Path(ref.path).write_bytes(data)
        assert store.match(FINGERPRINT, [1, 2, 3]).matched_tokens == 0
        assert Path(ref.path).read_bytes() == data


def test_two_formats_live_side_by_side(tmp_path: Path) -> None:
    theirs = tmp_path / "s" / "v2" / "blocks" / "00"
    theirs.mkdir(parents=True)
    (theirs / f"{'0' * 64}-{'1' * 64}.kv").write_bytes(b"theirs")
    (tmp_path / "s" / "v2" / "index.sqlite").write_bytes(b"theirs")
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS)
        assert store.keeper().stats().blocks == 3
        store.keeper().clear()
    assert [file.read_bytes() for file in (tmp_path / "s" / "v2").rglob("*") if file.is_file()] == [b"theirs"] * 2


def test_a_hit_imports_and_opens_no_sqlite(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS)
    script = (
        "import sys; from pathlib import Path; from tests.cache_store_case import *\n"
        f"store = open_store(Path({str(tmp_path / 's')!r}))\n"
        "found = store.match(FINGERPRINT, list(range(600)))\n"
        "[store.read(ref, 'attn') for ref in found.blocks]\n"
        "print(found.matched_tokens, 'sqlite3' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "600 False\n"


def test_rates_and_notes_last(tmp_path: Path) -> None:
    with open_store(tmp_path / "s") as store:
        assert store.rates(FINGERPRINT) == Rates()
        store.learn_rates(FINGERPRINT, Rates(prefill_tok_s=100.0))
        store.learn_rates(FINGERPRINT, Rates(prefill_tok_s=300.0, restore_bytes_s=5e9))
        store.note(FINGERPRINT, {"self_test": "passed", "grid": 64})
    with open_store(tmp_path / "s") as store:
        assert store.rates(FINGERPRINT) == Rates(200.0, 5e9)
        assert store.notes(FINGERPRINT)["grid"] == 64


def test_mapped_parts_are_not_kept(tmp_path: Path) -> None:
    """Reading far more than is held at one time does not raise the peak of memory by as much."""
    with open_store(tmp_path / "s") as store:
        data = os.urandom(8 << 20)
        stored = store.put(FINGERPRINT, None, [1], {"attn": data})
        assert stored.ref is not None
        view = store.read(stored.ref, "attn")
        assert view == data
        del view
        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(20):
            store.read(stored.ref, "attn")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB; 160 MiB were read


def test_parts_may_be_any_buffer(tmp_path: Path) -> None:
    from array import array

    with open_store(tmp_path / "s") as store:
        parts: dict[str, BytesLike] = {
            "a": b"ab",
            "b": bytearray(b"cd"),
            "c": memoryview(array("f", [1.0]).tobytes()),
            "d": b"",
        }
        stored = store.put(FINGERPRINT, None, [1], parts)
        assert stored.ref is not None
        assert [bytes(store.read(stored.ref, name)) for name in "abcd"] == [b"ab", b"cd", b"\0\0\x80?", b""]


def test_an_abandoned_store_waits_for_nothing(tmp_path: Path) -> None:
    """A thread of it is stuck in a write: `close` takes no lock and leaves the marker; the next opening cleans up."""
    store = open_store(tmp_path / "s")
    put(store, list(range(100)))
    store.abandon()
    with store._context.index.writing():
        store.close()
    (marker,) = (tmp_path / "s" / "v1" / "writers").iterdir()
    temp = block_files(tmp_path / "s")[0].parent / f".tmp-{marker.name}-9"
    temp.touch()
    assert store.match(FINGERPRINT, list(range(100))).matched_tokens == 100
    store._context.index.close()
    store._context.writer.end(keep_marker=True)
    with open_store(tmp_path / "s") as again:
        assert again.match(FINGERPRINT, list(range(100))).matched_tokens == 100
        again.flush()
    assert (temp.exists(), list((tmp_path / "s" / "v1" / "writers").iterdir())) == (False, [])
