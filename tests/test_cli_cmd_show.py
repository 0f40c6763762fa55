"""`llmcli show` as a process: the page, the object, the template as it is; nothing in a file reaches the terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli_run_case import refused
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.gguf_edit import F32, load
from tests.fixtures.hub_stub import HubStub
from tests.library_case import parsed, tiny

EVIL = "\x1b[2J\x1b]0;owned\x07\r\u202e"


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello"])


def test_the_page(run_cli: RunCli, model: Path) -> None:
    done = run_cli("show", model)
    assert (done.code, done.err) == (0, "")
    for title in ("Layers", "RoPE", "Tokenizer", "Chat template", "Memory", "Tensor types"):
        assert f"\n{title}\n" in done.out
    assert "\n  architecture        llama\n" in done.out
    assert ": fits, " in done.out


def test_the_object(run_cli: RunCli, model: Path) -> None:
    found = parsed(run_cli("show", "--json", "-c", "512", "-ctk", "q8_0", "-np", "3", model))
    assert found["model"]["path"] == str(model)
    assert (found["problem"], found["architecture"]) == (None, "llama")
    memory = found["memory"]
    assert (memory["n_ctx"], memory["n_parallel"], memory["type_k"], memory["fits"]) == (512, 3, "q8_0", True)
    parts = ("weights_bytes", "kv_bytes", "compute_bytes", "vocabulary_bytes")
    assert memory["total_bytes"] == sum(memory[part] for part in parts)
    assert sum(share["share"] for share in found["tensor_types"]) == pytest.approx(1)
    assert "tensors" not in found
    more = parsed(run_cli("show", "--json", "--tensors", model))["tensors"]
    assert sum(tensor["bytes"] for tensor in more) == found["tensor_bytes"]


@pytest.mark.parametrize(("asked", "n_ctx"), [(None, 4096), ("0", 32768), ("300", 300)])
def test_the_context_of_the_estimate(
    run_cli: RunCli, model: Path, tmp_path: Path, asked: str | None, n_ctx: int
) -> None:
    path = load(model).u32("llama.context_length", 32768).write(tmp_path / "m.gguf")
    found = parsed(run_cli("show", "--json", path, env={"LLMCLI_CTX_SIZE": asked}))
    assert found["memory"]["n_ctx"] == n_ctx


def test_the_template_as_it_is(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    source = "{% for m in messages %}" + EVIL + "{{ m['content'] }}{% endfor %}"
    path = load(model).text("tokenizer.chat_template", source).write(tmp_path / "m.gguf")
    assert run_cli("show", "--template", path).stdout == source.encode()
    bare = load(model).drop("tokenizer.chat_template").write(tmp_path / "bare.gguf")
    assert "has no chat template" in refused(run_cli("show", "--template", bare), 3)
    assert "a base model?" in run_cli("show", bare).out


def test_tensors(run_cli: RunCli, model: Path) -> None:
    lines = run_cli("show", "--tensors", model).out.splitlines()
    assert lines[0].split() == ["TENSOR", "TYPE", "SHAPE", "BYTES"]
    assert len(lines) == 1 + len(load(model).tensors)


def test_metadata_cannot_drive_the_terminal(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    evil = load(model)
    for key in ("general.name", "general.license", "general.author", "general.description", "tokenizer.ggml.pre"):
        evil.text(key, EVIL)
    evil.text("general.sampling." + EVIL, EVIL).text("llama.rope." + EVIL, EVIL).text(
        "tokenizer.chat_template.\x1b", "x"
    )
    evil.set("general.sampling.temp", F32, float("nan"))
    path = evil.write(tmp_path / "evil.gguf")
    done = run_cli("show", path)
    assert done.code == 0, done.err
    assert done.out.replace("\n", "").isprintable()
    assert "\\x1b[2J" in done.out
    found = run_cli("show", "--json", path)
    assert parsed(found)["title"] == EVIL
    assert "NaN" not in found.out


def test_a_terminal_gets_no_control_bytes_of_the_template(
    open_terminal: OpenTerminal, model: Path, tmp_path: Path
) -> None:
    path = load(model).text("tokenizer.chat_template", "a" + EVIL + "b").write(tmp_path / "m.gguf")
    with open_terminal("show", "--template", path) as terminal:
        assert terminal.wait() == 0
        assert "\x1b[2J" not in terminal.screen.decode()


@pytest.mark.parametrize(
    "template", ["{% for %}", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"]
)
def test_a_bad_template_is_a_warning(run_cli: RunCli, model: Path, tmp_path: Path, template: str) -> None:
    path = load(model).text("tokenizer.chat_template", template).write(tmp_path / "m.gguf")
    done = run_cli("show", path)
    assert (done.code, done.err) == (0, "")
    assert "\n  warning             the chat template" in done.out


def test_a_model_that_cannot_be_run(run_cli: RunCli, tmp_path: Path) -> None:
    path = tiny("nosucharch").write(tmp_path / "m.gguf")
    done = run_cli("show", path)
    assert done.code == 0
    assert "\n  not usable          " in done.out
    assert "Memory" not in done.out
    assert parsed(run_cli("show", "--json", path))["memory"] is None


def test_bad_input(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    assert "an HTML page" in refused(run_cli("show", tmp_path / "page.gguf"), 3)
    assert "no model called nosuch" in refused(run_cli("show", "nosuch"), 3)
    assert "is not in the Hugging Face cache" in refused(run_cli("show", "o/r:Q4_0"), 3)
    assert run_cli("show").code == 2
    assert run_cli("show", "-c", "-1", "x").code == 2


def test_a_model_on_the_hub(run_cli: RunCli, tmp_path: Path, model: Path) -> None:
    with HubStub(tmp_path) as hub:
        hub.add("o/M-GGUF", "M-Q4_0.gguf", model.read_bytes())
        done = run_cli("show", "o/M-GGUF:Q4_0", env={"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": None})
    assert (done.code, done.err) == (0, "")
    assert f"on the hub          o/M-GGUF, commit {'a' * 12}, M-Q4_0.gguf" in done.out


def test_a_real_model(run_cli: RunCli, smollm2_path: Path) -> None:
    found = parsed(run_cli("show", "--json", smollm2_path))
    assert found["layers"]["kv_bytes_per_token"] == 23040
    assert found["chat_template"]["system_role"] is True
    assert found["chat_template"]["warnings"] == []
    assert [share["type"] for share in found["tensor_types"]] == ["Q4_1", "Q8_0", "F32"]


def test_a_context_past_the_trained_one_is_told(run_cli: RunCli, scripted_model: Callable[..., Path]) -> None:
    model = scripted_model(["hi"], n_ctx=2048)
    assert "-c 4096 is more than the 2,048 tokens this model was trained on" in run_cli("show", model, "-c", "4096").out
    assert "trained on" not in run_cli("show", model, "-c", "2048").out


def test_what_is_no_model_is_asked_for_no_template(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    """ "a base model?" is a question about models alone."""
    other = load(model).text("general.type", "imatrix").drop("tokenizer.chat_template").write(tmp_path / "m.gguf")
    done = run_cli("show", other)
    assert done.code == 0
    assert "not usable" in done.out
    assert "base model?" not in done.out
    assert "base model?" not in refused(run_cli("show", "--template", other), 3)


def test_a_file_that_is_cut_off_is_told_in_sizes(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-2000])
    told = refused(run_cli("show", cut), 3)
    assert f" MiB ({cut.stat().st_size:,} bytes), expected " in told
    assert "2.0 KiB (2,000 bytes) are missing" in told
