"""Charts as SVG or PNG files, by matplotlib, which is imported only when something is drawn.

Colours are those of Okabe and Ito (jfly.uni-koeln.de/color, 2008), which people with any kind of colour blindness tell
apart; every line also has a marker and a dash of its own, for print in black and white.
"""

from __future__ import annotations

import errno
import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcli.base.drawing import starting_matplotlib
from llmcli.base.errors import LlmcliError, ResourceError, UsageError
from llmcli.base.files import atomic_write
from llmcli.base.text import printable

# In an order whose first four are far apart for everyone.
COLORS = ("#0072B2", "#D55E00", "#56B4E9", "#000000", "#E69F00", "#CC79A7", "#009E73")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_SUFFIXES = (".svg", ".png")
_INCHES, _DPI = (8.0, 4.8), 120
# So many lines are named inside the axes; the names of more stand beside them, in a figure that has room for that.
_MOST_INSIDE = 7
MOST_LINES = 100
_LABEL_CHARS = 60
# Text stays text in the SVG, and the same chart gives the same bytes. A name with a $ in it is no formula.
_STYLE: Any = {
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "llmcli",
    "font.size": 11.0,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points, and where there are several samples of each, their middle half."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """marks: (x, words) of vertical lines; x_names: words in place of numbers, for x = 0, 1, 2 …"""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log2: bool = False
    y_log: bool = False
    marks: tuple[tuple[float, str], ...] = ()
    x_names: tuple[str, ...] = ()


def check_name(name: str) -> Path:
    """The file to draw into. Raises UsageError for another kind of file than .svg and .png."""
    path = Path(name)
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{printable(name)}: a plot is an .svg or a .png file")
    return path


def draw(chart: Chart, path: Path) -> None:
    """Draw it. Raises LlmcliError where the file cannot be written, ResourceError where there is no room for it."""
    try:
        data = render(chart, path.suffix.lower().lstrip("."))
        umask = os.umask(0o022)
        os.umask(umask)
        atomic_write(path, data, mode=0o666 & ~umask)
    except OSError as error:
        kind = ResourceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else LlmcliError
        raise kind(f"cannot write {printable(str(path))}: {error.strerror or error}") from None


def render(chart: Chart, kind: str) -> bytes:
    """The chart as an svg or a png file. Raises LlmcliError where matplotlib does not start."""
    with starting_matplotlib():
        import matplotlib as mpl
        from matplotlib.figure import Figure
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a font without it draws a box
        figure = Figure(figsize=_inches(chart), dpi=_DPI, layout="constrained")
        axes = figure.subplots()
        for number, series in enumerate(chart.series):
            _line(axes, series, number)
        _dress(axes, chart)
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return out.getvalue()


def _inches(chart: Chart) -> tuple[float, float]:
    width, height = _INCHES
    if len(chart.series) <= _MOST_INSIDE:
        return _INCHES
    longest = max(len(_label(series)) for series in chart.series)
    return width + 0.7 + 0.1 * longest, max(height, 0.8 + 0.24 * len(chart.series))


def _label(series: Series) -> str:
    label = printable(series.label)
    if len(label) > _LABEL_CHARS:
        label = f"{label[: _LABEL_CHARS // 2]}…{label[-_LABEL_CHARS // 2 :]}"  # the test stands behind the model
    return f" {label}" if not label or label.startswith("_") else label  # the legend leaves such names out


def _line(axes: Any, series: Series, number: int) -> None:
    color = COLORS[number % len(COLORS)]
    style = {"marker": _MARKERS[number % len(_MARKERS)], "linestyle": _DASHES[number % len(_DASHES)], "color": color}
    axes.plot(series.x, series.y, label=_label(series), markersize=6, linewidth=1.8, **style)
    if series.low and series.high:
        axes.fill_between(series.x, series.low, series.high, color=color, alpha=0.18, linewidth=0)


def _dress(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    axes.set(title=printable(chart.title), xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.x_log2:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    if chart.y_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    if chart.x_names:
        axes.xaxis.set_major_locator(FixedLocator(_some(range(len(chart.x_names)))))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _named(chart.x_names, value)))
        axes.tick_params(axis="x", labelrotation=20)
    for x, words in chart.marks:
        axes.axvline(x, color="#555555", linewidth=1.0, linestyle=(0, (1, 2)))
        axes.annotate(words, (x, 0.97), xycoords=("data", "axes fraction"), xytext=(4, 0), textcoords="offset points",
                      va="top", fontsize=9, color="#333333")  # fmt: skip
    if len(chart.series) > _MOST_INSIDE:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    elif len(chart.series) > 1:
        axes.legend(frameon=False)


def _plain(value: float, _position: int | None = None) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _named(names: Sequence[str], value: float) -> str:
    index = round(value)
    return printable(names[index]) if 0 <= index < len(names) else ""


def _some(places: Sequence[int], most: int = 8) -> list[int]:
    """At most so many of the places, the first and the last among them: more names would lie over each other."""
    if len(places) <= most:
        return list(places)
    return sorted({places[round(i * (len(places) - 1) / (most - 1))] for i in range(most)})
