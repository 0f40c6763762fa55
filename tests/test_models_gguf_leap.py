"""Headers that are skimmed: the same facts as the careful reader, whatever stands in the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.models.gguf_header import GgufHeader, read_header, skim_header
from llmcli.models.gguf_source import CutOffError, Source
from llmcli.models.gguf_values import GgufArray
from tests.fixtures.gguf_edit import ARRAY, I32, STRING, Array, Gguf
from tests.library_case import tiny


def with_vocabulary(words: list[bytes], *, last: bool = False) -> Gguf:
    """The words between other keys; `last`: nothing behind them."""
    model = tiny().set("tokenizer.ggml.tokens", ARRAY, Array(STRING, words))
    if not last:
        model.set("tokenizer.ggml.token_type", ARRAY, Array(I32, [1] * len(words)))
        model.u32("tokenizer.ggml.bos_token_id", 1)
    return model


def outline(header: GgufHeader) -> object:
    """Everything but the contents of arrays."""
    kept = {k: (v.item_type, v.count) if isinstance(v, GgufArray) else v for k, v in header.metadata.items()}
    return kept, header.value_types, header.tensors, header.data_offset, header.alignment, header.file_bytes


def same(model: Gguf, path: Path, *, buffer: bytearray | None = None) -> None:
    model.write(path)
    assert outline(skim_header(path, buffer=buffer)) == outline(read_header(path))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 5000, 60_000])
@pytest.mark.parametrize("last", [False, True])
def test_a_vocabulary_of_any_size(tmp_path: Path, count: int, last: bool) -> None:
    same(with_vocabulary([b"word%d" % n for n in range(count)], last=last), tmp_path / "m.gguf")


def with_merges(words: list[bytes]) -> Gguf:
    """Strings, numbers, strings again: the search must not take the second for the end of the first."""
    model = with_vocabulary(words)
    merges = [b" ".join((word[:3], word[3:])) for word in words]
    return model.set("tokenizer.ggml.merges", ARRAY, Array(STRING, merges)).u32("tokenizer.ggml.eos_token_id", 2)


@pytest.mark.parametrize("length", [2, 6, 12, 30])
@pytest.mark.parametrize("count", [300, 5000, 40_000])
def test_merges_behind_the_vocabulary(tmp_path: Path, count: int, length: int) -> None:
    same(with_merges([b"%d" % n + b"w" * length for n in range(count)]), tmp_path / "m.gguf")


def test_little_of_a_vocabulary_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [b"w" * (n % 17 + 1) for n in range(100_000)]
    path = with_merges(words).write(tmp_path / "m.gguf")
    read: list[int] = []
    fill, read_at = Source._fill, Source.read_at

    def counting_fill(source: Source, start: int, end: int) -> int:
        read.append(end - start)
        return fill(source, start, end)

    def counting_read(source: Source, offset: int, count: int) -> bytes:
        read.append(count)
        return read_at(source, offset, count)

    monkeypatch.setattr(Source, "_fill", counting_fill)
    monkeypatch.setattr(Source, "read_at", counting_read)
    skimmed = skim_header(path)
    assert outline(skimmed) == outline(read_header(path))
    read.clear()
    skim_header(path)
    assert sum(read) < skimmed.data_offset / 15
    assert len(read) < 40


# A length in front of a text that begins like a key, and a type behind it: what the search takes for a key.
DECOY = (23).to_bytes(8, "little") + b"tokenizer.ggml.decoy_id" + (4).to_bytes(4, "little") + b"\1\0\0\0"


@pytest.mark.parametrize("at", [0, 1, 300, 511])
@pytest.mark.parametrize("word", [DECOY, b"general.architecture", b"x" + DECOY * 3, b"\0" * 60 + DECOY])
def test_words_that_look_like_keys_mislead_nobody(tmp_path: Path, at: int, word: bytes) -> None:
    words = [b"w%d" % n for n in range(512)]
    words[at] = word
    same(with_vocabulary(words), tmp_path / "m.gguf")
    same(with_vocabulary(words, last=True), tmp_path / "n.gguf")


@settings(max_examples=30, deadline=None)
@given(words=st.lists(st.binary(max_size=40), min_size=256, max_size=300))
def test_any_words(tmp_path_factory: pytest.TempPathFactory, words: list[bytes]) -> None:
    same(with_vocabulary(words), tmp_path_factory.mktemp("leap") / "m.gguf")


class CountingBuffer(bytearray):
    """Counts the bytes that are cut out of it."""

    cut_bytes = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.cut_bytes += len(found) if isinstance(index, slice) else 1
        return found


def test_words_that_claim_gigabytes(tmp_path: Path) -> None:
    """None of them is cut out of the megabytes that a leap over an earlier vocabulary has made room for."""
    liar = (0x7FFFFFFF).to_bytes(8, "little") + b"tokenizer.ggml."
    model = tiny().set("tokenizer.ggml.other", ARRAY, Array(STRING, [b""] * 100_000))
    model.set("tokenizer.ggml.tokens", ARRAY, Array(STRING, [liar] * 2000)).u32("tokenizer.ggml.bos_token_id", 1)
    buffer = CountingBuffer()
    skim_header(model.write(tmp_path / "m.gguf"), buffer=buffer)
    assert len(buffer) > 500_000
    assert buffer.cut_bytes < 10_000
    same(model, tmp_path / "m.gguf")


def test_a_vocabulary_with_nothing_behind_it_is_not_leapt_over(tmp_path: Path) -> None:
    """What a leap finds is checked by what follows; without tensors nothing does."""
    words = [b"w%d" % n for n in range(600)]
    words[590:592] = [b"general.name", b"four"]  # the length of the second would do as a type
    model = with_vocabulary(words, last=True)
    model.tensors.clear()
    same(model, tmp_path / "m.gguf")


def test_one_buffer_for_many_files(tmp_path: Path) -> None:
    buffer = bytearray()
    for count in (60_000, 3, 5000, 0):  # what a longer header left behind a shorter one means nothing
        same(with_vocabulary([b"word%d" % n for n in range(count)]), tmp_path / "m.gguf", buffer=buffer)


def test_a_file_that_is_cut_is_told_as_by_the_careful_reader(tmp_path: Path) -> None:
    data = with_vocabulary([b"word%d" % n for n in range(5000)]).dump()
    for size in (10, 200, len(data) // 2, len(data) - 100):
        path = tmp_path / "m.gguf"
        path.write_bytes(data[:size])
        with pytest.raises(CutOffError) as skimmed:
            skim_header(path)
        with pytest.raises(CutOffError) as careful:
            read_header(path)
        assert skimmed.value.message == careful.value.message


def test_what_is_no_gguf_file_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(ModelError, match="an HTML page"):
        skim_header(path)


@pytest.mark.parametrize("key", ["general.file_name", "quantize.imatrix.file", "split.tag", "tokenizer.chat_template"])
def test_any_of_the_usual_keys_may_follow(tmp_path: Path, key: str) -> None:
    words = [b"word%d" % n for n in range(5000)]
    model = tiny().set("tokenizer.ggml.tokens", ARRAY, Array(STRING, words)).text(key, "x")
    same(model, tmp_path / "m.gguf")
    same(model.u32("tokenizer.ggml.bos_token_id", 1), tmp_path / "n.gguf")


@pytest.mark.parametrize("size", [0, 1, 90, 200])
def test_words_of_an_unusual_length(tmp_path: Path, size: int) -> None:
    same(with_vocabulary([b"w" * size] * 3000), tmp_path / "m.gguf")
