"""Results as text in llama-bench's formats: md, csv, json, jsonl, sql. Rows go out as they come, so that what was
measured is there whatever happens to the rest. Knows rows (bench.result), prints nothing.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from llmcli.base.text import printable
from llmcli.base.units import format_bytes, format_seconds
from llmcli.bench.environment import machine_id
from llmcli.bench.result import Row
from llmcli.bench.trials import Trial

FORMATS = ("md", "csv", "json", "jsonl", "sql")
_MIB, _GIB = 1 << 20, 1 << 30
# Column of the md table -> (width, right-aligned); llama-bench's widths where it has the column.
_WIDTHS: Mapping[str, tuple[int, bool]] = {
    "model": (30, False),
    "size": (10, True),
    "params": (10, True),
    "backend": (10, False),
    "ngl": (3, True),
    "threads": (7, True),
    "n_batch": (7, True),
    "n_ubatch": (8, True),
    "type_k": (6, True),
    "type_v": (6, True),
    "fa": (4, True),
    "test": (15, True),
    "t/s": (20, True),
    "load": (8, True),
    "peak": (10, True),
    "% bw": (6, True),
    "% peak": (6, True),
}
# Where a line is too long for the terminal: narrower columns, then fewer of them, the first of these first.
_NARROW: Mapping[str, int] = {"model": 24, "test": 12, "t/s": 16}
_LESS_NEEDED = ("params", "backend", "size", "peak", "threads", "load")
# Columns that are there only where a trial asks for something: column -> field of the request and its default.
_ASKED = {
    "n_batch": ("n_batch", None),
    "n_ubatch": ("n_ubatch", None),
    "type_k": ("type_k", "f16"),
    "type_v": ("type_v", "f16"),
    "fa": ("flash_attn", "auto"),
}


class Report(Protocol):
    """Three pieces of text, in this order; `begin` comes with the first row only."""

    def begin(self) -> str:
        """What stands before the rows."""

    def row(self, row: Row) -> str:
        """One row."""

    def end(self) -> str:
        """What stands behind them."""


def make_report(
    format_name: str, trials: Sequence[Trial], *, roofline: bool = False, columns: int | None = None
) -> Report:
    """The report of this format, for results of these trials; the table fits `columns`, where there is such an edge."""
    if format_name == "md":
        return _Markdown(trials, roofline=roofline, columns=columns)
    kinds: Mapping[str, Callable[[], Report]] = {"csv": _Csv, "json": _Json, "jsonl": _JsonLines, "sql": _Sql}
    return kinds[format_name]()


class _Markdown:
    def __init__(self, trials: Sequence[Trial], *, roofline: bool, columns: int | None) -> None:
        asked = [name for name, (field, usual) in _ASKED.items() if _is_asked(trials, field, usual)]
        self._layers = any(trial.request.n_gpu_layers is not None for trial in trials)
        self._columns = ["model", "size", "params", "backend", *(["ngl"] * self._layers), "threads", *asked]
        self._columns += ["test", "t/s", "load", "peak", *(["% bw", "% peak"] * roofline)]
        self._widths = {name: _WIDTHS[name][0] for name in self._columns}
        if columns is not None and self._line_columns() > columns:
            self._make_narrow(columns)
        self._last: Row | None = None
        self._notes: dict[str, list[str]] = {}

    def _line_columns(self) -> int:
        return 1 + sum(self._widths[name] + 3 for name in self._columns)

    def _make_narrow(self, columns: int) -> None:
        self._widths.update((name, width) for name, width in _NARROW.items() if name in self._columns)
        for name in _LESS_NEEDED:
            if self._line_columns() > columns and name in self._columns:
                self._columns.remove(name)

    def begin(self) -> str:
        head = "".join(f" {self._fit(name, name)} |" for name in self._columns)
        marks = "".join(f" {_mark(name, self._widths[name])} |" for name in self._columns)
        return f"|{head}\n|{marks}\n"

    def row(self, row: Row) -> str:
        self._last = row
        for flag in row["flags"]:
            self._notes.setdefault(flag, []).append(row["test"])
        return "|" + "".join(f" {self._fit(name, _cell(name, row))} |" for name in self._columns) + "\n"

    def _fit(self, name: str, text: str) -> str:
        width = self._widths[name]
        if name == "model" and width < _WIDTHS[name][0] and len(text) > width:
            text = text[: width - 1] + "…"
        return text.rjust(width) if _WIDTHS[name][1] else text.ljust(width)

    def end(self) -> str:
        if self._last is None:
            return ""
        notes = "".join(f"! {_few(tests)}: {printable(flag)}\n" for flag, tests in self._notes.items())
        environment = self._last["environment"]
        build = f"build: {environment['build']['engine']}\n" + _limits(self._last)
        return f"\n{notes}{build}machine: {machine_id(environment)}{_conditions(environment['conditions'])}\n"


def _limits(row: Row) -> str:
    """What the shares are of."""
    found = row.get("roofline")
    if not found:
        return ""
    bandwidth, peak = found["bandwidth_bytes_s"] / 1e9, found["peak_ops_s"] / 1e9
    return f"limits: {bandwidth:.1f} GB/s read (% bw), {peak:.0f} GFLOP/s of 32 bits (% peak), measured here\n"


def _few(tests: Sequence[str]) -> str:
    """The names of the tests a note is about, in one line."""
    names = list(dict.fromkeys(tests))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _is_asked(trials: Sequence[Trial], field: str, usual: Any) -> bool:
    return any(getattr(trial.request, field) != usual for trial in trials)


def _mark(name: str, width: int) -> str:
    return "-" * (width - 1) + (":" if _WIDTHS[name][1] else "-")


def _cell(name: str, row: Row) -> str:
    cells = {
        "model": printable(row["model_type"]),
        "size": _size(row["model_size"]),
        "params": _params(row["model_n_params"]),
        "backend": row["backends"],
        "ngl": str(row["n_gpu_layers"]),
        "threads": str(row["n_threads"]),
        "fa": str(row["flash_attn"]),
        "t/s": rate_text(row),
        "load": format_seconds(row["load_s"]),
        "peak": "" if row["peak_bytes"] is None else format_bytes(row["peak_bytes"]),
        "% bw": _share(row, "bandwidth_share"),
        "% peak": _share(row, "arithmetic_share"),
    }
    return cells[name] if name in cells else str(row[name])


def rate_text(row: Row) -> str:
    """`128.4 ± 1.2`: the median and half of the middle half's width; the median alone where there is one sample."""
    if row["repetitions"] == 1:
        return f"{row['median_ts']:.2f}"
    return f"{row['median_ts']:.2f} ± {(row['p75_ts'] - row['p25_ts']) / 2:.2f}"


def _size(count: int) -> str:
    return f"{count / _MIB:.2f} MiB" if count < _GIB else f"{count / _GIB:.2f} GiB"


def _params(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count < 1e9 else f"{count / 1e9:.2f} B"


def _share(row: Row, name: str) -> str:
    share = (row.get("roofline") or {}).get(name)
    return "" if share is None else f"{share:.0%}"


def _conditions(now: Mapping[str, Any]) -> str:
    shown = (("governor {}", "governor"), ("load {:.2f}", "load_1min"), ("{:.0f} °C", "temperature_c"))
    return "".join(", " + text.format(now[name]) for text, name in shown if now[name] is not None)


def _plain(value: Any) -> Any:
    """A value for csv and sql: numbers and text as they are, 0 and 1 for a truth, JSON for what has parts."""
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


class _Csv:
    def __init__(self) -> None:
        self._names: list[str] = []

    def begin(self) -> str:
        return ""  # the header needs the first row: a roofline is a column more

    def row(self, row: Row) -> str:
        lines = []
        if not self._names:
            self._names = list(row)
            lines.append(self._names)
        lines.append([_plain(row[name]) for name in self._names])
        out = io.StringIO()
        csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(lines)
        return out.getvalue()

    def end(self) -> str:
        return ""


class _Json:
    def __init__(self) -> None:
        self._is_first = True

    def begin(self) -> str:
        return "[\n"

    def row(self, row: Row) -> str:
        comma, self._is_first = "" if self._is_first else ",\n", False
        return comma + json.dumps(row)

    def end(self) -> str:
        return "\n]\n"


class _JsonLines:
    def begin(self) -> str:
        return ""

    def row(self, row: Row) -> str:
        return json.dumps(row) + "\n"

    def end(self) -> str:
        return ""


class _Sql:
    """Statements for SQLite, into llama-bench's table with our columns behind its own."""

    def __init__(self) -> None:
        self._is_first = True

    def begin(self) -> str:
        return ""

    def row(self, row: Row) -> str:
        table = ""
        if self._is_first:
            self._is_first = False
            columns = ",\n".join(f"  {name} {_sql_type(value)}" for name, value in row.items())
            table = f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n\n"
        values = ", ".join(_sql(value) for value in row.values())
        return f"{table}INSERT INTO llama_bench ({', '.join(row)}) VALUES ({values});\n"  # noqa: S608  # output, quoted

    def end(self) -> str:
        return ""


def _sql_type(value: Any) -> str:
    if isinstance(value, (bool, int)):
        return "INTEGER"
    if value is None:
        return "NUMERIC"  # what a machine does not tell is a number where another tells it
    return "REAL" if isinstance(value, float) else "TEXT"


def _sql(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return "NULL"
    return str(plain) if isinstance(plain, (int, float)) else "'" + str(plain).replace("'", "''") + "'"
