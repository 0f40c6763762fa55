from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.cache_store.block_format import (
    MAX_HEADER_BYTES,
    DamagedError,
    NewBlock,
    check_part,
    pack_header,
    parse_header,
    stated_file_bytes,
)
from llmcli.cache_store.keys import NO_KEY, Key, Namespace, pack_tokens

NAMESPACE = Namespace(b"f" * 32, b"s" * 32)


def new_block(tokens: list[int], parts: dict[str, bytes], preview: str = "", start: int = 0) -> NewBlock:
    packed = pack_tokens(tokens)
    parent = Key(b"p" * 32) if start else NAMESPACE.root
    return NewBlock(
        NAMESPACE, NAMESPACE.key(parent, packed, exact=True), parent, Key(b"g" * 32) if start else NO_KEY, start,
        packed, True, preview, 1.5, {name: memoryview(data) for name, data in parts.items()},
    )  # fmt: skip


def file_of(block: NewBlock) -> bytes:
    return pack_header(block) + b"".join(bytes(part) for part in block.parts.values())


BLOCK = new_block([1, 2, 3], {"attn": b"rows" * 20, "state": b"s"}, "Once upon", start=256)
FILE = file_of(BLOCK)


def resealed(data: bytes, header_bytes: int) -> bytes:
    """The file with its header's checksum made right again: what an attacker would write."""
    return data[: header_bytes - 16] + xxhash.xxh3_128_digest(data[: header_bytes - 16]) + data[header_bytes:]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=256),
    st.dictionaries(st.sampled_from(["attn", "window", "state", "a" * 16]), st.binary(max_size=300), max_size=4),
    st.text(max_size=700),
    st.integers(0, 2**32 - 1),
)
def test_round_trip(tokens: list[int], parts: dict[str, bytes], preview: str, start: int) -> None:
    block = new_block(tokens, parts, preview, start)
    data = file_of(block)
    header = parse_header(data[:MAX_HEADER_BYTES], len(data), "f")
    assert header.header_bytes % 64 == 0
    assert header.header_bytes <= MAX_HEADER_BYTES
    assert (header.key, header.parent, header.grandparent) == (block.key, block.parent, block.grandparent)
    assert (header.tokens, header.start_tokens, header.exact, header.created_s) == (block.tokens, start, True, 1.5)
    assert header.namespace == NAMESPACE
    assert header.key_is_its_own()
    assert preview.encode("utf-8", "replace").startswith(header.preview.rstrip("�").encode())
    for name, wanted in parts.items():
        entry = header.parts[name]
        check_part(memoryview(data)[entry.offset : entry.offset + entry.nbytes], entry, "f")
        assert data[entry.offset : entry.offset + entry.nbytes] == wanted
    assert list(header.parts) == list(parts)
    assert stated_file_bytes(data) == len(data)


def test_the_header_costs_little() -> None:
    assert len(pack_header(new_block(list(range(256)), {"attn": b"", "window": b"", "state": b""}, "x" * 200))) == 1600


def test_every_flipped_byte_of_the_header_is_noticed() -> None:
    header = parse_header(FILE, len(FILE), "f")
    for position in range(header.header_bytes):
        for bit in (1, 0x80):
            bad = bytearray(FILE)
            bad[position] ^= bit
            with pytest.raises(DamagedError):
                parse_header(bytes(bad), len(bad), "f")


def test_every_flipped_byte_of_a_part_is_noticed() -> None:
    header = parse_header(FILE, len(FILE), "f")
    for entry in header.parts.values():
        for position in range(entry.nbytes):
            bad = bytearray(FILE[entry.offset : entry.offset + entry.nbytes])
            bad[position] ^= 4
            with pytest.raises(DamagedError, match="checksum"):
                check_part(memoryview(bad), entry, "f")


def test_every_truncation_is_noticed() -> None:
    for length in range(len(FILE)):
        with pytest.raises(DamagedError):
            parse_header(FILE[:length], length, "f")


def test_trailing_bytes_are_noticed() -> None:
    with pytest.raises(DamagedError, match="expected"):
        parse_header(FILE, len(FILE) + 1, "f")


# offsets in the fixed part: header_bytes at 12, file_bytes at 16, n_tokens at 188, n_parts at 190, preview at 192
@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (12, struct.pack("<I", 2**32 - 1)),
        (12, struct.pack("<I", 0)),
        (188, struct.pack("<H", 0)),
        (188, struct.pack("<H", 65535)),
        (190, b"\xff"),
        (191, b"\x82"),
        (192, struct.pack("<H", 65535)),
        (16, struct.pack("<Q", 2**64 - 1)),
        (202 + 16, struct.pack("<Q", 0)),
        (202 + 24, struct.pack("<Q", 2**63)),
        (202 + 24, struct.pack("<Q", 79)),
        (202 + 48, b"attn" + bytes(12)),
    ],
)
def test_hostile_counts_with_a_right_checksum(offset: int, value: bytes) -> None:
    header = parse_header(FILE, len(FILE), "f")
    bad = FILE[:offset] + value + FILE[offset + len(value) :]
    with pytest.raises(DamagedError):
        parse_header(resealed(bad, header.header_bytes), len(bad), "f")


def test_a_huge_sparse_file_is_refused_before_anything_is_read() -> None:
    size = 1 << 40
    bad = FILE[:16] + struct.pack("<Q", size) + FILE[24:]
    with pytest.raises(DamagedError, match="expected 4294967296"):
        parse_header(resealed(bad, parse_header(FILE, len(FILE), "f").header_bytes), size, "f")


@settings(deadline=None)
@given(st.binary(max_size=600))
def test_noise_is_damaged(noise: bytes) -> None:
    for data in (noise, FILE[:8] + noise, FILE[:200] + noise):
        with pytest.raises(DamagedError):
            parse_header(data, len(data), "f")


def test_another_version_is_left_for_its_owner() -> None:
    with pytest.raises(DamagedError, match="format 2, this llmcli reads 1") as caught:
        parse_header(FILE[:8] + struct.pack("<I", 2) + FILE[12:], len(FILE), "f")
    assert not caught.value.removable


def test_a_made_up_key_is_not_its_own() -> None:
    header = parse_header(FILE, len(FILE), "f")
    bad = resealed(FILE[:24] + b"k" * 32 + FILE[56:], header.header_bytes)
    assert header.key_is_its_own()
    assert not parse_header(bad, len(bad), "f").key_is_its_own()


def test_what_the_format_cannot_hold() -> None:
    for tokens, parts in (([], {}), ([1] * 257, {}), ([1], {str(n): b"" for n in range(9)}), ([1], {"n" * 17: b""})):
        with pytest.raises(ValueError, match=r"block of|part name"):
            pack_header(new_block(tokens, parts))
