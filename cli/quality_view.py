"""The figures of measured models as a table: one column for each model, as many side by side as fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_count

if TYPE_CHECKING:
    from llmcli.quant.quality_compare import Comparison, Row
    from llmcli.quant.quality_stats import Versus

_LABEL_WIDTH, _GAP = 16, 2
_NAME_WIDTH = 24


def table_lines(comparison: Comparison, columns: int) -> Iterator[str]:
    """Every figure of every model, within `columns` characters a line where one model fits in them."""
    shown = [*([comparison.base] if comparison.base else []), *comparison.rows]
    cells = [_column(row, is_base=row is comparison.base) for row in shown]
    labels = _labels(comparison)
    widths = [max(map(len, column)) for column in cells]
    yield (
        f"{printable(comparison.text)}: {format_count(comparison.n_windows, 'window')} of "
        f"{format_count(comparison.window_tokens, 'token')}, {format_count(comparison.n_scored, 'token')} scored"
    )
    for group in _groups(widths, columns):
        yield ""
        for line, label in enumerate(labels):
            parts = [f"{cells[i][line]:>{widths[i]}}" for i in group]
            yield (f"{label:<{_LABEL_WIDTH}}" + "".join(" " * _GAP + part for part in parts)).rstrip()


def _groups(widths: Sequence[int], columns: int) -> Iterator[list[int]]:
    group: list[int] = []
    room = columns - _LABEL_WIDTH
    for i, width in enumerate(widths):
        if group and room < width + _GAP:
            yield group
            group, room = [], columns - _LABEL_WIDTH
        group.append(i)
        room -= width + _GAP
    yield group


_ALONE: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("size", lambda row: format_bytes(row.file_bytes)),
    ("type", lambda row: printable(row.quant)),
    ("bits per weight", lambda row: f"{row.bpw:.2f}"),
    ("PPL", lambda row: f"{row.alone.ppl:.4f} ± {row.alone.ppl_error:.4f}"),
)
_AGAINST: tuple[tuple[str, Callable[[Versus], str]], ...] = (
    ("ΔPPL", lambda v: f"{v.ppl_delta:+.4f} ± {v.ppl_delta_error:.4f}"),
    ("PPL ratio", lambda v: f"{v.ppl_ratio:.4f} ± {v.ppl_ratio_error:.4f}"),
    ("KLD mean", lambda v: f"{v.kld_mean:.6f} ± {v.kld_error:.6f}"),
    ("KLD median", lambda v: f"{v.kld_median:.6f}"),
    ("KLD 99%", lambda v: f"{v.kld_p99:.6f}"),
    ("KLD 99.9%", lambda v: f"{v.kld_p999:.6f}"),
    ("KLD max", lambda v: f"{v.kld_max:.6f}"),
    ("RMS Δp", lambda v: f"{v.rms_dp_percent:.3f} ± {v.rms_dp_error_percent:.3f} %"),
    ("same top token", lambda v: f"{v.same_top_percent:.2f} ± {v.same_top_error_percent:.2f} %"),
)
_RATES: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("reads, tok/s", lambda row: row.rates.prefill_tok_s if row.rates else None),
    ("writes, tok/s", lambda row: row.rates.decode_tok_s if row.rates else None),
)


def _labels(comparison: Comparison) -> list[str]:
    against = [label for label, _ in _AGAINST] if comparison.base else []
    return ["", *(label for label, _ in _ALONE), *against, *(label for label, _ in _RATES)]


def _column(row: Row, *, is_base: bool) -> list[str]:
    name = printable(row.name)
    if len(name) > _NAME_WIDTH:
        name = name[: _NAME_WIDTH // 2] + "…" + name[-_NAME_WIDTH // 2 + 1 :]
    cells = [name, *(show(row) for _, show in _ALONE)]
    if row.against:
        cells += [show(row.against) for _, show in _AGAINST]
    elif is_base:
        cells += ["base", *[""] * (len(_AGAINST) - 1)]
    return cells + [_rate(value(row)) for _, value in _RATES]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
