"""Opening a model: the order of the steps, what the user is told, and that everything is freed."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UsageError, UserInterruptError
from llmcli.base.settings import load
from llmcli.engine import engine as engine_module
from llmcli.engine.context import Context, Rope
from llmcli.engine.engine import Engine, open_engine
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.lora import Lora
from llmcli.engine.model import Model
from llmcli.engine.plan import Request
from llmcli.engine.preflight import EngineBuild
from llmcli.engine.sampling import Sampler, Sampling
from tests.fixtures.lora import write_lora
from tests.fixtures.notes import Notes

N_VOCAB, WIDTH, HELLO, WORLD = 263, 288, 261, 262
REQUEST = Request(n_threads=1)


@pytest.fixture(autouse=True)
def _known_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of the installed library is a test of its own; here it would start a process each time."""
    monkeypatch.setattr(engine_module, "check_build", lambda settings: EngineBuild("0" * 64))


@pytest.fixture
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


@pytest.fixture
def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where the model is loaded all the same."""

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(Model, "load", refuse)


def answer(engine: Engine, count: int = 3) -> list[int]:
    engine.session.prefill([100])
    with Sampler(Sampling(temp=0), engine.model.tokenizer, engine.context.n_ctx) as sampler:
        ids: list[int] = []
        while len(ids) < count:
            token = sampler.sample(engine.context)
            assert token is not None
            ids.append(token)
            engine.session.decode(token)
    return ids


def test_an_open_engine_answers_and_is_freed(hello: Path) -> None:
    notes, stop = Notes(), StopFlag()
    with open_engine(str(hello), REQUEST, load(), notes, stop=stop) as engine:
        assert answer(engine) == [HELLO, WORLD, 2]
        assert engine.resolved.path == hello
        assert engine.inspected.content_id == hashlib.sha256(hello.read_bytes()).hexdigest()
        assert (engine.plan.n_ctx, engine.plan.n_threads, engine.context.n_ctx) == (512, 1, 512)
        assert (engine.stop, engine.rope, engine.loras) == (stop, Rope(), ())
        assert engine.load_s > 0
    assert (engine.context.handle, engine.model.handle) == (None, None)
    assert notes.lines == []


def test_the_file_is_hashed_once(hello: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(hello.read_bytes())
    size = path.stat().st_size
    for checked in (True, False):
        notes = Notes()
        with open_engine(str(path), REQUEST, load(), notes):
            pass
        checking = [["checking mine, once", size, size, "ended"]] if checked else []
        (loading,) = notes.tasks[len(checking) :]
        assert notes.tasks[: len(checking)] == checking
        assert loading[0] == "loading mine"
        assert loading[1] == loading[2]
        assert loading[3] == "ended"


def test_everything_is_freed_when_the_work_fails(hello: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_engine(str(hello), REQUEST, load(), Notes()) as engine:
        raise ZeroDivisionError
    assert (engine.context.handle, engine.model.handle) == (None, None)


def test_the_model_is_freed_where_the_context_cannot_be_made(hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Model] = []

    def refuse(model: Model, *args: object, **options: object) -> None:
        loaded.append(model)
        raise ResourceError("no room")

    monkeypatch.setattr(engine_module, "Context", refuse)
    with pytest.raises(ResourceError, match="no room"), open_engine(str(hello), REQUEST, load(), Notes()):
        pass
    assert loaded[0].handle is None


def test_notes_of_the_plan_reach_the_user(hello: Path) -> None:
    notes = Notes()
    with open_engine(str(hello), Request(n_threads=1, n_ctx=1024), load(), notes) as engine:
        assert engine.context.n_ctx == 1024
    (note,) = notes.lines
    assert note.startswith("-c 1024 is more than the 512 tokens this model was trained on")
    notes = Notes()
    scaled = Request(n_threads=1, n_ctx=1024, rope_scaled=True)
    with open_engine(str(hello), scaled, load(), notes, rope=Rope(freq_scale=0.5)):
        pass
    assert notes.lines == []


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Request(n_ctx=1 << 40), UsageError),
        (Request(n_threads=100_000), UsageError),
        (Request(n_ctx=(1 << 31) - 512), ResourceError),
        (Request(type_v="q8_0", flash_attn="off"), UsageError),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    request_: Request, error: type[LlmcliError], hello: Path, no_load: None
) -> None:
    with pytest.raises(error), open_engine(str(hello), request_, load(), Notes()):
        pass


@pytest.mark.parametrize("content", [b"", b"<!DOCTYPE html>", b"GGUF\x03\x00\x00\x00", os.urandom(4096)])
def test_what_is_no_model_is_refused_before_anything_is_loaded(content: bytes, no_load: None, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError), open_engine(str(tmp_path / "x.gguf"), REQUEST, load(), Notes()):
        pass


def test_the_layers_of_the_model_are_known_to_the_load(hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = Model.load

    def spy(path: Path, plan: Any, **options: Any) -> Model:
        seen.append(options["n_layer"])
        return real(path, plan, **options)

    monkeypatch.setattr(Model, "load", spy)
    with open_engine(str(hello), REQUEST, load(), Notes()):
        pass
    assert seen == [1]


def test_rope_reaches_the_context(hello: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(*args: Any, **options: Any) -> Context:
        seen.append(options["rope"])
        return Context(*args, **options)

    monkeypatch.setattr(engine_module, "Context", spy)
    rope = Rope(scaling="yarn", freq_base=1000.0, yarn_orig_ctx=256)
    with open_engine(str(hello), REQUEST, load(), Notes(), rope=rope) as engine:
        assert engine.rope == rope
    assert seen == [rope]


# ---- LoRA ------------------------------------------------------------------------------------------------------------


def test_an_adapter_changes_the_answer(hello: Path, tmp_path: Path) -> None:
    lora = Lora(write_lora(tmp_path / "l.gguf", width=WIDTH, n_vocab=N_VOCAB, token=WORLD), 1.0)
    with open_engine(str(hello), REQUEST, load(), Notes(), loras=[lora]) as engine:
        assert answer(engine) == [WORLD, WORLD, WORLD]
        assert engine.loras == (lora,)


@pytest.mark.parametrize("what", ["a model", "another width", "another architecture", "text"])
def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_loaded(
    what: str, hello: Path, no_load: None, tmp_path: Path
) -> None:
    path = tmp_path / "l.gguf"
    if what == "a model":
        path.write_bytes(hello.read_bytes())
    elif what == "another width":
        write_lora(path, width=WIDTH + 32, n_vocab=N_VOCAB, token=WORLD)
    elif what == "another architecture":
        write_lora(path, width=WIDTH, n_vocab=N_VOCAB, token=WORLD, architecture="qwen2")
    else:
        path.write_text("no adapter")
    with (
        pytest.raises(ModelError, match=r"l\.gguf"),
        open_engine(str(hello), REQUEST, load(), Notes(), loras=[Lora(path)]),
    ):
        pass


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_a_stop_that_was_asked_for_before(hello: Path) -> None:
    stop = StopFlag()
    stop.set()
    with pytest.raises(UserInterruptError), open_engine(str(hello), REQUEST, load(), Notes(), stop=stop):
        pass


def test_ctrl_c_while_loading(hello: Path) -> None:
    class Impatient(Notes):
        """Presses Ctrl-C when the load begins."""

        @property
        def progress(self) -> Any:
            def start(title: str, total: int | None, _unit: str = "", /) -> Any:
                if title.startswith("loading"):
                    os.kill(os.getpid(), signal.SIGINT)
                return self._start(title, total)

            return start

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(UserInterruptError), open_engine(str(hello), REQUEST, load(), Impatient()):
        pass
    assert signal.getsignal(signal.SIGINT) is before
