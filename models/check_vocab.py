"""The vocabulary: what llama.cpp's tokenizers assert on, loop on, or throw through the C interface.

Follows src/llama-vocab.cpp. A C++ exception that leaves a C function ends the process, so what is thrown while a
model is loaded is harmless (the loader catches it) and what is thrown while text is tokenized is not.
"""

from __future__ import annotations

import math

from llmcli.base.text import printable
from llmcli.models.facts import NO_VOCABULARY
from llmcli.models.gguf_keys import Keys

MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = 1 << 14
MAX_TRIE_TOKEN_BYTES = 1 << 11  # the trie of the RWKV tokenizer recurses once per byte
_BYTE, _TOKEN_TYPES = 6, "tokenizer.ggml.token_type"

# tokenizer.ggml.model -> default ids of the begin and the end token (None: no default).
_TOKENIZERS: dict[str, tuple[int | None, int | None]] = {
    "llama": (1, 2),
    "gpt2": (11, 11),
    "hybriddna": (11, 11),
    "whitespace": (11, 11),
    "gemma4": (None, None),
    "bert": (101, None),
    "rwkv": (None, None),
    "plamo2": (1, 2),
}
# Whether the begin token is put in front where the file does not say.
_ADDS_BOS = frozenset({"llama", "bert", "gemma4"})
_BPE = frozenset({"gpt2", "hybriddna", "whitespace", "gemma4"})
# Used by encoders and encoder-decoders alone; its normalization table would have to be walked to be trusted.
_UNIGRAM = "t5"
_NONE_ID = 0xFFFFFFFF  # what writers put for "no such token"


def check_vocabulary(keys: Keys) -> int:
    """Refuse a vocabulary that would bring llama.cpp down; the length of its longest token in bytes."""
    model = keys.text("tokenizer.ggml.model")
    if model is None:
        keys.fail("tokenizer.ggml.model is missing")
    if model in NO_VOCABULARY:
        return 0
    if model == _UNIGRAM:
        keys.fail("its tokenizer is of the unigram kind, which only embedding and encoder-decoder models use")
    if model not in _TOKENIZERS:
        keys.fail(f"its tokenizer {printable(model[:64])!r} is not known to this build of llama.cpp")
    tokens, distinct = _tokens(keys)
    _check_types(keys, model, len(tokens))
    scores = keys.array("tokenizer.ggml.scores", "f32", "i32")
    if scores is not None and scores.count < len(tokens):
        keys.fail(f"tokenizer.ggml.scores has {scores.count} values, expected one for each of {len(tokens)} tokens")
    without_merges = model == "gpt2" and keys.text("tokenizer.ggml.pre") == "kimi-k2"
    if model in _BPE and not without_merges and keys.array("tokenizer.ggml.merges", "str") is None:
        keys.fail("tokenizer.ggml.merges is missing")
    _check_reachable(keys, model, tokens, distinct)
    _check_special(keys, model, len(tokens))
    longest = max(map(len, tokens))
    limit = MAX_TRIE_TOKEN_BYTES if model == "rwkv" else MAX_TOKEN_BYTES
    if longest > limit:
        keys.fail(f"a token of its vocabulary is {longest} bytes long, expected at most {limit}")
    return longest


def _tokens(keys: Keys) -> tuple[list[bytes], set[bytes]]:
    """The tokens as llama.cpp has them: cut at a NUL, an empty one named. It asserts that no two are equal."""
    array = keys.array("tokenizer.ggml.tokens", "str")
    if array is None or not 0 < array.count <= MAX_TOKENS:
        keys.fail(f"tokenizer.ggml.tokens has {array.count if array else 0} tokens, expected 1 to {MAX_TOKENS}")
    tokens = array.strings()
    if not all(tokens) or b"\0" in b"".join(tokens):
        tokens = [token.split(b"\0", 1)[0] or b"[EMPTY_%d]" % index for index, token in enumerate(tokens)]
    distinct = set(tokens)
    if len(distinct) != len(tokens):
        first: dict[bytes, int] = {}
        for index, token in enumerate(tokens):
            if (earlier := first.setdefault(token, index)) != index:
                text = printable(token[:40].decode("utf-8", "replace"))
                keys.fail(f"token {index} of its vocabulary, {text!r}, is the same as token {earlier}")
    return tokens, distinct


def _check_types(keys: Keys, model: str, count: int) -> None:
    types = keys.array(_TOKEN_TYPES, "i32")
    if types is None:
        return
    if types.count < count:
        keys.fail(f"{_TOKEN_TYPES} has {types.count} values, expected one for each of {count} tokens")
    # Aborts in token_to_byte, which knows no byte tokens for this tokenizer.
    if model == "bert" and _BYTE in types.values()[:count]:
        keys.fail(f"{_TOKEN_TYPES} marks a byte token, which its tokenizer {model!r} has not")


def _check_reachable(keys: Keys, model: str, tokens: list[bytes], known: set[bytes]) -> None:
    """Each byte that a text may hold has a way through the vocabulary."""
    if model == "llama":
        # A character that no token covers is written as bytes; a byte without a token is thrown through the C API.
        missing = [byte for byte in range(256) if b"<0x%02X>" % byte not in known and bytes([byte]) not in known]
        if missing:
            keys.fail(
                f"its vocabulary has no token for {len(missing)} of the 256 bytes, the first is {missing[0]:#04x}"
            )
    elif model == "rwkv":
        # The longest match starts at 0 again, for ever, where a token's first byte is not a token itself.
        plain = {_unescape_rwkv(token) for token in tokens}
        missing_starts = {token[:1] for token in plain if token} - plain
        if missing_starts or b"\n" not in plain:
            keys.fail(f"its vocabulary has no token for the byte {min(missing_starts, default=bytes([10]))[0]:#04x}")
    elif model == "plamo2":
        _check_plamo2(keys, tokens)


def _check_plamo2(keys: Keys, tokens: list[bytes]) -> None:
    """Its tokenizer builds a table over the characters of all tokens and follows the lengths in it unchecked."""
    for index, token in enumerate(tokens):
        try:
            token.decode("utf-8")
        except UnicodeDecodeError:
            keys.fail(f"token {index} of its vocabulary is not UTF-8")
    scores = keys.array("tokenizer.ggml.scores", "f32", "i32")
    if scores is not None and not all(map(math.isfinite, scores.values())):
        keys.fail("tokenizer.ggml.scores holds a value that is not finite")


def _unescape_rwkv(token: bytes) -> bytes:
    """A token of the RWKV vocabulary as the bytes it stands for (llama_unescape_rwkv_token, arithmetic included)."""
    out, escaping, digits, value = bytearray(), False, 0, 0
    for byte in token:
        if digits:
            value = (value << 4) + (byte - 87 if byte >= 97 else byte - 48) & 0xFF
            digits -= 1
            if not digits:
                out.append(value)
                value = 0
        elif escaping:
            escaping = False
            if byte == ord("x"):
                digits = 2
            else:
                out.append({ord("t"): 9, ord("n"): 10, ord("r"): 13}.get(byte, byte))
        elif byte == ord("\\"):
            escaping = True
        else:
            out.append(byte)
    return bytes(out)


def _check_special(keys: Keys, model: str, count: int) -> None:
    """Begin and end token lie inside the vocabulary, and those that are added to a text exist (both are asserted).

    The other special ids are left: llama.cpp ignores one outside, and real models have such a padding token.
    """
    bos, eos = _TOKENIZERS[model]
    bos = _special(keys, "tokenizer.ggml.bos_token_id", bos, count)
    eos = _special(keys, "tokenizer.ggml.eos_token_id", eos, count)
    adds_bos = keys.flag("tokenizer.ggml.add_bos_token")
    if (model in _ADDS_BOS if adds_bos is None else adds_bos or model in {"gemma4", "bert"}) and bos is None:
        keys.fail("it puts a begin token before a text, but its vocabulary has none (tokenizer.ggml.bos_token_id)")
    if keys.flag("tokenizer.ggml.add_eos_token") and eos is None:
        keys.fail("it puts an end token behind a text, but its vocabulary has none (tokenizer.ggml.eos_token_id)")
    if model == "bert" and _special(keys, "tokenizer.ggml.seperator_token_id", 102, count) is None:
        keys.fail("its tokenizer 'bert' needs a separator token (tokenizer.ggml.seperator_token_id)")


def _special(keys: Keys, key: str, default: int | None, count: int) -> int | None:
    value = keys.integer(key)
    if value is not None and value != _NONE_ID:
        if value >= count:
            keys.fail(f"{key} is {value}, but its vocabulary has {count} tokens")
        return value
    return default if default is not None and default < count else None
