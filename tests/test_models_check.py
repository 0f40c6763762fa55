"""What is let through to llama.cpp, and what is refused with which words: other files, and hostile ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models import architectures as arch
from llmcli.models.check import check_model
from tests.fixtures.fuzz_bases import make_bases
from tests.fixtures.gguf_edit import Gguf
from tests.fixtures.load_child import LoadChild


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gguf]:
    return make_bases(tmp_path_factory.mktemp("bases"))


@pytest.fixture
def model(bases: dict[str, Gguf]) -> Gguf:
    return copy.deepcopy(bases["scripted"])


def refused(model: Gguf, tmp_path: Path) -> str:
    path = model.write(tmp_path / "model.gguf")
    with pytest.raises(ModelError) as caught:
        check_model(path)
    assert caught.value.exit_code == 3
    assert caught.value.message.isprintable()
    return caught.value.message.replace(str(path), "FILE")


def test_a_good_model(scripted_model: Callable[..., Path]) -> None:
    facts = check_model(scripted_model(["Hello", " world"]))
    assert (facts.architecture, facts.n_layer, facts.n_vocab, facts.n_ctx_train) == ("llama", 1, 263, 512)
    assert facts.longest_token_bytes == len("<|im_start|>")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("general.type", "mmproj", "is a vision or audio projector (mmproj)"),
        ("general.type", "imatrix", "is an importance matrix, not a model"),
        ("general.type", "adapter", "is a LoRA adapter, not a model"),
        ("general.type", "vocab", "is a vocabulary without a model"),
        ("general.architecture", "clip", "is a vision or audio projector (mmproj)"),
        ("general.architecture", "controlvector", "is a control vector, not a model"),
        ("general.architecture", "bert", "is an embedding model: it turns text into vectors and cannot write text"),
        ("general.architecture", "t5", "is an encoder-decoder model, which llmcli cannot run"),
        ("general.architecture", "llada", "is a diffusion language model"),
        ("general.architecture", "eagle3", "is a draft model"),
        ("general.architecture", "gptj", "of the GPT-J architecture, which llama.cpp names but does not implement"),
        (
            "general.architecture",
            "llama9",
            "has the architecture 'llama9', which this build of llama.cpp does not know",
        ),
        ("general.architecture", "\x1b[31m", r"has the architecture '\\x1b[31m', which"),
        ("general.architecture", "llama\0x", "general.architecture holds a NUL byte"),
        ("general.architecture", "", "general.architecture is missing"),
    ],
)
def test_files_that_are_something_else(model: Gguf, tmp_path: Path, key: str, value: str, expected: str) -> None:
    assert expected in refused(model.text(key, value), tmp_path)


@pytest.mark.parametrize("name", sorted(arch.NOT_FOR_TEXT))
def test_no_architecture_without_text_gets_through(model: Gguf, tmp_path: Path, name: str) -> None:
    assert arch.NOT_FOR_TEXT[name] in refused(model.text("general.architecture", name), tmp_path)


def test_a_real_importance_matrix(tmp_path: Path) -> None:
    # Newer ones have general.type; the first of the format have their counters alone.
    model = Gguf().u32("imatrix.chunk_count", 3).u32("imatrix.chunk_size", 512)
    assert refused(model, tmp_path) == "FILE is an importance matrix, not a model"


def test_an_old_adapter(tmp_path: Path) -> None:
    model = Gguf().text("general.architecture", "llama").text("adapter.type", "lora")
    assert refused(model, tmp_path) == "FILE is a LoRA adapter, not a model"


def test_a_vocabulary_alone(model: Gguf, tmp_path: Path) -> None:
    model.tensors.clear()
    assert "it has no tensors, only a vocabulary or metadata" in refused(model, tmp_path)


def test_a_model_without_a_tokenizer(random_model: Callable[[str], Path]) -> None:
    path = random_model("plain")
    with pytest.raises(ModelError, match="has no tokenizer"):
        check_model(path)
    assert check_model(path, need_vocabulary=False).has_vocabulary is False


def test_a_file_in_place_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"<!DOCTYPE html><html><head>")
    with pytest.raises(ModelError, match="is an HTML page"):
        check_model(path)


def _kv_heads(model: Gguf, count: int) -> None:
    """Another number of KV heads, with weights that fit it."""
    model.u32("llama.attention.head_count_kv", count)
    for part in ("k", "v"):
        tensor = model.tensor(f"blk.0.attn_{part}.weight")
        tensor.shape[1] = 32 * count
        tensor.data = tensor.data[: 4 * tensor.shape[0] * tensor.shape[1]]


def _alignment(model: Gguf, alignment: int) -> None:
    model.alignment = alignment
    model.u32("general.alignment", alignment)


# What brought llama.cpp down in a child process before it was refused here: a name, the base, the damage.
Damage = Callable[[Gguf], object]
FATAL: dict[str, tuple[str, Damage]] = {
    "two equal tokens": ("scripted", lambda m: m.get("tokenizer.ggml.tokens").items.__setitem__(5, b"<s>")),
    "a billion layers": ("scripted", lambda m: m.u32("llama.block_count", 10**9)),
    "no layers": ("scripted", lambda m: m.u32("llama.block_count", 0)),
    "more used than there are": ("experts", lambda m: m.u32("llama.expert_used_count", 5)),
    "no experts used": ("experts", lambda m: m.u32("llama.expert_used_count", 0)),
    "unknown rope scaling": ("scripted", lambda m: m.text("llama.rope.scaling.type", "x")),
    "negative epsilon": ("scripted", lambda m: m.set("llama.attention.layer_norm_rms_epsilon", 6, -1.0)),
    "heads that do not divide": ("scripted", lambda m: _kv_heads(m, 2)),
    "heads beside the weights": ("hybrid", lambda m: m.u32("lfm2.attention.head_count", 513)),
    "a norm of integers": ("scripted", lambda m: setattr(m.tensor("output_norm.weight"), "type_id", 26)),
    "weights of integers": ("scripted", lambda m: setattr(m.tensor("output.weight"), "type_id", 26)),
    "latent keys of another width": ("latent attention", lambda m: m.u32("deepseek2.attention.key_length", 63)),
    "a gate that is not there": ("delta net", lambda m: m.tensors.remove(m.tensor("blk.1.attn_gate.weight"))),
    "no byte tokens": ("scripted", lambda m: m.get("tokenizer.ggml.tokens").items.__setitem__(200, b"not a byte")),
    "an alignment of one": ("scripted", lambda m: _alignment(m, 1)),
}


@pytest.mark.parametrize("name", sorted(FATAL))
def test_fatal_damage_is_refused(bases: dict[str, Gguf], tmp_path: Path, name: str) -> None:
    base, damage = FATAL[name]
    model = copy.deepcopy(bases[base])
    damage(model)
    refused(model, tmp_path)


def test_fatal_damage_is_fatal(bases: dict[str, Gguf], tmp_path: Path) -> None:
    """The same damage ends the process that loads it, so that the check is not stricter than it has to be."""
    with LoadChild() as child:
        for name, (base, damage) in FATAL.items():
            model = copy.deepcopy(bases[base])
            damage(model)
            assert child.load(model.write(tmp_path / "model.gguf")).startswith("signal "), name


def test_damage_that_loops_for_ever(bases: dict[str, Gguf], tmp_path: Path) -> None:
    model = copy.deepcopy(bases["iswa"])
    with LoadChild() as child:
        path = model.write(tmp_path / "model.gguf")
        assert child.load(path) == "loaded"
        model.u32("gemma3.rope.dimension_count", 0).write(path)
        assert child.load(path, timeout_s=2) == "hung"
    assert "gemma3.rope.dimension_count is 0, expected an even number from 2 to 32" in refused(model, tmp_path)
