"""What the machine can do: measured on small buffers, kept and found again; and the shares of it."""

from __future__ import annotations

import pytest

from llmcli.base.settings import load
from llmcli.bench.cost import Cost
from llmcli.bench.machine import Machine, peak_ops, read_bandwidth, recall, remember
from llmcli.bench.roofline import shares

MACHINE = Machine(8, 40e9, 800e9)


def test_measured() -> None:
    assert read_bandwidth(2, buffer_bytes=4 << 20) > 1e6
    assert peak_ops(side=64) > 1e6


def test_kept_for_this_machine_alone() -> None:
    settings = load()
    assert recall("EPYC, 8 of 8 cores", settings) is None
    remember(MACHINE, "EPYC, 8 of 8 cores", settings)
    assert recall("EPYC, 8 of 8 cores", settings) == MACHINE
    assert recall("Xeon, 8 of 8 cores", settings) is None


NAN = '{"machine": "m", "threads": 1, "bandwidth_bytes_s": NaN, "ops_s": 1}'


@pytest.mark.parametrize("data", ["", "{}", "[]", '{"machine": "m", "threads": "x"}', "\xff", "[" * 100_000, NAN])
def test_a_damaged_note_is_none(data: str) -> None:
    settings = load()
    remember(MACHINE, "m", settings)
    (settings.state_dir / "bench" / "machine.json").write_text(data)
    assert recall("m", settings) is None


def test_shares() -> None:
    decode = shares(Cost(4e9, 16e9), 5.0, MACHINE)
    assert decode["bandwidth_share"] == pytest.approx(5 * 4e9 / 40e9)
    assert decode["arithmetic_share"] == pytest.approx(5 * 16e9 / 800e9)
    assert (decode["limit"], decode["limit_tok_s"]) == ("bandwidth", 10.0)
    prefill = shares(Cost(4e9 / 256, 16e9), 25.0, MACHINE)
    assert (prefill["limit"], prefill["limit_tok_s"]) == ("arithmetic", 50.0)
    assert prefill["arithmetic_share"] == 0.5
