"""Texts cut into windows as llama.cpp's tools cut them, and the two texts that ship with the package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import UsageError
from llmcli.engine.model import Model
from llmcli.engine.tokenizer import Tokenizer
from llmcli.quant.corpus import CALIBRATION, EVALUATION, Text, check_window, cut, pieces, shipped

BYTE0, BOS = 3, 1


@pytest.fixture(scope="module")
def plain(scripted_model: Callable[..., Path]) -> Iterator[Tokenizer]:
    with Model.load_vocabulary(scripted_model(["Hello"])) as model:
        yield model.tokenizer


@pytest.fixture(scope="module")
def with_bos(scripted_model: Callable[..., Path]) -> Iterator[Tokenizer]:
    with Model.load_vocabulary(scripted_model(["Hello"], add_bos=True)) as model:
        yield model.tokenizer


def letters(count: int) -> Text:
    return Text("a.txt", "".join(chr(ord("a") + i % 26) for i in range(count)))


def ids(text: str) -> list[int]:
    return [BYTE0 + byte for byte in text.encode()]


def test_windows_lie_one_behind_the_other_and_the_rest_is_left(plain: Tokenizer) -> None:
    text = letters(100)
    windows = cut(text, plain, 32)
    assert windows.count == 3
    assert [windows.window(i) for i in range(3)] == [ids(text.text[i * 32 : i * 32 + 32]) for i in range(3)]


def test_bos_comes_before_the_text_and_replaces_the_first_token_of_each_window(with_bos: Tokenizer) -> None:
    text = letters(63)
    windows = cut(text, with_bos, 32)  # 64 tokens with BOS
    assert windows.count == 2
    assert windows.window(0) == [BOS, *ids(text.text[:31])]
    assert windows.window(1) == [BOS, *ids(text.text[32:63])]


def test_most_and_skip(plain: Tokenizer) -> None:
    text = letters(200)
    windows = cut(text, plain, 32, most=2, skip=3)
    assert windows.count == 2
    assert windows.window(0) == ids(text.text[96:128])


@pytest.mark.parametrize("line", ["word by word\n", "no end "])
def test_of_a_long_text_only_the_beginning_is_read(
    with_bos: Tokenizer, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Text("long", line * 4000)
    whole = cut(text, with_bos, 32)
    read: list[int] = []
    real = Tokenizer.tokenize

    def tokenize(self: Tokenizer, part: str, *, parse_special: bool) -> list[int]:
        read.append(len(part))
        return real(self, part, parse_special=parse_special)

    monkeypatch.setattr(Tokenizer, "tokenize", tokenize)
    few = cut(text, with_bos, 32, most=20, skip=3)
    assert few.count == 20
    assert [few.window(i) for i in range(20)] == [whole.window(3 + i) for i in range(20)]
    assert len(read) == 1
    assert read[0] <= 8 * 23 * 32


def test_control_tokens_are_text_unless_asked_for(plain: Tokenizer) -> None:
    text = Text("x", "<|im_end|>" * 16)
    assert cut(text, plain, 32).count == 5
    with pytest.raises(UsageError, match="has 16 tokens, and a window needs 32"):
        cut(text, plain, 32, parse_special=True)


def test_a_short_text_is_refused_with_both_numbers(plain: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"^a\.txt has 40 tokens, and a window needs 64$") as caught:
        cut(letters(40), plain, 64)
    assert caught.value.hint == "a longer text, or -c 40"
    with pytest.raises(UsageError, match="has 0 tokens, and a window needs 64") as caught:
        cut(Text("empty", ""), plain, 64)
    assert caught.value.hint == "a longer text"
    with pytest.raises(UsageError, match="has 8 tokens behind the first 3 windows, and"):
        cut(letters(200), plain, 64, skip=3)


def test_a_window_has_at_least_32_tokens(plain: Tokenizer) -> None:
    check_window(32)
    with pytest.raises(UsageError, match="-c 31 is too short"):
        cut(letters(100), plain, 31)


@given(count=st.integers(1, 2000), most=st.integers(1, 600))
def test_pieces_cover_everything_once(count: int, most: int) -> None:
    found = list(pieces(count, most))
    assert [position for start, end in found for position in range(start, end)] == list(range(count))
    assert all(end - start == most for start, end in found[:-1])


def test_the_two_texts_ship_and_share_no_line() -> None:
    calibration, evaluation = shipped(CALIBRATION), shipped(EVALUATION)
    assert (calibration.name, evaluation.name) == ("calibration.txt", "evaluation.txt")
    long_lines = [{line for line in text.text.splitlines() if len(line) > 40} for text in (calibration, evaluation)]
    assert min(map(len, long_lines)) > 60
    assert long_lines[0] & long_lines[1] == set()


def test_the_texts_are_part_of_the_package() -> None:
    project = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert '"llmcli.quant" = ["*.txt"]' in project


def test_the_calibration_text_has_many_scripts_and_code() -> None:
    import unicodedata

    text = shipped(CALIBRATION).text
    scripts = {unicodedata.name(ch).split()[0] for ch in text if ch.isalpha()}
    assert {
        "LATIN",
        "CYRILLIC",
        "GREEK",
        "ARABIC",
        "HEBREW",
        "DEVANAGARI",
        "THAI",
        "HANGUL",
        "HIRAGANA",
        "CJK",
    } <= scripts
    for sign in ("#include <stdio.h>", "SELECT ", "def ", "fn main()", "\\begin{proof}", "<html"):
        assert sign in text


def test_a_text_is_told_by_its_bytes() -> None:
    assert Text("a", "x").sha256 == Text("b", "x").sha256 != Text("a", "y").sha256
    assert len(Text("a", "\udcff").sha256) == 64
