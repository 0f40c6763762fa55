"""Limits on quality, as they are written and as they are kept."""

from __future__ import annotations

import pytest

from llmcli.base.errors import UsageError
from llmcli.quant.quality_compare import Row
from llmcli.quant.quality_limits import METRICS, Limit, parse_limit
from llmcli.quant.quality_rate import Rates
from llmcli.quant.quality_stats import Perplexity, Versus


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("kld>0.1", Limit("kld", ">", 0.1)),
        (" KLD >= 0.1 ", Limit("kld", ">=", 0.1)),
        ("same_top<95%", Limit("same_top", "<", 95)),
        ("ppl<=12.5", Limit("ppl", "<=", 12.5)),
        ("size>4G", Limit("size", ">", 4 << 30)),
        ("bpw>4", Limit("bpw", ">", 4)),
    ],
)
def test_limits_are_read(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kld",
        "kld=0.1",
        "kld>",
        "kld>x",
        "kld>nan",
        "kld>-1",
        "kld>1e5",
        "nope>1",
        "kld>0.1>0.2",
        "size>4X",
        "kld>\n",
    ],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(text)
    assert caught.value.hint


def test_the_names_are_told() -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit("nope>1")
    assert all(name in str(caught.value.hint) for name in METRICS)


def test_a_limit_is_missed_where_it_holds() -> None:
    limit = parse_limit("kld>0.1")
    assert limit.missed_by({"kld_mean": 0.25}) == "kld is 0.25, and the limit is kld>0.1"
    assert limit.missed_by({"kld_mean": 0.1}) is None
    assert limit.missed_by({"kld_mean": None}) is None
    assert limit.missed_by({}) is None
    assert parse_limit("kld>=0.1").missed_by({"kld_mean": 0.1})
    assert parse_limit("tg<20").missed_by({"decode_tok_s": 19.0})
    assert parse_limit("tg<=20").missed_by({"decode_tok_s": 20.0})


def test_which_need_a_base() -> None:
    assert {name for name in METRICS if not parse_limit(f"{name}>1").needs_base} == {"ppl", "size", "bpw", "pp", "tg"}


def test_every_metric_is_a_figure_of_a_row() -> None:
    against = Versus(*[1.0] * len(Versus.__slots__))
    row = Row("n", "p", "c", "Q4_0", 1, 4.5, Perplexity(1, 1, 1), against, Rates(1, 1))
    assert set(METRICS.values()) <= set(row.figures())
