"""Kept runs: the history, files in every format, and what is no run."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.settings import load
from llmcli.bench.report import make_report
from llmcli.bench.result import Row
from llmcli.bench.runs import history_file, load_rows, read_history, remember
from llmcli.bench.sizes import Sizes
from llmcli.bench.trials import Grid, trials
from tests.bench_case import row

ROWS = [row(100, 110, 105), row(20, 21, 22, sizes=Sizes(n_gen=128))]


@contextlib.contextmanager
def limited_file_size(limit_bytes: int) -> Iterator[None]:
    """As on a full disk: a write past this size fails after its first part went through."""
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_nothing_yet() -> None:
    assert read_history(load()) == ([], 0)
    with pytest.raises(UsageError, match="there is no run @-1"):
        load_rows("@-1", load())


def test_runs_come_back_in_order() -> None:
    settings = load()
    remember(ROWS, "first", settings)
    remember(ROWS[:1], "", settings)
    runs, damaged = read_history(settings)
    assert [(run.number, run.label, len(run.rows)) for run in runs] == [(1, "first", 2), (2, "", 1)]
    assert damaged == 0
    assert runs[0].time == "2026-01-02T03:04:05Z"
    assert list(runs[0].rows) == ROWS
    assert load_rows("@1", settings) == ROWS
    assert load_rows("@-2", settings) == ROWS
    assert load_rows("@-1", settings) == ROWS[:1]
    assert (
        history_file(settings).stat().st_mode & 0o077 == 0 or history_file(settings).parent.stat().st_mode & 0o077 == 0
    )
    for name in ("@0", "@3", "@-3"):
        with pytest.raises(UsageError, match="there is no run"):
            load_rows(name, settings)
    with pytest.raises(UsageError, match="expected @N"):
        load_rows("@last", settings)


def test_a_damaged_line_costs_itself_alone() -> None:
    settings = load()
    remember(ROWS, "a", settings)
    with open(history_file(settings), "ab") as out:
        out.write(b'{"time": "x", "rows": [{"n_prompt": 1}]}\nnonsense\n[1]\n\xff\xfe\n')
    remember(ROWS, "b", settings)
    runs, damaged = read_history(settings)
    assert ([run.label for run in runs], [run.number for run in runs], damaged) == (["a", "b"], [1, 6], 4)


def test_half_a_line_does_not_cost_the_next_one() -> None:
    settings = load()
    remember(ROWS, "a", settings)
    with open(history_file(settings), "ab") as out:
        out.write(b'{"time": "2026')
    remember(ROWS, "b", settings)
    runs, damaged = read_history(settings)
    assert ([run.label for run in runs], damaged) == (["a", "b"], 1)


def test_a_full_disk_leaves_no_half_line() -> None:
    settings = load()
    remember(ROWS, "a", settings)
    before = history_file(settings).read_bytes()
    with limited_file_size(len(before) + 100), pytest.raises(LlmcliError, match="cannot keep the run"):
        remember(ROWS, "b", settings)
    assert history_file(settings).read_bytes() == before


def test_every_line_of_a_long_history_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load()
    for label in ("a", "b", "c"):
        remember(ROWS, label, settings)
    monkeypatch.setattr("llmcli.bench.runs._MAX_BYTES", history_file(settings).stat().st_size // 2)
    assert [run.label for run in read_history(settings)[0]] == ["a", "b", "c"]


def test_a_history_that_cannot_be_written(llmcli_home: Path) -> None:
    (llmcli_home / "state").mkdir()
    (llmcli_home / "state" / "bench").write_text("in the way")
    with pytest.raises(LlmcliError, match="cannot keep the run"):
        remember(ROWS, "", load())


@pytest.mark.parametrize("format_name", ["json", "jsonl", "csv"])
def test_files_in_every_format(format_name: str, tmp_path: Path) -> None:
    report = make_report(format_name, trials(Grid()))
    path = tmp_path / "rows"
    path.write_text(report.begin() + "".join(map(report.row, ROWS)) + report.end())
    found = load_rows(str(path), load())
    names = ("test", "n_prompt", "samples_ns", "samples_ts", "environment", "model_content_id", "avg_ts", "flags")
    assert [[one[name] for name in names] for one in found] == [[one[name] for name in names] for one in ROWS]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_object_of_json(indent: int | None, mark: str, tmp_path: Path) -> None:
    """Also as jq writes it, and with the mark that editors of Windows put in front."""
    path = tmp_path / "one.json"
    path.write_text(mark + json.dumps({"results": ROWS, "failures": [], "interrupted": False}, indent=indent) + "\n")
    assert load_rows(str(path), load()) == ROWS
    path.write_text(mark + json.dumps(ROWS[0], indent=indent))
    assert load_rows(str(path), load()) == ROWS[:1]


def test_a_csv_file_with_thousands_of_samples(tmp_path: Path) -> None:
    many = row(*[100.0] * 9000)
    report = make_report("csv", trials(Grid()))
    path = tmp_path / "rows.csv"
    path.write_text(report.row(many))
    assert len(path.read_text()) > 131072, "no cell is past the limit of csv"
    assert len(load_rows(str(path), load())[0]["samples_ts"]) == 9000


def test_a_file_of_llama_bench(tmp_path: Path) -> None:
    """Its csv has no samples; its json has."""
    theirs: Row = {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 90.5, "test_time": "2026-01-01T00:00:00Z"}
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps([theirs]))
    assert load_rows(str(path), load())[0]["samples_ts"] == [90.5]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[1]", "nonsense", '{"results": 3}', "[[[[", '[{"n_prompt": 1}]', "a,b\n1,2\n", "\0\0"]
)
def test_what_is_no_run(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(UsageError, match="holds no results"):
        load_rows(str(path), load())


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "fast", None])
def test_samples_are_rates(rate: object, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([{**ROWS[0], "samples_ts": [1.0, rate]}]))
    with pytest.raises(UsageError, match="holds no results"):
        load_rows(str(path), load())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        load_rows(str(tmp_path / "no.json"), load())
