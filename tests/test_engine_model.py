from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import ModelError, UserInterruptError
from llmcli.engine import native
from llmcli.engine.context import Context
from llmcli.engine.lora import Lora
from llmcli.engine.model import Model
from llmcli.engine.session import Session
from tests.fixtures.engines import tiny_plan
from tests.fixtures.lora import write_lora
from tests.fixtures.scripted_gguf import CHATML

# In a scripted vocabulary of 263: three special tokens, 256 bytes, the ChatML marks, "Hello", " world".
N_VOCAB, WIDTH, HELLO, WORLD = 263, 288, 261, 262


@pytest.fixture(scope="module")
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The parameters that llama.cpp is given; nothing is loaded."""
    seen: list[Any] = []

    def load(path: bytes, params: Any) -> None:
        seen.append(params)

    monkeypatch.setattr(native.lib(), "llama_model_load_from_file", load)
    return seen


def greedy(model: Model) -> int:
    """The likeliest token after "a"."""
    with Context(model, tiny_plan()) as context:
        session = Session(context)
        session.prefill([100])
        logits = list(context.logits())
    return logits.index(max(logits))


# ---- loading and freeing ---------------------------------------------------------------------------------------------


def test_a_model_is_freed_once(hello: Path) -> None:
    with Model.load(hello, tiny_plan()) as model:
        assert model.handle
        assert model.path == hello
        assert greedy(model) == HELLO
    assert model.handle is None
    model.close()
    del model


def test_a_model_is_freed_when_the_work_fails(hello: Path) -> None:
    with pytest.raises(ZeroDivisionError), Model.load(hello, tiny_plan()) as model:
        raise ZeroDivisionError
    assert model.handle is None


def test_a_model_that_was_never_made_can_be_dropped() -> None:
    model = Model.__new__(Model)
    model.__del__()


def test_loading_again_and_again_leaves_nothing_open(hello: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/dev/fd"))

    Model.load(hello, tiny_plan()).close()
    before = opened()
    for _ in range(5):
        Model.load(hello, tiny_plan()).close()
        Model.load_vocabulary(hello).close()
    assert opened() == before


@pytest.mark.parametrize("name", ["mödel 🚀.gguf", os.fsdecode(b"caf\xe9.gguf")])
def test_a_name_of_any_bytes(name: str, hello: Path, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(hello.read_bytes())
    with Model.load(path, tiny_plan()) as model:
        assert model.tokenizer.n_vocab == N_VOCAB


def test_a_relative_path(hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hello.parent)
    Model.load(Path(hello.name), tiny_plan()).close()


@pytest.mark.parametrize("load", [lambda path: Model.load(path, tiny_plan()), Model.load_vocabulary])
def test_what_llama_cpp_refuses_is_told_with_its_reason(load: Callable[[Path], Model], tmp_path: Path) -> None:
    path = tmp_path / "x\x1b.gguf"
    path.write_bytes(b"GGUF nonsense that is no model")
    with pytest.raises(ModelError) as failure:
        load(path)
    assert failure.value.message.startswith(f"llama.cpp cannot load {tmp_path}/x\\x1b.gguf: ")
    assert "no reason given" not in failure.value.message
    assert failure.value.hint == "run again with -v for its log"
    assert failure.value.exit_code == 3


@pytest.mark.parametrize(
    ("function", "answer"), [("llama_model_has_encoder", True), ("llama_model_has_decoder", False)]
)
def test_an_encoder_is_refused(function: str, answer: bool, hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[Any] = []
    free = native.lib().llama_model_free
    monkeypatch.setattr(native.lib(), function, lambda handle: answer)

    def count(handle: Any) -> None:
        freed.append(handle)
        free(handle)

    monkeypatch.setattr(native.lib(), "llama_model_free", count)
    with pytest.raises(ModelError, match="is an encoder model: it cannot generate text"):
        Model.load(hello, tiny_plan())
    assert len(freed) == 1


# ---- what the plan says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use_mmap", "use_mlock", "mode"),
    [
        (True, False, "LLAMA_LOAD_MODE_AUTO"),
        (False, False, "LLAMA_LOAD_MODE_NONE"),
        (True, True, "LLAMA_LOAD_MODE_MMAP_MLOCK"),
        (False, True, "LLAMA_LOAD_MODE_MLOCK"),
    ],
)
def test_mmap_and_mlock(use_mmap: bool, use_mlock: bool, mode: str, hello: Path, spy: list[Any]) -> None:
    with pytest.raises(ModelError):
        Model.load(hello, tiny_plan(use_mmap=use_mmap, use_mlock=use_mlock))
    assert spy[0].load_mode == getattr(native.lib(), mode)


@pytest.mark.parametrize("use_mmap", [True, False])
@pytest.mark.parametrize("use_mlock", [True, False])
def test_every_way_of_loading_answers_alike(use_mmap: bool, use_mlock: bool, hello: Path) -> None:
    with Model.load(hello, tiny_plan(use_mmap=use_mmap, use_mlock=use_mlock)) as model:
        assert greedy(model) == HELLO


@pytest.mark.parametrize(
    ("planned", "n_layer", "given"),
    [(0, 30, 0), (12, 30, 12), (30, 30, 30), (31, 30, -1), (99, 30, -1), (31, None, 31)],
)
def test_a_plan_for_every_layer_means_the_whole_model(
    planned: int, n_layer: int | None, given: int, hello: Path, spy: list[Any]
) -> None:
    with pytest.raises(ModelError):
        Model.load(hello, tiny_plan(n_gpu_layers=planned), n_layer=n_layer)
    assert spy[0].n_gpu_layers == given


def test_the_vocabulary_alone(hello: Path, spy: list[Any]) -> None:
    with pytest.raises(ModelError):
        Model.load_vocabulary(hello)
    assert spy[0].vocab_only is True


def test_the_vocabulary_tokenizes(hello: Path) -> None:
    with Model.load_vocabulary(hello) as model:
        assert model.tokenizer.tokenize("Go", parse_special=False) == [74, 114]


# ---- progress --------------------------------------------------------------------------------------------------------


def test_progress_rises_to_one(hello: Path) -> None:
    shares: list[float] = []

    def go_on(share: float) -> bool:
        shares.append(share)
        return True

    Model.load(hello, tiny_plan(), on_progress=go_on).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_a_stop_while_loading(at: float, hello: Path) -> None:
    with pytest.raises(UserInterruptError, match="interrupted while loading the model") as failure:
        Model.load(hello, tiny_plan(), on_progress=lambda share: share < at)
    assert failure.value.exit_code == 130


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_progress_raises_comes_out(
    error: type[BaseException], hello: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(share: float) -> bool:
        raise error

    with pytest.raises(error):
        Model.load(hello, tiny_plan(), on_progress=fail)
    assert capfd.readouterr() == ("", "")


# ---- what a model tells ----------------------------------------------------------------------------------------------


def test_a_model_describes_itself(hello: Path, scripted_model: Callable[..., Path]) -> None:
    with Model.load(hello, tiny_plan()) as model:
        assert model.n_ctx_train == 512
        assert model.chat_template == CHATML
        assert model.description.startswith("llama ")
        assert model.metadata("general.name") == "scripted"
        assert model.metadata("no.such.key") is None
    with Model.load(scripted_model(["x"], chat_template=None), tiny_plan()) as model:
        assert model.chat_template is None


@pytest.mark.parametrize(
    ("kind", "window", "recurrent", "hybrid"),
    [("plain", 0, False, False), ("iswa", 64, False, False), ("hybrid", 0, False, True), ("mamba", 0, True, False)],
)
def test_kinds_of_memory(
    kind: str, window: int, recurrent: bool, hybrid: bool, random_model: Callable[[str], Path]
) -> None:
    with Model.load(random_model(kind), tiny_plan()) as model:
        assert (model.window_tokens, model.is_recurrent, model.is_hybrid) == (window, recurrent, hybrid)


# ---- LoRA ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lora(tmp_path_factory.mktemp("lora") / "l.gguf", width=WIDTH, n_vocab=N_VOCAB, token=WORLD)


@pytest.mark.parametrize(
    ("scales", "token"), [((), HELLO), ((1.0,), WORLD), ((0.0,), HELLO), ((-1.0,), HELLO), ((1.0, -1.0), HELLO)]
)
def test_an_adapter_is_applied_with_its_scale(
    scales: tuple[float, ...], token: int, hello: Path, adapter: Path
) -> None:
    with Model.load(hello, tiny_plan()) as model:
        model.add_loras([Lora(adapter, scale) for scale in scales])
        assert greedy(model) == token


def test_an_adapter_that_fails_is_named(hello: Path, tmp_path: Path) -> None:
    (tmp_path / "l.gguf").write_bytes(b"nothing of the kind")
    with Model.load(hello, tiny_plan()) as model:
        with pytest.raises(ModelError, match=r"cannot apply the LoRA .*/l\.gguf: ") as failure:
            model.add_loras([Lora(tmp_path / "l.gguf")])
        assert failure.value.exit_code == 3
        assert greedy(model) == HELLO
