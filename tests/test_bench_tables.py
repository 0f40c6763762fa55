"""Aligned columns."""

from __future__ import annotations

from llmcli.bench.tables import percent, table


def test_table() -> None:
    assert table(("test", "t/s"), [("pp512", "1.5"), ("tg8", "100.25")]) == (
        "test      t/s\npp512     1.5\ntg8    100.25\n"
    )
    assert table(("a", "b"), [("x\x1b", "")]) == "a      b\nx\\x1b\n"


def test_percent() -> None:
    assert [percent(x) for x in (0.0512, -0.5, 0, None)] == ["+5.1%", "-50.0%", "+0.0%", ""]
