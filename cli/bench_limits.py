"""The options that say when a comparison is a failure, and in what two runs may differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmcli.bench.compare import ASPECTS, Aspect
from llmcli.bench.limits import Limit, parse_limit
from llmcli.cli.bench_params import Words, list_option
from llmcli.cli.options import group, option
from llmcli.cli.params import Text

limit_options = group(
    option(
        "--fail-if",
        type=Text(),
        multiple=True,
        metavar="LIMIT",
        help="Exit 5 past a change, as 'tg<-5%', 'pp512<-3%', 'any<-10%', 'load>20%', 'memory>10%'; may be repeated.",
    ),
    list_option(
        "--across",
        kind=Words((*ASPECTS, "all")),
        metavar="LIST",
        help="In what the two may differ: machine, build, model, settings, all.",
    ),
)


def limits_from(values: Mapping[str, Any]) -> tuple[Limit, ...]:
    """The limits of --fail-if. Raises UsageError for one that cannot be read."""
    return tuple(parse_limit(text) for text in values["fail_if"])


def across_from(values: Mapping[str, Any]) -> tuple[Aspect, ...]:
    """In what the runs may differ."""
    asked = values["across"]
    return ASPECTS if "all" in asked else tuple(aspect for aspect in ASPECTS if aspect in asked)
