"""`llmcli bench` as a person and a script use it: in this process where that is quicker, else as a command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.settings import load
from llmcli.bench.runs import remember
from llmcli.bench.sizes import Sizes
from llmcli.cli import output
from llmcli.cli.main import call
from llmcli.engine import native
from tests.bench_case import PLAN, row
from tests.cli_run_case import engine_memo, known_engine, refused
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.cli_process import SCRIPT, Completed
from tests.fixtures.terminal import CTRL_C

__all__ = ["engine_memo", "known_engine"]
QUICK = ("-t", "1", "-p", "8", "-n", "4", "-r", "2")


class Bench:
    """Calls `llmcli bench` in this process."""

    def __init__(self, captured: pytest.CaptureFixture[bytes]) -> None:
        self._captured = captured

    def __call__(self, *args: str | Path) -> Completed:
        code = call(["bench", *map(str, args)])
        out, err = self._captured.readouterr()
        native.LOG.listen(None)
        return Completed(code, out, err, 0.0, 0)

    def rows(self, *args: str | Path) -> list[dict[str, Any]]:
        done = self("-o", "jsonl", *args)
        assert done.code == 0, done.err
        return [json.loads(line) for line in done.out.splitlines()]


@pytest.fixture
def bench(capfdbinary: pytest.CaptureFixture[bytes]) -> Bench:
    return Bench(capfdbinary)


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> Path:
    """Ends its answer after two tokens."""
    return scripted_model(["Hello", " world"])


def test_the_table(bench: Bench, model: Path) -> None:
    done = bench("-m", model, *QUICK)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split("|")[6].strip() for line in lines[2:4]] == ["pp8", "tg4"]
    assert re.search(r"\d\.\d\d ± \d", lines[2])
    assert any(line.startswith("build: llama-cpp-python ") for line in lines)


def test_one_repetition_has_no_spread(bench: Bench, model: Path) -> None:
    done = bench("-m", model, "-t", "1", "-p", "8", "-n", "0", "-r", "1")
    assert done.code == 0
    assert "±" not in done.out


def test_n_tokens_are_n_tokens(bench: Bench, model: Path) -> None:
    (row,) = bench.rows("-m", model, "-t", "1", "-p", "0", "-n", "12", "-r", "3")
    assert (row["test"], row["n_gen"], row["n_prompt"], len(row["samples_ns"])) == ("tg12", 12, 0, 3)
    assert row["samples_ts"] == pytest.approx([12e9 / ns for ns in row["samples_ns"]])
    assert row["environment"]["machine"]["cpu"]
    assert re.fullmatch(r"[0-9a-f]{64}", row["model_content_id"])


def test_the_cross_product(bench: Bench, model: Path) -> None:
    args = ("-p", "8,16", "-n", "0", "-pg", "4,2", "-d", "0-8+8", "-ub", "32", "-fa", "on,0", "-t", "1", "-r", "1")
    rows = bench.rows("-m", model, *args)
    assert [(row["flash_attn"], row["test"]) for row in rows] == [
        (flash, name + depth) for flash in (1, 0) for depth in ("", " @ d8") for name in ("pp8", "pp16", "pp4+tg2")
    ]
    assert {row["n_ubatch"] for row in rows} == {32}


def test_lists_may_be_given_in_pieces(bench: Bench, model: Path) -> None:
    rows = bench.rows("-m", model, "-p", "8", "-p", "16", "-n", "0", "-t", "1", "-r", "1")
    assert [row["n_prompt"] for row in rows] == [8, 16]


def test_json_is_one_object(bench: Bench, model: Path) -> None:
    done = bench("-m", model, "--json", *QUICK)
    assert (done.code, done.err, done.out.count("\n")) == (0, "", 1)
    found = json.loads(done.out)
    assert [row["test"] for row in found["results"]] == ["pp8", "tg4"]
    assert (found["failures"], found["interrupted"]) == ([], False)


def test_a_size_past_the_trained_context_is_measured_and_flagged(
    bench: Bench, scripted_model: Callable[..., Path]
) -> None:
    small = scripted_model(["hi"], n_ctx=512)
    (row,) = bench.rows("-m", small, "-p", "600", "-n", "0", "-t", "1", "-r", "1")
    assert "past the 512 tokens the model was trained on" in row["flags"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("-p", "0", "-n", "0"), 2, "nothing to measure"),
        (("-t", "0"), 2, "'-t' / '--threads': 0 is less than 1"),
        (("-t", "-3"), 2, "-3 is less than 1"),
        (("-p", "12x"), 2, "is not a list of numbers"),
        (("-pg", "12"), 2, "is not a pair"),
        (("-fa", "maybe"), 2, "'maybe' is not one of auto, on, off"),
        (("-ctk", "f17"), 2, "'f17' is not one of f32, f16"),
        (("-r", "0"), 2, "--repetitions"),
        (("-ngl", "-2"), 2, "-2 is less than -1"),
        (("--delay", "soon"), 2, "is not a duration"),
    ],
)
def test_bad_values(bench: Bench, model: Path, args: tuple[str, ...], code: int, words: str) -> None:
    assert words in refused(bench("-m", model, *args), code)


def test_no_such_model(bench: Bench, tmp_path: Path) -> None:
    assert "no such file" in refused(bench("-m", tmp_path / "no.gguf", *QUICK), 3)


def test_what_fails_half_way_leaves_the_rest(bench: Bench, model: Path, tmp_path: Path) -> None:
    done = bench("-m", model, "-m", tmp_path / "no.gguf", "-o", "jsonl", *QUICK)
    assert done.code == 3
    assert [json.loads(line)["test"] for line in done.out.splitlines()] == ["pp8", "tg4"]
    assert done.err.count("was not measured: no such file") == 2


def test_settings_that_do_not_go_together_fail_alone(bench: Bench, model: Path) -> None:
    args = ("-p", "8", "-n", "0", "-ctv", "f16,q8_0", "-fa", "off", "-t", "1", "-r", "1")
    done = bench("-m", model, "--json", *args)
    assert done.code == 2
    found = json.loads(done.out)
    assert [row["type_v"] for row in found["results"]] == ["f16"]
    assert found["failures"][0]["error"].startswith("-ctv q8_0 needs flash attention")


def test_environment_and_config(bench: Bench, model: Path, llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (llmcli_home / "config").mkdir()
    (llmcli_home / "config" / "config.toml").write_text(
        f'model = "{model}"\nthreads = 1\nn-prompt = [8, "16"]\nflash_attn = "on"\nn_gen = 0\n'
    )
    monkeypatch.setenv("LLMCLI_REPETITIONS", "1")
    rows = bench.rows()
    assert [(r["test"], r["n_threads"], r["flash_attn"], r["repetitions"]) for r in rows] == [
        ("pp8", 1, 1, 1),
        ("pp16", 1, 1, 1),
    ]
    monkeypatch.setenv("LLMCLI_N_PROMPT", "4,5")
    assert [row["test"] for row in bench.rows()] == ["pp4", "pp5"]


def test_an_unknown_sub_command(bench: Bench) -> None:
    assert "there is no command 'swoop'" in refused(bench("swoop"), 2)


def test_as_a_command(run_cli: RunCli, model: Path) -> None:
    done = run_cli("bench", "-m", model, *QUICK)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("| model ")
    assert output.READER_GONE == 141


@pytest.mark.skipif(os.name == "nt", reason="no process can be sent a Ctrl-C there")
def test_ctrl_c_keeps_what_was_measured(model: Path) -> None:
    command: list[str | Path] = [SCRIPT, "bench", "-m", model, *QUICK, "-d", "0-900", "--json", "-v"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ)) as child:
        assert child.stderr
        for line in child.stderr:
            if line.startswith(b"6/"):
                child.send_signal(signal.SIGINT)
                break
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    found = json.loads(out)
    assert found["interrupted"] is True
    assert len(found["results"]) >= 5
    assert [row["test"] for row in found["results"][:3]] == ["pp8", "tg4", "pp8 @ d1"]
    assert err.endswith(b"error: interrupted\n")


def test_in_a_terminal_the_status_line_goes_away(open_terminal: OpenTerminal, model: Path) -> None:
    with open_terminal(
        "bench", "-m", str(model), "-t", "1", "-p", "8", "-n", "4", "-r", "2", "-d", "0-900"
    ) as terminal:
        terminal.read_until("tg4")
        terminal.read_until("\r\x1b[K")
        terminal.read_until("pp8 @ d3 |")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
        assert b"build: llama-cpp-python" in terminal.screen
        assert terminal.screen.rstrip().endswith(b"interrupted")


# Comparing and keeping


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(rows))
    return path


@pytest.fixture
def two_files(tmp_path: Path) -> tuple[Path, Path]:
    before = write_rows(tmp_path / "a.json", [row(100, 101, 99, 100, 100), row(50, 51, 49, 50, sizes=Sizes(n_gen=8))])
    after = write_rows(tmp_path / "b.json", [row(90, 91, 89, 90, 90), row(50, 51, 49, 50, sizes=Sizes(n_gen=8))])
    return before, after


def test_compare(bench: Bench, two_files: tuple[Path, Path]) -> None:
    done = bench("compare", *two_files)
    assert (done.code, done.err) == (0, "")
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[1][:4] == ["pp512", "100.00", "90.00", "-10.0%"]
    assert (rows[1][-1], rows[2][0], rows[2][-1]) == ("slower", "tg8", "same")


def test_compare_as_json_with_limits(bench: Bench, two_files: tuple[Path, Path]) -> None:
    done = bench("compare", *two_files, "--json", "--fail-if", "pp<-5%", "--fail-if", "tg<-5%")
    assert done.code == 5
    assert done.err == "error: pp512 is past pp<-5%: -10.0%\n"
    found = json.loads(done.out)
    assert found["missed"] == [{"limit": "pp<-5%", "test": "pp512"}]
    assert [change["verdict"] for change in found["changes"]] == ["slower", "same"]
    assert bench("compare", *two_files, "--fail-if", "tg<-5%").code == 0


def test_a_limit_about_nothing_is_no_pass(bench: Bench, two_files: tuple[Path, Path]) -> None:
    """A script would take it for one."""
    done = bench("compare", *two_files, "--fail-if", "tg128<-5%")
    assert done.code == 2
    assert done.err == "error: tg128<-5% is about nothing that is in both runs (tests in both: pp512, tg8)\n"
    assert bench("compare", *two_files, "--fail-if", "pp+tg<-5%").code == 2


def test_compare_with_stdin(run_cli: RunCli, two_files: tuple[Path, Path]) -> None:
    done = run_cli("bench", "compare", two_files[0], "-", stdin=two_files[1].read_bytes())
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1].endswith("slower")
    done = run_cli("bench", "compare", two_files[0], "-", stdin=b"")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: - holds no results")


def test_unlike_runs_are_refused(bench: Bench, tmp_path: Path, two_files: tuple[Path, Path]) -> None:
    strange = write_rows(tmp_path / "c.json", [row(90, 91, 89, 90, plan=replace(PLAN, n_threads=2))])
    assert "not made alike, settings: n_threads 8 / 2" in refused(bench("compare", two_files[0], strange), 2)
    assert bench("compare", two_files[0], strange, "--across", "settings").code == 0
    assert bench("compare", two_files[0], strange, "--across", "all").code == 0
    assert "'weather' is not one of" in refused(bench("compare", *two_files, "--across", "weather"), 2)


def test_history(bench: Bench, model: Path, tmp_path: Path) -> None:
    assert bench("history").err == "nothing was measured yet: llmcli bench\n"
    bench("-m", model, *QUICK, "--label", "first")
    bench("-m", model, *QUICK)
    bench("-m", model, *QUICK, "--no-history")
    done = bench("history", "--test", "tg4", "--plot", tmp_path / "tg.svg")
    assert (done.code, done.err) == (0, f"wrote {tmp_path / 'tg.svg'}\n")
    rows = [line.split() for line in done.out.splitlines()]
    assert [(one[0], one[3]) for one in rows[1:]] == [("@1", "tg4"), ("@2", "tg4")]
    assert "first" in rows[1]
    assert (tmp_path / "tg.svg").read_bytes().startswith(b"<?xml")
    assert bench("history", "-q", "--test", "tg4", "--plot", tmp_path / "tg.svg").err == ""
    found = json.loads(bench("history", "--json", "--last", "1").out)
    assert [(run["number"], len(run["results"])) for run in found["runs"]] == [(2, 2)]
    assert bench("compare", "@1", "@2").code == 0
    assert "no such" in refused(bench("compare", "@1", tmp_path / "none.json"), 2).lower()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("form", ["--json", "--output-format=json"])
def test_what_cannot_be_written_is_in_the_history(bench: Bench, model: Path, form: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([SCRIPT, "bench", "-m", model, *QUICK, form], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (6, b"error: cannot write the answer: No space left on device\n")
    (run,) = json.loads(bench("history", "--json").out)["runs"]
    assert run["results"][0]["test"] == "pp8"


def test_more_lines_than_a_plot_can_show(bench: Bench, tmp_path: Path) -> None:
    remember([row(100.0, sizes=Sizes(n_gen=1, n_depth=depth)) for depth in range(101)], "", load())
    path = tmp_path / "a.svg"
    assert "101 tests are more than a plot can show (100)" in refused(bench("history", "--plot", path), 2)
    assert not path.exists()
    assert bench("history", "--plot", path, "--test", "tg1 @ d7").code == 0
    assert path.exists()


def test_baseline(bench: Bench, model: Path, tmp_path: Path) -> None:
    args = ("-m", model, "-t", "1", "-p", "8", "-n", "0", "-r", "4", "--no-history")
    rows = [json.loads(line) for line in bench("-o", "jsonl", *args).out.splitlines()]
    slow = [{**row, "samples_ts": [rate / 1000 for rate in row["samples_ts"]]} for row in rows]
    fast = [{**row, "samples_ts": [rate * 1000 for rate in row["samples_ts"]]} for row in rows]
    good = bench(*args, "--baseline", write_rows(tmp_path / "slow.json", slow), "--fail-if", "pp<-5%")
    assert (good.code, good.err) == (0, "")
    assert good.out.splitlines()[-1].endswith("faster")
    bad = bench(*args, "--baseline", write_rows(tmp_path / "fast.json", fast), "--fail-if", "pp<-5%", "-o", "json")
    assert bad.code == 5
    assert [row["test"] for row in json.loads(bad.out)] == ["pp8"]
    assert "pp8 is past pp<-5%: -99" in bad.err
    assert "slower" in bad.err  # the comparison, beside rows that are data
    assert "--baseline FILE" in refused(bench(*args, "--fail-if", "pp<-5%"), 2)
    assert "is not a limit" in refused(bench(*args, "--baseline", "x", "--fail-if", "pp"), 2)


def test_measuring_needs_no_numpy(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    """Nor scipy and matplotlib: what takes half a second to load is for those who compare and draw."""
    for name in ("numpy", "scipy", "matplotlib"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError({name!r})\n")
    done = run_cli("bench", "-m", model, *QUICK, env={"PYTHONPATH": str(tmp_path)})
    assert (done.code, done.err) == (0, "")
    done = run_cli("bench", "history", env={"PYTHONPATH": str(tmp_path)})
    assert (done.code, done.err) == (0, "")
    assert "tg4" in done.out
