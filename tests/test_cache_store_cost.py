from __future__ import annotations

import math

from llmcli.cache_store.cost import LOOKUP_S, Rates
from llmcli.cache_store.keys import Scalar

MEASURED = Rates(prefill_tok_s=1000.0, restore_bytes_s=1e9, save_bytes_s=5e8)


def test_saved_seconds() -> None:
    assert math.isclose(MEASURED.saved_s(2000, 500_000_000) or 0, 2.0 - 0.5 - LOOKUP_S)
    assert Rates().saved_s(1, 1) is None


def test_restoring_and_saving_are_refused_only_by_measurement() -> None:
    assert MEASURED.worth_restoring(2000, 500_000_000)
    assert not MEASURED.worth_restoring(1, 10_000_000)
    assert not MEASURED.worth_restoring(3, 0)  # the look-up alone costs more
    assert Rates().worth_restoring(1, 1 << 40)
    assert MEASURED.worth_saving(256, 100_000_000)
    assert not MEASURED.worth_saving(256, 200_000_000)  # 0.4 s to write what took 0.256 s to compute
    assert not MEASURED.worth_saving(100, 200_000_000)
    assert Rates(prefill_tok_s=1.0).worth_saving(1, 1 << 40)


def test_blending_moves_half_way_and_keeps_what_was_not_measured() -> None:
    assert MEASURED.blended(Rates(prefill_tok_s=3000.0)) == Rates(2000.0, 1e9, 5e8)
    assert Rates().blended(MEASURED) == MEASURED


def test_notes_round_trip_and_hostile_ones_count_as_unmeasured() -> None:
    assert Rates.from_notes(MEASURED.as_notes()) == MEASURED
    assert Rates().as_notes() == {}
    hostile: dict[str, Scalar] = {
        "rate_prefill_tok_s": "x",
        "rate_restore_bytes_s": -1,
        "rate_save_bytes_s": True,
        "other": 1,
    }
    assert Rates.from_notes(hostile) == Rates()
