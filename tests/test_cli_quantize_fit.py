"""`llmcli quantize --fit`, `--bpw`, `--for-this-machine` and `--report` at the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcli.cli import quantize_fit, quantize_report
from llmcli.cli.main import call
from llmcli.quant.fit import Costs
from llmcli.quant.rates import TypeRate
from llmcli.quant.sensitivity import Sensitivity
from llmcli.quant.tensor_errors import TensorErrors
from tests.cli_run_case import engine_memo, known_engine, refused  # noqa: F401  # fixtures
from tests.fixtures.cli_process import Completed
from tests.fixtures.wide_model import write_wide, write_wide_imatrix

Quantize = Callable[..., Completed]
RATES = {name: TypeRate(0.01, 0.01) for name in ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q5_0", "Q5_1")} | {
    "IQ4_NL": TypeRate(0.9, 0.9),
    "Q3_K": TypeRate(0.02, 0.02),
    "IQ3_S": TypeRate(0.9, 0.9),
}


@pytest.fixture
def quantize(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quantize:
    """Calls `llmcli quantize` here, with a matrix, and with sensitivities and rates that need no measuring."""
    write_wide(tmp_path / "in.gguf", dtype=np.float16)
    write_wide_imatrix(tmp_path / "im.gguf")
    monkeypatch.chdir(tmp_path)

    def alike(source: Any, request: Any, weights: Any, *_rest: Any) -> Costs:
        return Costs(TensorErrors(source, weights.values, request.threads), Sensitivity({}, 1, 1.0))

    monkeypatch.setattr(quantize_fit, "measure_costs", alike)
    monkeypatch.setattr(quantize_fit, "type_rates", lambda *_args: RATES)
    monkeypatch.setattr(quantize_report, "type_rates", lambda *_args: RATES)

    def run(*args: str) -> Completed:
        code = call(["quantize", "-t", "2", "--imatrix", "im.gguf", *args])
        out, err = capfdbinary.readouterr()
        return Completed(code, out, err, 0.0, 0)

    return run


def test_the_plan_is_shown_then_done(quantize: Quantize) -> None:
    done = quantize("in.gguf", "out.gguf", "--bpw", "5", "--no-check")
    assert done.code == 0, done.err
    assert "the plan for in.gguf, 5 bits per weight:" in done.err
    assert done.out.startswith("in.gguf as a mix of types\n")
    assert "chosen for 5 bits per weight; predicted divergence" in done.out
    assert Path("out.gguf").exists()


def test_json_and_the_default_name(quantize: Quantize) -> None:
    done = quantize("in.gguf", "--fit", "1M", "--no-check", "--json")
    (row,) = json.loads(done.out)["outputs"]
    assert Path(row["path"]).name == "in-fit-1.0MiB.gguf"
    assert row["file_bytes"] == os.stat(row["path"]).st_size <= 1 << 20
    assert row["fit"]["file_bytes"] == 1 << 20
    assert row["fit"]["kept"] == "fit"
    assert row["fit"]["plain"]["predicted_kld"] >= row["fit"]["predicted_kld"]


def test_a_dry_run_writes_nothing(quantize: Quantize, tmp_path: Path) -> None:
    done = quantize("in.gguf", "--bpw", "4.5", "--dry-run", "-v")
    assert "would write" in done.out
    assert "ffn_up.weight:0: 1 " in done.err
    assert sorted(os.listdir(tmp_path)) == ["im.gguf", "in.gguf"]


def test_slow_types_are_left_out_for_this_machine(quantize: Quantize) -> None:
    done = quantize("in.gguf", "--bpw", "4.5", "--for-this-machine", "--dry-run")
    assert "left out, because others of their size are much quicker on this CPU: IQ4_NL, IQ3_S" in done.err
    assert "IQ4_NL" not in done.out


def test_for_this_machine(quantize: Quantize) -> None:
    done = quantize("in.gguf", "--for-this-machine", "--json")
    (row,) = json.loads(done.out)["outputs"]
    assert row["fit"]["chosen"] == row["type"]
    weighed = {one["type"]: one for one in row["fit"]["weighed"]}
    assert weighed[row["type"]]["predicted_kld"] <= row["fit"]["most_kld"]
    assert "IQ4_XS" not in weighed  # it has no rate
    assert Path(row["path"]).name == f"in-{row['type']}.gguf"


def test_a_report_of_a_dry_run_is_the_rates(quantize: Quantize) -> None:
    done = quantize("in.gguf", "Q8_0", "--dry-run", "--report")
    assert "this CPU, for a model of 1,000,000,000 weights:" in done.out
    told = json.loads(quantize("in.gguf", "Q8_0", "--dry-run", "--report", "--json").out)
    assert told["type_rates"]["Q8_0"] == {"read_s": 0.01, "write_s": 0.01}
    assert told["quality"] is None


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["in.gguf", "Q4_0", "--bpw", "5"], "the types are chosen"),
        (["in.gguf", "a", "b", "--bpw", "5"], "expected IN [OUT]"),
        (["in.gguf", "--bpw", "0"], "between 0.5 and 32"),
        (["in.gguf", "--fit", "1k"], "is too small: the least that this model takes is"),
        (["in.gguf", "--bpw", "0.6"], "too few: this model takes"),
    ],
)
def test_refusals(quantize: Quantize, tmp_path: Path, args: list[str], why: str) -> None:
    assert why in refused(quantize("-q", *args), 2)
    assert sorted(os.listdir(tmp_path)) == ["im.gguf", "in.gguf"]
