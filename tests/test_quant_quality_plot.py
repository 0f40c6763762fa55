"""Pictures of size against loss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import UsageError
from llmcli.quant.quality_compare import Comparison, Row
from llmcli.quant.quality_plot import check_plot, draw, write_plot
from llmcli.quant.quality_stats import Perplexity, Versus


def row(name: str, size: int, kld: float | None) -> Row:
    fields: list[Any] = [1.0] * len(Versus.__slots__)
    fields[list(Versus.__slots__).index("kld_mean")] = kld
    against = None if kld is None else Versus(*fields)
    return Row(name, f"/{name}", "c", "Q4_0", size, 4.5, Perplexity(10 + size % 7, 0.1, 5), against, None)


def comparison(*rows: Row, base: Row | None = None) -> Comparison:
    return Comparison("text.txt", "0", 3, 512, 765, base, rows)


BASE = row("F16", 300 << 20, None)
TWO = comparison(row("Q4_0", 90 << 20, 0.1), row("Q8_0", 140 << 20, 0.002), base=BASE)


def test_a_png_and_an_svg_are_written(tmp_path: Path) -> None:
    write_plot(TWO, tmp_path / "a.png")
    write_plot(TWO, tmp_path / "a.SVG")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "a.SVG").read_bytes()
    assert oct((tmp_path / "a.png").stat().st_mode)[-3:] == "644"
    assert {p.name for p in tmp_path.iterdir()} == {"a.png", "a.SVG"}


def test_the_same_figures_give_the_same_bytes_and_others_do_not() -> None:
    assert draw(TWO, "svg") == draw(TWO, "svg")
    assert draw(TWO, "svg") != draw(comparison(row("Q4_0", 91 << 20, 0.1), base=BASE), "svg")


def test_each_model_has_a_colour_and_a_marker_of_its_own() -> None:
    shown = draw(comparison(*(row(f"m{i}", (i + 1) << 20, 0.1 * (i + 1)) for i in range(7)), base=BASE), "svg").decode()
    for color in ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"):
        assert color in shown


@pytest.mark.parametrize("kld", [0.0, -1e-9])
def test_no_loss_at_all_can_be_drawn(kld: float) -> None:
    assert draw(comparison(row("same", 1 << 20, kld), base=BASE), "png").startswith(b"\x89PNG")


def test_without_a_base_it_is_the_perplexity() -> None:
    assert draw(comparison(row("a", 1 << 20, None), row("b", 2 << 20, None)), "png").startswith(b"\x89PNG")


def test_names_are_shown_as_they_are() -> None:
    assert b"<svg" in draw(comparison(row("a$b$\x1b[31m_{x", 1 << 20, 0.1), base=BASE), "svg")


@pytest.mark.parametrize("name", ["a.pdf", "a", "png", ".png"])
def test_other_kinds_of_picture_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a picture"):
        check_plot(Path(name))


def test_matplotlib_is_not_loaded_before_something_is_drawn() -> None:
    code = "import sys, llmcli.quant.quality_plot, llmcli.cli.cmd_quality; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
