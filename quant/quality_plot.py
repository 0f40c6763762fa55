"""A picture of what models cost in size and lose in quality. matplotlib is loaded when one is drawn."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from llmcli.base.drawing import starting_matplotlib
from llmcli.base.errors import UsageError
from llmcli.base.files import atomic_write
from llmcli.base.text import printable
from llmcli.quant.quality_compare import Comparison, Row

FORMATS = (".png", ".svg")
# Okabe and Ito's colours, which people with any kind of colour blindness can tell apart; markers differ besides.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_MIB = 1 << 20
_FILE_MODE = 0o644


def check_plot(path: Path) -> None:
    """Raise UsageError for a file name that is no picture's."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"{printable(str(path))} is no name of a picture", hint="end it in .png or .svg")


def write_plot(comparison: Comparison, path: Path) -> None:
    """Draw size against KL divergence, or against perplexity where there is no base. Raises OSError."""
    atomic_write(path, draw(comparison, path.suffix.lower()[1:]), mode=_FILE_MODE)


def draw(comparison: Comparison, kind: str) -> bytes:
    """The picture as bytes of `kind`, png or svg; the same for the same figures."""
    with starting_matplotlib():
        import matplotlib as mpl
        from matplotlib.figure import Figure
    with mpl.rc_context({"svg.hashsalt": "llmcli", "svg.fonttype": "path"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        points = _points(comparison)
        for number, (row, value) in enumerate(points):
            color, marker = _COLORS[number % len(_COLORS)], _MARKERS[number % len(_MARKERS)]
            size = row.file_bytes / _MIB
            axes.plot([size], [value], linestyle="none", marker=marker, markersize=8, color=color)
            axes.annotate(_label(row), (size, value), textcoords="offset points", xytext=(7, 5), fontsize=9)
        axes.set_xlabel("size of the file, MiB")
        axes.set_ylabel(_meaning(comparison))
        if all(value > 0 for _, value in points):
            axes.set_yscale("log")
        axes.margins(x=0.15, y=0.15)
        axes.grid(visible=True, which="both", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_title(_title(comparison), fontsize=10)
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    return out.getvalue()


def _points(comparison: Comparison) -> Sequence[tuple[Row, float]]:
    return [(row, row.against.kld_mean if row.against else row.alone.ppl) for row in comparison.rows]


def _meaning(comparison: Comparison) -> str:
    if comparison.base is None:
        return "perplexity (lower is better)"
    return f"mean KL divergence from {_label(comparison.base)} (lower is better)"


def _title(comparison: Comparison) -> str:
    text = _plain(comparison.text)
    return f"{text}: {comparison.n_windows} windows of {comparison.window_tokens} tokens"


def _label(row: Row) -> str:
    return _plain(row.name)


def _plain(text: str) -> str:
    """A name as it may stand in a picture: `$` would start a formula."""
    return printable(text).replace("$", r"\$")
