"""A GGUF model of one tensor type, to time: two layers of a llama, its weights without meaning, no vocabulary."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from llmcli.engine.type_error import stored
from llmcli.models.gguf_types import TYPE_IDS
from llmcli.models.sniff import MAGIC

WIDTH, FF, LAYERS, HEAD, VOCAB = 1024, 3072, 2, 64, 64
WEIGHTS = LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * FF)  # those of the type; the rest is small
_ALIGNMENT = 32
_U32, _F32, _STRING = 4, 6, 8
_SAMPLE_ROWS = 8


def write_rate_model(path: Path, tensor_type: str) -> None:
    """Write the model. Every matrix repeats a few rows: only the time it takes counts."""
    kind = TYPE_IDS[tensor_type]
    sample = np.random.default_rng(0).standard_normal((_SAMPLE_ROWS, FF), dtype=np.float32) * np.float32(0.02)
    rows = {width: stored(sample[:, :width], kind, np.ones(width, np.float32)) for width in (WIDTH, FF)}
    tensors = list(_tensors(rows, kind))
    with open(path, "wb") as out:
        out.write(_header(tensors))
        for _, _, _, data in tensors:
            out.write(b"\0" * (-out.tell() % _ALIGNMENT))
            out.write(data)
        out.write(b"\0" * (-out.tell() % _ALIGNMENT))


def _tensors(rows: dict[int, bytes], kind: int) -> Iterator[tuple[str, tuple[int, ...], int, bytes]]:
    def matrix(name: str, width: int, count: int) -> tuple[str, tuple[int, ...], int, bytes]:
        return name, (width, count), kind, rows[width] * (count // _SAMPLE_ROWS)

    def ones(name: str) -> tuple[str, tuple[int, ...], int, bytes]:
        return name, (WIDTH,), TYPE_IDS["F32"], np.ones(WIDTH, "<f4").tobytes()

    small = np.random.default_rng(1).standard_normal((VOCAB, WIDTH)).astype("<f4").tobytes()
    yield "token_embd.weight", (WIDTH, VOCAB), TYPE_IDS["F32"], small
    yield ones("output_norm.weight")
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        yield ones(at + "attn_norm.weight")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield matrix(f"{at}{part}.weight", WIDTH, WIDTH)
        yield ones(at + "ffn_norm.weight")
        yield matrix(at + "ffn_gate.weight", WIDTH, FF)
        yield matrix(at + "ffn_up.weight", WIDTH, FF)
        yield matrix(at + "ffn_down.weight", FF, WIDTH)


def _header(tensors: list[tuple[str, tuple[int, ...], int, bytes]]) -> bytes:
    keys = [
        _key("general.architecture", _STRING, _text("llama")),
        _key("llama.context_length", _U32, struct.pack("<I", 512)),
        _key("llama.embedding_length", _U32, struct.pack("<I", WIDTH)),
        _key("llama.block_count", _U32, struct.pack("<I", LAYERS)),
        _key("llama.feed_forward_length", _U32, struct.pack("<I", FF)),
        _key("llama.attention.head_count", _U32, struct.pack("<I", WIDTH // HEAD)),
        _key("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _key("llama.rope.dimension_count", _U32, struct.pack("<I", HEAD)),
        _key("llama.vocab_size", _U32, struct.pack("<I", VOCAB)),
        _key("tokenizer.ggml.model", _STRING, _text("no_vocab")),
    ]
    out = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys))
    offset = 0
    for name, shape, kind, data in tensors:
        out += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        offset += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
    return bytes(out)


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + struct.pack("<I", kind) + value


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()
