"""The five formats, read back by what reads them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from typing import Any

import pytest

from llmcli.bench.report import FORMATS, make_report, rate_text
from llmcli.bench.result import Row
from llmcli.bench.sizes import Sizes
from llmcli.bench.trials import Grid, trials
from tests.bench_case import row

ROWS = [row(100, 110, 105), row(20, 21, 22, sizes=Sizes(n_gen=128))]


def text(format_name: str, rows: list[Row], **options: Any) -> str:
    report = make_report(format_name, trials(Grid()), **options)
    return report.begin() + "".join(report.row(one) for one in rows) + report.end()


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        (148, ["model", "size", "params", "backend", "threads", "test", "t/s", "load", "peak"]),
        (140, ["model", "size", "params", "backend", "threads", "test", "t/s", "load", "peak"]),
        (120, ["model", "size", "threads", "test", "t/s", "load", "peak"]),
        (80, ["model", "test", "t/s", "load"]),
        (20, ["model", "test", "t/s"]),
    ],
)
def test_md_fits_the_terminal(columns: int, left: list[str]) -> None:
    rows = [{**one, "model_type": "a model with quite a long name Q4_K"} for one in ROWS]
    lines = text("md", rows, columns=columns).splitlines()[:4]
    assert [name.strip() for name in lines[0].split("|")[1:-1]] == left
    assert len({len(line) for line in lines[:2]}) == 1
    assert len(lines[0]) <= columns or columns < 60
    narrow = columns < 148
    assert (len({len(line) for line in lines}) == 1) == narrow  # with its own widths a long name sticks out
    assert ("a model with quite a lo…" in lines[2]) == narrow


def test_md_is_a_table_with_notes() -> None:
    lines = text("md", ROWS).splitlines()
    assert lines[0].split("|")[1:-1] == [
        *(" model                          ", "       size ", "     params ", " backend    "),
        *(" threads ", "            test ", "                  t/s ", "     load ", "       peak "),
    ]
    assert len({len(line) for line in lines[:4]}) == 1
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:4]]
    assert cells[0] == [
        *("llama 8B Q4_K - Medium", "4.50 GiB", "8.59 B", "CPU", "8", "pp512"),
        *("105.00 ± 2.50", "250 ms", "5.0 GiB"),
    ]
    assert (cells[1][5], cells[1][6]) == ("tg128", "21.00 ± 0.50")
    assert lines[4:] == [
        "",
        "build: llama-cpp-python 1 (llama.cpp 2)",
        "machine: EPYC, 8 of 8 cores, governor performance, load 0.50",
    ]


def test_md_tells_each_flag_once() -> None:
    wide = [row(100, 150, 200), row(100, 150, 200, sizes=Sizes(n_gen=8)), row(100, 100)]
    assert [line for line in text("md", wide).splitlines() if line.startswith("!")] == [
        "! pp512, tg8: wide spread: the middle half spans more than 5% of the median"
    ]


def test_md_shows_the_settings_that_were_asked_for() -> None:
    asked = trials(Grid(n_ubatch=(64,), flash_attn=("on",), type_k=("q8_0",), n_gpu_layers=(0,)))
    head = make_report("md", asked, roofline=True).begin().splitlines()[0]
    names = [cell.strip() for cell in head.split("|")[1:-1]]
    assert names == [
        *("model", "size", "params", "backend", "ngl", "threads", "n_ubatch", "type_k", "fa"),
        *("test", "t/s", "load", "peak", "% bw", "% peak"),
    ]


def test_one_sample_has_no_spread() -> None:
    assert rate_text(row(100)) == "100.00"
    assert "±" not in text("md", [row(100)])
    assert rate_text(row(100, 104)) == "102.00 ± 1.00"


def test_json_and_jsonl_are_the_rows() -> None:
    assert json.loads(text("json", ROWS)) == ROWS
    assert [json.loads(line) for line in text("jsonl", ROWS).splitlines()] == ROWS
    assert json.loads(text("json", ROWS[:1])) == ROWS[:1]


def test_csv_has_every_field() -> None:
    found = list(csv.DictReader(io.StringIO(text("csv", ROWS))))
    assert [list(one) for one in found] == [list(ROWS[0])] * 2
    assert [json.loads(one["samples_ns"]) for one in found] == [one["samples_ns"] for one in ROWS]
    assert (found[0]["n_prompt"], found[0]["repack"], found[1]["test"]) == ("512", "1", "tg128")


def test_sql_fills_a_table() -> None:
    awkward = {**ROWS[0], "model_filename": "it's.gguf", "peak_bytes": None}
    database = sqlite3.connect(":memory:")
    try:
        database.executescript(text("sql", [awkward, ROWS[1]]))
        found = database.execute("SELECT n_prompt, n_gen, model_filename, peak_bytes, samples_ns FROM llama_bench")
        assert found.fetchall() == [
            (512, 0, "it's.gguf", None, json.dumps(ROWS[0]["samples_ns"])),
            (0, 128, "/models/llama.gguf", 5 << 30, json.dumps(ROWS[1]["samples_ns"])),
        ]
    finally:
        database.close()


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_go_out_one_by_one(format_name: str) -> None:
    report = make_report(format_name, trials(Grid()))
    report.begin()
    assert report.row(ROWS[0])
    assert report.row(ROWS[1])
