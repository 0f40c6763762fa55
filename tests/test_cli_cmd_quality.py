"""`llmcli quality` at the command line: tables, the account, limits, pictures, refusals."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.cli.main import call
from llmcli.cli.quality_view import table_lines
from llmcli.engine import native
from llmcli.quant.quality_compare import Comparison, Row
from llmcli.quant.quality_rate import Rates
from llmcli.quant.quality_stats import Perplexity, Versus
from tests.cli_run_case import engine_memo, known_engine  # noqa: F401  # fixtures
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.text_models import TEXT, write_text_model

Cli = Callable[..., tuple[int, str, str]]
FEW = ("-f", "text.txt", "-c", "128", "--chunks", "2", "-t", "1", "--no-rates")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_text_model(folder / "dense.gguf")
    write_text_model(folder / "noisy.gguf", noise=0.05)
    write_text_model(folder / "larger.gguf", extra_tokens=3)
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def quality(capfd: pytest.CaptureFixture[str], folder: Path) -> Cli:
    def run(*args: str | Path) -> tuple[int, str, str]:
        code = call(["quality", *map(str, args)])
        native.LOG.listen(None)
        return code, *capfd.readouterr()

    return run


def test_one_model_by_itself(quality: Cli, models: Path) -> None:
    code, out, err = quality(models / "dense.gguf", *FEW)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["text.txt: 2 windows of 128 tokens, 126 tokens scored", ""]
    assert lines[2].split() == ["dense"]
    assert len({len(line) for line in lines[2:]}) == 1
    assert [line[:16].strip() for line in lines[3:]] == [
        "size",
        "type",
        "bits per weight",
        "PPL",
        "reads, tok/s",
        "writes, tok/s",
    ]


def test_against_a_base(quality: Cli, models: Path) -> None:
    code, out, err = quality(models / "noisy.gguf", "--base", models / "dense.gguf", *FEW, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert out.count("\n") == 1
    assert found["base"]["model"]["name"] == "dense"
    assert [row["model"]["name"] for row in found["models"]] == ["noisy"]
    assert 0 < found["models"][0]["kld_mean"] < 0.1
    assert found["models"][0]["prefill_tok_s"] is None
    code, out, _ = quality(models / "noisy.gguf", "--base", models / "dense.gguf", *FEW)
    assert code == 0
    assert {line[:16].strip() for line in out.splitlines()} >= {"KLD mean", "KLD 99.9%", "RMS Δp", "same top token"}


def test_minus_m_and_the_text_that_comes_with_it(quality: Cli, models: Path) -> None:
    code, out, _ = quality("-m", models / "dense.gguf", "--chunks", "1", "-t", "1")
    assert code == 0
    assert out.startswith("evaluation.txt: 1 window of 512 tokens, 255 tokens scored\n")


def test_a_missed_limit_exits_5_after_the_table(quality: Cli, models: Path) -> None:
    pair = (models / "noisy.gguf", "--base", models / "dense.gguf", *FEW)
    code, out, err = quality(*pair, "--fail-if", "kld>0.000001", "--fail-if", "same_top<100.5")
    assert code == 5
    assert "KLD mean" in out
    assert err.startswith("error: noisy: kld is 0.0")
    assert "; noisy: same_top is " in err
    assert quality(*pair, "--fail-if", "kld>1", "--fail-if", "size>1G")[0] == 0


def test_a_picture(quality: Cli, models: Path, folder: Path) -> None:
    pair = (models / "noisy.gguf", "--base", models / "dense.gguf", *FEW, "--plot", "q.svg")
    assert quality(*pair)[0] == 0
    assert b"<svg" in (folder / "q.svg").read_bytes()
    (folder / "q.svg").write_text("precious")
    assert quality(*pair) == (1, "", "error: q.svg is there already (--force replaces it)\n")
    assert (folder / "q.svg").read_text() == "precious"
    assert quality(*pair, "--force")[0] == 0
    assert b"<svg" in (folder / "q.svg").read_bytes()


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["dense.gguf", "--fail-if", "kld>1"], 2, "--fail-if kld is about two models (name the other with --base)"),
        (["dense.gguf", "--fail-if", "x>1"], 2, "'x>1' is no limit"),
        (["dense.gguf", "--plot", "x.pdf"], 2, "x.pdf is no name of a picture"),
        (["dense.gguf", "--plot", "none/x.png"], 1, "does not exist"),
        (["dense.gguf", "--logits-memory", "much"], 2, "much"),
        (["larger.gguf", "--base", "dense.gguf"], 2, "do not have the same vocabulary"),
        (["none.gguf"], 3, "none.gguf"),
        (["dense.gguf", "--base", "none.gguf"], 3, "none.gguf"),
        (["dense.gguf", "-f", "short.txt"], 2, "short.txt has 14 tokens, and a window needs 512"),
        (["dense.gguf", "-f", "none.txt"], 2, "cannot read none.txt"),
    ],
)
def test_refusals_are_one_line(quality: Cli, models: Path, folder: Path, args: list[str], code: int, why: str) -> None:
    (folder / "short.txt").write_text("hello there")
    found, out, err = quality(*[str(models / arg) if arg.endswith(".gguf") else arg for arg in args], "-t", "1")
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert why in err


def test_a_process_and_a_terminal(run_cli: RunCli, open_terminal: OpenTerminal, models: Path, folder: Path) -> None:
    done = run_cli("quality", models / "dense.gguf", *FEW[2:], "-f", "-", stdin=TEXT)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("stdin: 2 windows")
    with open_terminal("quality", models / "dense.gguf", "-f", folder / "text.txt", *FEW[2:]) as terminal:
        assert b"bits per weight" in terminal.read_until(b"writes, tok/s")


def row(name: str, *, against: bool) -> Row:
    versus = Versus(*[0.5] * len(Versus.__slots__)) if against else None
    return Row(name, "/p", "c", "Q4_0", 5 << 20, 4.5, Perplexity(9.5, 0.25, 10), versus, Rates(100, 20))


def test_models_that_do_not_fit_side_by_side_get_a_table_of_their_own() -> None:
    models = tuple(row(f"model-{i}", against=True) for i in range(3))
    found = Comparison("t", "0", 1, 512, 255, row("base", against=False), models)
    narrow, wide = list(table_lines(found, 60)), list(table_lines(found, 200))
    assert max(map(len, narrow)) <= 60
    assert sum(line.startswith("KLD mean") for line in narrow) == 2
    assert sum(line.startswith("KLD mean") for line in wide) == 1
    assert wide[2].split() == ["base", "model-0", "model-1", "model-2"]
    one_each = list(table_lines(found, 10))
    assert sum(line.startswith("KLD mean") for line in one_each) == 4


def test_long_and_odd_names_are_shortened_and_shown() -> None:
    found = Comparison("t", "0", 1, 512, 255, None, (row("a" * 40 + "\x1b[31m", against=False),))
    head = list(table_lines(found, 80))[2]
    assert head.strip() == "aaaaaaaaaaaa…aaa\\x1b[31m"
    assert "\x1b" not in head


def test_a_full_disk_for_the_picture(quality: Cli, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/.tmp-x")

    monkeypatch.setattr("llmcli.quant.quality_plot.atomic_write", refuse)
    code, _, err = quality(models / "dense.gguf", *FEW, "--plot", "a.svg")
    assert (code, err) == (6, "error: cannot write a.svg: No space left on device\n")


def test_a_picture_that_cannot_have_its_name_is_refused_at_once(quality: Cli, models: Path) -> None:
    name = "a" * 300 + ".svg"
    code, out, err = quality(models / "dense.gguf", *FEW, "--plot", name)
    assert (code, out, err) == (1, "", f"error: cannot write {name}: File name too long\n")
