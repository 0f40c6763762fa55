"""`llmcli quantize --report`: how fast each type is here, and what the outputs lost and gained against the model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from llmcli.base.settings import Settings
from llmcli.cli.quality_view import table_lines
from llmcli.cli.quantize_view import QuantizeView
from llmcli.engine.plan import Request
from llmcli.hardware.cores import read_cores
from llmcli.quant.corpus import EVALUATION, shipped
from llmcli.quant.quality_compare import Comparison, Options, compare
from llmcli.quant.rates import Rates, rate_lines, type_rates
from llmcli.quant.run import Outcome, Source

_WINDOWS, _WINDOW_TOKENS = 4, 512


@dataclass(frozen=True, slots=True)
class Report:
    """The rates of types on this CPU, and the outputs measured against the model; None after a dry run."""

    rates: Rates
    comparison: Comparison | None

    def lines(self) -> list[str]:
        """Both as tables."""
        found = ["", "this CPU, for a model of 1,000,000,000 weights:", *rate_lines(self.rates)]
        if self.comparison:
            found += ["", *table_lines(self.comparison, shutil.get_terminal_size().columns)]
        return found

    def as_json(self) -> dict[str, Any]:
        """Both with stable names."""
        rates = {name: asdict(rate) for name, rate in self.rates.items()}
        return {"type_rates": rates, "quality": self.comparison.as_json() if self.comparison else None}


def report(
    source: Source, outcomes: Sequence[Outcome], values: Mapping[str, Any], settings: Settings, view: QuantizeView
) -> Report:
    """Measure both."""
    threads = values["threads"] or read_cores().usable
    rates = type_rates(settings, threads, view.notify)
    made = [str(outcome.target.first) for outcome in outcomes if outcome.seconds is not None]
    if not made or not source.facts.has_vocabulary:
        return Report(rates, None)
    plan = Request(n_ctx=_WINDOW_TOKENS, n_threads=threads, n_threads_batch=threads)
    options = Options(n_windows=_WINDOWS)
    text = shipped(EVALUATION)
    return Report(
        rates,
        compare(str(source.path), made, text, plan=plan, settings=settings, reporter=view, options=options),
    )
