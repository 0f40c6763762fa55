"""`llmcli bench` with a real model: what llama.cpp says of it, and a prefix that is restored sooner than computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_run_case import engine_memo, known_engine
from tests.test_cli_cmd_bench import Bench, bench

__all__ = ["bench", "engine_memo", "known_engine"]


def test_rates_and_roofline(bench: Bench, smollm2_path: Path) -> None:
    args = ("-m", smollm2_path, "-t", "1", "-p", "64", "-n", "8", "-d", "0,64", "-r", "2", "--roofline")
    rows = bench.rows(*args)
    assert [row["test"] for row in rows] == ["pp64", "tg8", "pp64 @ d64", "tg8 @ d64"]
    for row in rows:
        assert (row["model_size"], row["model_n_params"]) == (96576768, 134515008)  # as llama-bench prints them
        assert row["model_type"] == "llama 256M Q4_1"
        found = row["roofline"]
        bandwidth = found["bytes_per_token"] * row["median_ts"] / found["bandwidth_bytes_s"]
        arithmetic = found["ops_per_token"] * row["median_ts"] / found["peak_ops_s"]
        assert (found["bandwidth_share"], found["arithmetic_share"]) == pytest.approx((bandwidth, arithmetic))
    by_name = {row["test"]: row["roofline"] for row in rows}
    # The embedding is the output layer, too: every byte of the file is read for a token, and the cache behind it.
    assert by_name["tg8"]["bytes_per_token"] == 96576768 + 256 * 30 * 3 * (64 + 64) * 2
    assert by_name["tg8"]["ops_per_token"] > 2 * 134e6
    assert by_name["pp64"]["bytes_per_token"] < by_name["tg8"]["bytes_per_token"] / 60


def test_latency(bench: Bench, smollm2_path: Path) -> None:
    args = ("-t", "1", "-p", "256", "-r", "1", "--answer-tokens", "3", "--question-tokens", "16", "--no-processes")
    found = json.loads(bench("latency", "-m", smollm2_path, *args, "--json").out)
    (point,) = found["points"]
    assert [one["restored_tokens"] for one in point["requests"]] == [0, 256, 256]
    assert point["written_bytes"] > 256 * 30 * 3 * (64 + 64) * 2  # the KV cache of the prefix
    assert point["requests"][0]["prompt_tokens"] == 272
