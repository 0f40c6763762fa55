"""`llmcli imatrix` at the command line: files, sums, statistics, refusals, an interrupt and what it keeps."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.cli.main import call
from llmcli.engine import native
from llmcli.quant.imatrix_file import read_imatrix
from tests.cli_run_case import engine_memo, known_engine  # noqa: F401  # fixtures
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.cli_process import SCRIPT
from tests.fixtures.text_models import TEXT, write_text_model

DATA = Path(__file__).parent / "data"
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("models") / "dense.gguf")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


@pytest.fixture
def imatrix(capfd: pytest.CaptureFixture[str], folder: Path) -> Cli:
    def run(*args: str | Path) -> tuple[int, str, str]:
        code = call(["imatrix", *map(str, args)])
        native.LOG.listen(None)
        return code, *capfd.readouterr()

    return run


def test_it_writes_beside_where_it_is_called(imatrix: Cli, dense: Path, folder: Path) -> None:
    code, out, err = imatrix(dense, "-f", "text.txt", "-c", "128", "--chunks", "5", "-t", "1")
    assert (code, err) == (0, "")
    assert out.startswith("dense.imatrix.gguf: 14 weights, 5 windows of 128 tokens, ")
    assert out.count("\n") == 1
    assert read_imatrix(folder / "dense.imatrix.gguf").n_chunks == 5


def test_json(imatrix: Cli, dense: Path) -> None:
    code, out, err = imatrix(
        "-m", dense, "-f", "text.txt", "-o", "x.gguf", "-c", "128", "--chunks", "2", "-t", "1", "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["model"]["name"] == "dense"
    assert found.pop("compute_s") > 0
    assert found.pop("prefill_tok_s") > 0
    assert {key: value for key, value in found.items() if key != "model"} == {
        "output": "x.gguf",
        "datasets": ["text.txt"],
        "weights": 14,
        "windows": 2,
        "window_tokens": 128,
        "unused_experts": 0,
        "resumed_windows": 0,
    }


def test_the_text_that_comes_with_it_is_the_default(imatrix: Cli, dense: Path, folder: Path) -> None:
    assert imatrix(dense, "--chunks", "1", "-t", "1")[0] == 0
    assert read_imatrix(folder / "dense.imatrix.gguf").datasets == ("calibration.txt",)
    assert read_imatrix(folder / "dense.imatrix.gguf").chunk_tokens == 512


def test_stdin_is_a_text(run_cli: RunCli, dense: Path, folder: Path) -> None:
    done = run_cli("imatrix", dense, "-f", "-", "-c", "64", "-t", "1", "-o", folder / "m.gguf", stdin=TEXT)
    assert (done.code, done.err) == (0, "")
    assert read_imatrix(folder / "m.gguf").datasets == ("stdin",)


def test_sums_and_statistics(imatrix: Cli, folder: Path) -> None:
    one = DATA / "dense.imatrix.gguf"
    assert imatrix("--in-file", one, "--in-file", one, "-o", "sum.gguf") == (
        0,
        "sum.gguf: 14 weights, 10 windows of 128 tokens\n",
        "",
    )
    code, out, err = imatrix("--show-statistics", "sum.gguf")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "14 weights, measured on text.txt, text.txt: 10 windows"
    names = {"layer", "weight", "sum", "min", "max", "mean", "deviation", "active", "columns", "entropy", "even"}
    assert set(lines[2].split()) == names | {"outliers", "cosine"}
    assert len(lines) == 3 + 14 + 2 + 2
    assert lines[3].split()[1] == "attn_k"
    code, out, _ = imatrix("--show-statistics", "--in-file", "sum.gguf", "--json")
    found = json.loads(out)
    assert (code, len(found["weights"]), [layer["layer"] for layer in found["layers"]]) == (0, 14, [0, 1])


def test_experts_without_data_are_told(imatrix: Cli, tmp_path: Path) -> None:
    from dataclasses import replace

    from llmcli.quant.imatrix import Entry
    from llmcli.quant.imatrix_file import write_imatrix

    matrix = read_imatrix(DATA / "experts.imatrix.gguf")
    name = "blk.0.ffn_up_exps.weight"
    counts = matrix.entries[name].counts.copy()
    counts[2] = 0
    write_imatrix(
        tmp_path / "less.gguf",
        replace(matrix, entries={**matrix.entries, name: Entry(matrix.entries[name].sums, counts)}),
    )
    code, _, err = imatrix("--in-file", "less.gguf", "-o", "sum.gguf")
    assert code == 0
    assert err.startswith("warning: 1 of the experts' weights got no token of the text")


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["MODEL", "-f", "none.txt"], 2, "cannot read none.txt"),
        (["MODEL", "-f", "empty.txt"], 2, "no prompt"),
        (["MODEL", "-f", "short.txt"], 2, "short.txt has 14 tokens, and a window needs 512"),
        (["MODEL", "-c", "31"], 2, "31"),
        (["MODEL", "-ub", "8"], 2, "-ub 8"),
        (["MODEL", "-m", "MODEL"], 2, "the model was given twice"),
        (["none.gguf"], 3, "no such file"),
        (["MODEL", "-f", "text.txt", "-o", "text.txt"], 1, "are the same file"),
        (["MODEL", "-f", "text.txt", "-o", "text.txt", "--force"], 1, "are the same file"),
        (["MODEL", "-f", "text.txt", "-o", "old.gguf"], 1, "old.gguf is there already (--force"),
        (["MODEL", "-f", "text.txt", "-o", "none/m.gguf", "-c", "64"], 1, "does not exist"),
        (["MODEL", "-f", "text.txt", "-o", "new/"], 2, "-o new/ names a folder (name the file in it)"),
        (["--in-file", "DATA"], 2, "there is no name for the sum (-o FILE)"),
        (["--in-file", "text.txt", "-o", "x.gguf"], 3, "no importance matrix"),
        (["--in-file", "MODEL", "-o", "x.gguf"], 3, "is a GGUF file, but no importance matrix"),
        (["--show-statistics"], 2, "--show-statistics is about one matrix"),
        (["--show-statistics", "DATA", "--in-file", "DATA"], 2, "--show-statistics is about one matrix"),
    ],
)
def test_refusals_are_one_line(imatrix: Cli, dense: Path, folder: Path, args: list[str], code: int, why: str) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "short.txt").write_text("hello there")
    (folder / "old.gguf").write_text("precious")
    places = {"MODEL": str(dense), "DATA": str(DATA / "dense.imatrix.gguf")}
    before = {path.name for path in folder.iterdir()}
    found, out, err = imatrix(*[places.get(arg, arg) for arg in args], *(["-t", "1"] if args[0] == "MODEL" else []))
    assert (found, out) == (code, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert why in err
    assert {path.name for path in folder.iterdir()} == before


def test_an_answer_context_in_the_environment_changes_no_window(
    imatrix: Cli, dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMCLI_CTX_SIZE", "64")
    assert "windows of 128 tokens" in imatrix(dense, "-f", "text.txt", "-c", "128", "-t", "1", "-o", "a.gguf")[1]
    monkeypatch.setenv("LLMCLI_WINDOW", "256")
    assert "windows of 256 tokens" in imatrix(dense, "-f", "text.txt", "-t", "1", "-o", "b.gguf")[1]


def test_a_ctrl_c_keeps_what_was_computed_and_the_same_command_goes_on(
    smollm2_path: Path, folder: Path, run_cli: RunCli
) -> None:
    command = ["imatrix", str(smollm2_path), "-f", "text.txt", "-o", "m.gguf", "-c", "32", "-t", "1"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    child = subprocess.Popen(
        [SCRIPT, *command],
        cwd=folder,
        stdin=null,
        stdout=pipe,
        stderr=pipe,
        text=True,
        # Where the tests run in a shell's background job, SIGINT is ignored, and a child would ignore it too.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    time.sleep(3)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err.count("\n")) == (130, "", 1), err
    assert not (folder / "m.gguf").exists()
    if not (folder / "m.gguf.part").exists():
        assert err.startswith("error: interrupted")
        return
    kept = read_imatrix(folder / "m.gguf.part")
    assert f"interrupted after {kept.n_chunks:,} window" in err
    assert "the same command goes on from there" in err
    done = run_cli(*command, "--chunks", str(kept.n_chunks), cwd=folder)
    assert done.code == 2
    assert "is what another run left" in done.err


def test_a_terminal_shows_nothing_else(open_terminal: OpenTerminal, dense: Path, folder: Path) -> None:
    out = folder / "m.gguf"
    with open_terminal("imatrix", dense, "-f", folder / "text.txt", "-o", out, "-c", "64", "-t", "1") as terminal:
        shown = terminal.read_until(b"tok/s in ")
    assert b"m.gguf: 14 weights, 50 windows of 64 tokens" in shown
