"""Kept measurements: what `llmcli bench` wrote earlier, from a file or from the history. Rows in, rows out.

The history is one JSON line per run in the state folder, appended under a lock; a line that cannot be read is left out
and counted, never an error.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.files import file_lock, make_private_dir
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.bench.result import Row

_FOLDER, _FILE = "bench", "history.jsonl"
_MAX_BYTES = 64 << 20
_LOCK_WAIT_S = 5.0
# What a row must have to be compared or drawn; llama-bench's own rows do.
_NEEDED = ("n_prompt", "n_gen", "n_depth", "avg_ts", "test_time")


@dataclass(frozen=True, slots=True)
class Run:
    """One call of `llmcli bench`. number: counted from 1 in the order of the history."""

    number: int
    time: str
    label: str
    rows: tuple[Row, ...]


def history_file(settings: Settings) -> Path:
    """Where the history is."""
    return settings.state_dir / _FOLDER / _FILE


def remember(rows: Sequence[Row], label: str, settings: Settings) -> None:
    """Append a run. Raises LlmcliError where the folder cannot be written."""
    path = history_file(settings)
    line = json.dumps({"time": rows[0]["test_time"], "label": label, "rows": list(rows)}) + "\n"
    try:
        make_private_dir(path.parent)
        with file_lock(path.with_suffix(".lock"), timeout_s=_LOCK_WAIT_S), open(path, "ab") as out:
            out.write(line.encode("utf-8"))
    except OSError as error:
        raise LlmcliError(f"cannot keep the run in {printable(str(path))}: {error.strerror}") from None


def read_history(settings: Settings) -> tuple[list[Run], int]:
    """The runs, oldest first, and how many lines could not be read."""
    try:
        lines = _read(history_file(settings)).splitlines()
    except FileNotFoundError:
        return [], 0
    runs, damaged = [], 0
    for number, line in enumerate(lines, start=1):
        run = _parse_run(number, line)
        if run:
            runs.append(run)
        else:
            damaged += 1
    return runs, damaged


def _parse_run(number: int, line: str) -> Run | None:
    try:
        found = json.loads(line)
        rows = tuple(_checked(row) for row in found["rows"])
        return Run(number, str(found["time"]), str(found.get("label") or ""), rows) if rows else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def load_rows(name: str, settings: Settings) -> list[Row]:
    """The rows of a file (json, jsonl, csv; also llama-bench's), or of a run of the history: `@3`, `@-1` the last.

    Raises UsageError where there is no such run or file, or where it holds no results.
    """
    if name.startswith("@"):
        return _from_history(name, settings)
    try:
        text = _read(Path(name))
    except OSError as error:
        raise UsageError(f"cannot read {printable(name)}: {error.strerror}") from None
    try:
        rows = [_checked(row) for row in _parse(text)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(
            f"{printable(name)} holds no results of a bench ({type(error).__name__})",
            hint="llmcli bench -o json > FILE makes one",
        ) from None
    if not rows:
        raise UsageError(f"{printable(name)} holds no results")
    return rows


def _from_history(name: str, settings: Settings) -> list[Row]:
    runs, _ = read_history(settings)
    try:
        asked = int(name[1:])
    except ValueError:
        raise UsageError(f"{printable(name)!r} is no run: expected @N, or @-1 for the last one") from None
    by_number = {run.number: run for run in runs}
    found = by_number.get(asked) if asked > 0 else runs[asked] if -len(runs) <= asked < 0 else None
    if found is None:
        raise UsageError(f"there is no run {printable(name)}", hint="llmcli bench history")
    return list(found.rows)


def _read(path: Path) -> str:
    with open(path, "rb") as source:
        return source.read(_MAX_BYTES).decode("utf-8", "replace")


def _parse(text: str) -> Iterable[Any]:
    """The rows of whichever format it is."""
    start = text.lstrip()[:1]
    if start == "[":
        return list(json.loads(text))
    if start == "{":
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        if len(lines) == 1 and "results" in lines[0]:
            return list(lines[0]["results"])
        return lines
    return [_from_csv(row) for row in csv.DictReader(text.splitlines())]


def _from_csv(row: dict[str, str]) -> Row:
    found: Row = {}
    for name, text in row.items():
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def _checked(row: Any) -> Row:
    """The row, with what ours have and llama-bench's lack. Raises ValueError, TypeError or KeyError for no row."""
    found = dict(row)
    for name in _NEEDED[:3]:
        if not isinstance(found[name], int):
            raise TypeError(name)
    samples = found.get("samples_ts") or [found["avg_ts"]]
    if not all(isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0 for rate in samples):
        raise ValueError("samples_ts")
    str(found["test_time"])
    return {**found, "samples_ts": [float(rate) for rate in samples]}
