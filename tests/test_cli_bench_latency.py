"""`llmcli bench latency` on a tiny model: the object, the tables, the plot."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET  # our own file
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ResourceError
from llmcli.bench.latency import Latency, LatencyOptions
from llmcli.bench.latency_result import Point
from llmcli.cli.bench_latency_view import Found
from tests.bench_case import ENVIRONMENT
from tests.cli_run_case import engine_memo, known_engine, refused
from tests.fixtures.cli_process import SCRIPT
from tests.test_bench_latency_result import point as timed
from tests.test_cli_cmd_bench import Bench, bench

__all__ = ["bench", "engine_memo", "known_engine"]
QUICK = ("-t", "1", "-p", "64,128", "-r", "2", "--answer-tokens", "4", "--question-tokens", "8")


@pytest.fixture
def model(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"])


def test_everything(bench: Bench, model: Path, tmp_path: Path, llmcli_home: Path) -> None:
    plot = tmp_path / "ttft.svg"
    done = bench("latency", "-m", model, *QUICK, "--json", "--plot", plot)
    assert (done.code, done.err) == (0, f"wrote {plot}\n")
    found = json.loads(done.out)
    assert [point["prefix_tokens"] for point in found["points"]] == [64, 128]
    for point in found["points"]:
        for kind in ("cold", "memory", "disk"):
            samples = [one["ttft_s"] for one in point["requests"] if one["kind"] == kind]
            assert len(samples) == 2
            assert point[f"{kind}_ttft_s"] == statistics.median(samples)
    assert list(found["processes"]) == ["cold", "disk"]
    assert [one["restored_tokens"] for one in found["processes"]["cold"]] == [0, 0]
    # So small a model computes sooner than a process restores: the store may pass, and says so by restoring nothing.
    assert all(one["restored_tokens"] in (0, 64, 128) for one in found["processes"]["disk"])
    # As text and back: BOS, and a character that the cut of the prefix went through.
    assert all(136 <= one["prompt_tokens"] <= 144 for one in found["processes"]["disk"])
    assert all(one["start_s"] > 0 < one["first_byte_s"] for one in found["processes"]["disk"])
    texts = {node.text for node in ET.fromstring(plot.read_bytes()).iter("{http://www.w3.org/2000/svg}text")}
    assert {"cold", "prefix in memory", "prefix restored from disk", "time to first token (ms)"} <= texts
    assert [path.name for path in (llmcli_home / "cache").iterdir() if path.name.startswith("bench-")] == []


def test_tables(bench: Bench, model: Path) -> None:
    done = bench("latency", "-m", model, *QUICK, "--no-processes", "--drop-page-cache")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].split() == [
        *("prefix", "TTFT", "cold", "memory", "disk", "cold/disk", "restored", "on", "disk", "saving"),
    ]
    assert [line.split()[0] for line in lines[1:3]] == ["64", "128"]
    assert "prefix of 128 tokens:" in lines
    below = lines[lines.index("prefix of 128 tokens:") + 2 :]
    assert [line.split()[0] for line in below[:2]] == ["cold", "memory"]  # from disk only where the store does not pass
    assert "whole processes" not in done.out


def test_a_failure_keeps_what_was_measured(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = Latency._point

    def failing(self: Latency, length: int, on_step: Callable[[str], None]) -> Point:
        if length == 128:
            raise ResourceError("no memory for 128")
        return point(self, length, on_step)

    monkeypatch.setattr(Latency, "_point", failing)
    done = bench("latency", "-m", model, *QUICK, "--json")
    assert (done.code, done.err) == (6, "error: no memory for 128\n")
    found = json.loads(done.out)
    assert ([one["prefix_tokens"] for one in found["points"]], found["error"]) == ([64], "no memory for 128")
    assert "no memory for 128" in refused(bench("latency", "-m", model, "-t", "1", "-p", "128"), 6)


def test_a_process_that_fails_keeps_the_points(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcli.cli.bench_latency.ourselves", lambda: [sys.executable, "-c", "exit('no luck')"])
    done = bench("latency", "-m", model, *QUICK)
    assert (done.code, done.err) == (1, "error: llmcli run: no luck\n")
    assert "prefix of 128 tokens:" in done.out


def test_a_store_that_keeps_nothing_says_why(bench: Bench, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcli.cache_store.save.free_bytes", lambda _folder: 0)
    done = bench("latency", "-m", model, *QUICK, "-p", "64,64", "--no-processes")
    assert done.code == 0
    assert done.err == "the prefix store kept less than it could: the disk is nearly full\n"
    assert [line.split()[0] for line in done.out.splitlines()[1:3]] == ["64", "128"], "64 is measured once"
    assert "no prefix was restored from disk" in done.out


def test_bad_values(bench: Bench, model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("short")
    assert "a prefix of 128 is asked for" in refused(bench("latency", "-m", model, *QUICK, "-f", short), 2)
    assert "an .svg or a .png file" in refused(bench("latency", "-m", model, *QUICK, "--plot", "x.pdf"), 2)
    assert "do not fit" in refused(bench("latency", "-m", model, *QUICK, "-c", "100"), 4)
    assert "no such file" in refused(bench("latency", "-m", tmp_path / "no.gguf", *QUICK), 3)


@pytest.mark.skipif(os.name == "nt", reason="no process can be sent a Ctrl-C there")
def test_ctrl_c_keeps_the_points_before_it(model: Path) -> None:
    args: list[str | Path] = ["bench", "latency", "-m", model, "-t", "1", "-p", "64-400", "-r", "1", "--json"]
    done = interrupted(args, b"prefix of 67")
    assert done.returncode == 130
    found = json.loads(done.stdout)
    assert found["interrupted"] is True
    assert [point["prefix_tokens"] for point in found["points"]][:3] == [64, 65, 66]
    assert found["processes"] == {}
    assert done.stderr.endswith(b"error: interrupted\n")


def interrupted(args: list[str | Path], line: bytes) -> subprocess.CompletedProcess[bytes]:
    """`llmcli ARGS -v`, with a Ctrl-C when a line of stderr begins like this."""
    with subprocess.Popen([SCRIPT, *args, "-v"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr
        for told in child.stderr:
            if told.startswith(line):
                child.send_signal(signal.SIGINT)
                break
        out, err = child.communicate(timeout=60)
    return subprocess.CompletedProcess(args, child.returncode, out, err)


def found(*points: Point, load_1min: float = 0.0) -> Found:
    environment = {**ENVIRONMENT, "conditions": {**ENVIRONMENT["conditions"], "load_1min": load_1min}}
    return Found("m", 1.0, environment, LatencyOptions((64,)), points=list(points))


def test_the_verdict_is_no_surer_than_the_samples() -> None:
    assert (
        "cannot be told: 1 sample of a kind, and a verdict takes 3 (-r 3)\n" in found(timed(64, 10, 5, n=1)).as_text()
    )
    assert "disk wins from 64 tokens on, the shortest that was measured\n" in found(timed(64, 10, 5)).as_text()
    untold = timed(64, 10, 10)
    assert "too scattered" in found(untold).as_text()
    assert (
        "disk wins from 128 tokens on at the latest\n" in found(timed(32, 5, 10), untold, timed(128, 20, 5)).as_text()
    )


def test_a_busy_machine_is_told() -> None:
    assert "busy machine" not in found(timed(64, 10, 5)).as_text()
    busy = found(timed(64, 10, 5), load_1min=1000.0)
    assert "\n! busy machine: load above " in busy.as_text()
    assert len(busy.as_json()["flags"]) == 1
