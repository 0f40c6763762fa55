"""Charts: the SVG parses, the PNG decodes, the colours can be told apart by everyone."""

from __future__ import annotations

import errno
import itertools
import os
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET  # our own file
import zlib
from pathlib import Path

import pytest

from llmcli.base.errors import LlmcliError, ResourceError, UsageError
from llmcli.base.text import printable
from llmcli.bench.plot import COLORS, MOST_LINES, Chart, Series, check_name, draw, render

CHART = Chart(
    "TTFT by prefix",
    "prefix length (tokens)",
    "TTFT (ms)",
    (
        Series("cold", (64, 256, 1024), (80, 300, 1500), (78, 290, 1400), (85, 310, 1600)),
        Series("from disk", (64, 256, 1024), (60, 70, 90)),
    ),
    x_log2=True,
    y_log=True,
    marks=((128, "pays from here"),),
)


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and the unfiltered scan lines' bytes of a png, checked chunk by chunk."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, data, size = 8, b"", (0, 0)
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + body),)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        if kind == b"IDAT":
            data += body
        at += 12 + length
    return *size, zlib.decompress(data)


def test_png() -> None:
    width, height, lines = pixels(render(CHART, "png"))
    assert (width, height) == (960, 576)
    assert len(lines) == height * (4 * width + 1)
    assert len(set(lines)) > 20  # not one colour


def test_svg() -> None:
    data = render(CHART, "svg")
    root = ET.fromstring(data)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"TTFT by prefix", "prefix length (tokens)", "TTFT (ms)", "cold", "from disk", "pays from here"} <= texts
    drawn = data.decode().lower()
    assert COLORS[0].lower() in drawn
    assert COLORS[1].lower() in drawn
    assert render(CHART, "svg") == data  # the same chart, the same bytes


def test_names_in_place_of_numbers() -> None:
    names = tuple(f"@{i}" for i in range(30))
    chart = Chart("t", "run", "rate", (Series("tg", tuple(range(30)), (5.0,) * 30),), x_names=names)
    texts = [node.text for node in ET.fromstring(render(chart, "svg")).iter("{http://www.w3.org/2000/svg}text")]
    shown = [text for text in texts if text in names]
    assert shown[0] == "@0"
    assert shown[-1] == "@29"
    assert len(shown) == 8


@pytest.mark.parametrize("kind", ["svg", "png"])
@pytest.mark.parametrize("name", ["$a_{$^x", "_hidden", "\x01\x1b[31m", "\ud800", "模型🤖", "a\nb", "<&>", "%s", ""])
def test_any_name(name: str, kind: str) -> None:
    """No formula, no markup, no warning; a leading underscore does not take a line out of the legend."""
    series = (Series(name, (0,), (1,)), Series(name, (0,), (2,)))
    data = render(Chart(name, "x", "y", series, x_names=(name,)), kind)
    if kind == "png":
        assert pixels(data)[0] == 960
        return
    texts = ["".join(node.itertext()).strip() for node in ET.fromstring(data).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(printable(name)) == 4 or not name  # the title, the place, the legend


@pytest.mark.parametrize("count", [8, MOST_LINES])
def test_many_lines_have_room_for_their_names(count: int) -> None:
    series = tuple(Series(f"{'model' * 30} {n}", (0, 1), (float(n), 2.0 * n)) for n in range(count))
    width, height, _ = pixels(render(Chart("t", "x", "y", series), "png"))
    assert width > 960 + 700
    assert height >= max(576, 24 * count)


def test_a_backend_that_does_not_exist() -> None:
    code = "from llmcli.bench.plot import Chart, render; render(Chart('t', 'x', 'y', ()), 'svg')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "MPLBACKEND": "nonsense"}, capture_output=True, check=False
    )
    assert b"LlmcliError: matplotlib does not start: Key backend: 'nonsense'" in done.stderr


# How people with each kind of colour blindness see linear RGB: Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.0.
SEEN = {
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


@pytest.mark.parametrize("kind", SEEN)
def test_the_first_colours_are_told_apart(kind: str) -> None:
    def seen(color: str) -> tuple[float, ...]:
        rgb = [(int(color[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        return tuple(max(0.0, sum(a * b for a, b in zip(line, rgb, strict=True))) ** (1 / 2.2) for line in SEEN[kind])

    for one, other in itertools.combinations(COLORS[:4], 2):
        apart = sum((a - b) ** 2 for a, b in zip(seen(one), seen(other), strict=True)) ** 0.5
        assert apart > 0.25, (one, other)


def test_files(tmp_path: Path) -> None:
    for name in ("a.svg", "b.PNG"):
        draw(CHART, check_name(str(tmp_path / name)))
        assert (tmp_path / name).stat().st_size > 5000
    with pytest.raises(UsageError, match=r"an \.svg or a \.png file"):
        check_name("plot.pdf")
    with pytest.raises(LlmcliError, match=r"cannot write .*No such file"):
        draw(CHART, tmp_path / "no" / "a.svg")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcli.bench.plot.atomic_write", _no_space)
    with pytest.raises(ResourceError, match=r"cannot write .*a\.svg: No space left"):
        draw(CHART, tmp_path / "a.svg")


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
