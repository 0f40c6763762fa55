"""Vocabularies that would bring a tokenizer of llama.cpp down."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.models.check_vocab import MAX_TOKEN_BYTES, MAX_TRIE_TOKEN_BYTES, _unescape_rwkv, check_vocabulary
from tests.fixtures.fuzz_bases import make_bases
from tests.fixtures.gguf_edit import ARRAY, BOOL, F32, I32, STRING, U32, Array, Gguf
from tests.fixtures.load_child import LoadChild
from tests.fixtures.small_models import keys_of

TOKENS = "tokenizer.ggml.tokens"


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gguf]:
    return make_bases(tmp_path_factory.mktemp("bases"))


def refused(model: Gguf, tmp_path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_vocabulary(keys_of(model, tmp_path))
    return caught.value.message


@pytest.mark.parametrize(
    ("base", "longest"),
    [
        ("scripted", 12),
        ("gpt2 tokenizer", 5),
        ("bert tokenizer", 7),
        ("rwkv tokenizer", 5),
        ("plamo2 tokenizer", 6),
        ("plain", 0),
    ],
)
def test_good_ones(bases: dict[str, Gguf], tmp_path: Path, base: str, longest: int) -> None:
    assert check_vocabulary(keys_of(bases[base], tmp_path)) == longest


def _token(index: int, text: bytes) -> Callable[[Gguf], object]:
    return lambda model: model.get(TOKENS).items.__setitem__(index, text)


@pytest.mark.parametrize(
    ("base", "damage", "expected"),
    [
        ("scripted", lambda m: m.drop("tokenizer.ggml.model"), "tokenizer.ggml.model is missing"),
        ("scripted", lambda m: m.u32("tokenizer.ggml.model", 1), "tokenizer.ggml.model is u32, expected a string"),
        ("scripted", lambda m: m.text("tokenizer.ggml.model", "word"), "tokenizer 'word' is not known"),
        ("scripted", lambda m: m.text("tokenizer.ggml.model", "t5"), "tokenizer is of the unigram kind"),
        ("scripted", lambda m: m.drop(TOKENS), "tokenizer.ggml.tokens has 0 tokens"),
        ("scripted", lambda m: m.set(TOKENS, ARRAY, Array(STRING, [])), "tokenizer.ggml.tokens has 0 tokens"),
        ("scripted", lambda m: m.set(TOKENS, ARRAY, Array(I32, [1])), "is an array of i32, expected an array of str"),
        ("scripted", lambda m: m.text(TOKENS, "x"), "tokenizer.ggml.tokens is str, expected an array of str"),
        ("scripted", _token(9, b"<s>"), "token 9 of its vocabulary, '<s>', is the same as token 1"),
        ("scripted", _token(262, b"<s>\0more"), "token 262 of its vocabulary, '<s>', is the same as token 1"),
        ("scripted", lambda m: (_token(261, b"")(m), _token(262, b"[EMPTY_261]")(m)), "is the same as token 261"),
        ("scripted", _token(3, b"no byte"), "no token for 1 of the 256 bytes, the first is 0x0"),
        ("scripted", _token(262, b"x" * (MAX_TOKEN_BYTES + 1)), "is 16385 bytes long, expected at most 16384"),
        (
            "scripted",
            lambda m: m.get("tokenizer.ggml.scores").items.pop(),
            "tokenizer.ggml.scores has 262 values, expected one for each of 263 tokens",
        ),
        (
            "scripted",
            lambda m: m.get("tokenizer.ggml.token_type").items.pop(),
            "tokenizer.ggml.token_type has 262 values",
        ),
        (
            "scripted",
            lambda m: m.set("tokenizer.ggml.token_type", ARRAY, Array(F32, [1.0] * 263)),
            "token_type is an array of f32, expected an array of i32",
        ),
        (
            "scripted",
            lambda m: m.u32("tokenizer.ggml.eos_token_id", 263),
            "eos_token_id is 263, but its vocabulary has 263",
        ),
        (
            "scripted",
            lambda m: m.set("tokenizer.ggml.add_bos_token", U32, 1),
            "add_bos_token is u32, expected a boolean",
        ),
        (
            "gpt2 tokenizer",
            lambda m: m.drop("tokenizer.ggml.bos_token_id").u32("tokenizer.ggml.bos_token_id", 0xFFFFFFFE),
            "bos_token_id is 4294967294",
        ),
        ("gpt2 tokenizer", lambda m: m.drop("tokenizer.ggml.merges"), "tokenizer.ggml.merges is missing"),
        (
            "gpt2 tokenizer",
            lambda m: m.set("tokenizer.ggml.merges", ARRAY, Array(I32, [1])),
            "merges is an array of i32, expected an array of str",
        ),
        (
            "bert tokenizer",
            lambda m: m.get("tokenizer.ggml.token_type").items.__setitem__(4, 6),
            "marks a byte token, which its tokenizer 'bert' has not",
        ),
        ("bert tokenizer", lambda m: m.u32("tokenizer.ggml.seperator_token_id", 999), "seperator_token_id is 999"),
        ("rwkv tokenizer", _token(11, b"\\nn"), "its vocabulary has no token for the byte 0x0a"),
        ("rwkv tokenizer", _token(1 + ord("w"), b"other"), "its vocabulary has no token for the byte 0x77"),
        ("rwkv tokenizer", _token(260, b"w" * (MAX_TRIE_TOKEN_BYTES + 1)), "is 2049 bytes long, expected at most 2048"),
        ("plamo2 tokenizer", _token(260, b"\xff"), "token 260 of its vocabulary is not UTF-8"),
        (
            "plamo2 tokenizer",
            lambda m: m.get("tokenizer.ggml.scores").items.__setitem__(0, math.nan),
            "tokenizer.ggml.scores holds a value that is not finite",
        ),
    ],
)
def test_bad_ones(
    bases: dict[str, Gguf], tmp_path: Path, base: str, damage: Callable[[Gguf], object], expected: str
) -> None:
    model = copy.deepcopy(bases[base])
    damage(model)
    assert expected in refused(model, tmp_path)


def _tiny(model: Gguf, tokenizer: str) -> Gguf:
    """A vocabulary that is too small for the default ids of its tokenizer."""
    changed = copy.deepcopy(model).text("tokenizer.ggml.model", tokenizer)
    for name in ("bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token", "add_eos_token"):
        changed.drop(f"tokenizer.ggml.{name}")
    changed.set(TOKENS, ARRAY, Array(STRING, [b"a", b"b"]))
    return changed.set("tokenizer.ggml.merges", ARRAY, Array(STRING, []))


def test_a_begin_token_that_is_added_has_to_exist(bases: dict[str, Gguf], tmp_path: Path) -> None:
    tiny = _tiny(bases["scripted"], "gpt2")
    assert check_vocabulary(keys_of(tiny, tmp_path)) == 1
    assert "its vocabulary has none (tokenizer.ggml.bos_token_id)" in refused(
        copy.deepcopy(tiny).set("tokenizer.ggml.add_bos_token", BOOL, True), tmp_path
    )
    assert "its vocabulary has none (tokenizer.ggml.eos_token_id)" in refused(
        copy.deepcopy(tiny).set("tokenizer.ggml.add_eos_token", BOOL, True), tmp_path
    )
    assert "tokenizer.ggml.bos_token_id" in refused(_tiny(bases["scripted"], "gemma4"), tmp_path)


@pytest.mark.parametrize("name", ["padding_token_id", "unknown_token_id", "eot_token_id", "mask_token_id"])
def test_other_ids_outside_are_left_to_the_library(bases: dict[str, Gguf], tmp_path: Path, name: str) -> None:
    # Real models have a padding token one past the end; llama.cpp warns and goes on.
    model = copy.deepcopy(bases["scripted"]).u32(f"tokenizer.ggml.{name}", 263)
    assert check_vocabulary(keys_of(model, tmp_path)) == 12
    with LoadChild() as child:
        assert child.load(tmp_path / "model.gguf") == "loaded"


def test_no_begin_token_may_be_said(bases: dict[str, Gguf], tmp_path: Path) -> None:
    model = copy.deepcopy(bases["gpt2 tokenizer"]).u32("tokenizer.ggml.bos_token_id", 0xFFFFFFFF)
    model.set("tokenizer.ggml.add_bos_token", BOOL, False)
    assert check_vocabulary(keys_of(model, tmp_path)) == 5


def test_bytes_as_characters_are_enough(bases: dict[str, Gguf], tmp_path: Path) -> None:
    model = copy.deepcopy(bases["scripted"])
    model.get(TOKENS).items[3 + 65] = b"A"
    assert check_vocabulary(keys_of(model, tmp_path)) == 12


def test_kimi_has_no_merges(bases: dict[str, Gguf], tmp_path: Path) -> None:
    model = copy.deepcopy(bases["gpt2 tokenizer"]).drop("tokenizer.ggml.merges").text("tokenizer.ggml.pre", "kimi-k2")
    assert check_vocabulary(keys_of(model, tmp_path)) == 5


@given(st.binary(max_size=40))
def test_rwkv_escapes(data: bytes) -> None:
    escaped = b"".join(b"\\x%02x" % byte for byte in data)
    assert _unescape_rwkv(escaped) == data
    assert _unescape_rwkv(b"\\t\\n\\r\\\\\\q") == b"\t\n\r\\q"
    assert _unescape_rwkv(b"a\\x4") == b"a"
