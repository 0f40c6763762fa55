"""Kept measurements: what `llmcli bench` wrote earlier, from a file or from the history. Rows in, rows out.

The history is one JSON line per run in the state folder, appended under a lock; a line that cannot be read is left out
and counted, never an error.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcli.base.bounded_file import open_plain
from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.files import file_lock, make_private_dir
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.bench.result import Row
from llmcli.bench.row_check import checked_row, parse_cell, parse_json

_FOLDER, _FILE = "bench", "history.jsonl"
_MAX_BYTES = 64 << 20
_LOCK_WAIT_S = 5.0
_STDIN = 0
_CELL_CHARS = 1 << 24  # thousands of samples stand in one cell; csv's own limit is 128 KiB
_HOW = "llmcli bench -o json > FILE makes one"


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
        with file_lock(path.with_suffix(".lock"), timeout_s=_LOCK_WAIT_S):
            _append(path, line.encode("utf-8"))
    except OSError as error:
        raise LlmcliError(f"cannot keep the run in {printable(str(path))}: {error.strerror}") from None


def _append(path: Path, line: bytes) -> None:
    """All of the line or nothing of it; behind half a line, which a power cut can leave, a new one begins."""
    with open(path, "a+b", buffering=0) as out:
        end = out.seek(0, os.SEEK_END)
        out.seek(max(0, end - 1))
        rest = memoryview(line if out.read(1) in (b"", b"\n") else b"\n" + line)
        try:
            while rest:
                rest = rest[out.write(rest) :]
        except OSError:
            out.truncate(end)
            raise


def read_history(settings: Settings) -> tuple[list[Run], int]:
    """The runs, oldest first, and how many lines could not be read. Raises OSError where the file cannot."""
    runs, damaged = [], 0
    try:
        with os.fdopen(open_plain(history_file(settings)), "rb") as source:
            for number, line in enumerate(iter(lambda: source.readline(_MAX_BYTES), b""), start=1):
                run = _parse_run(number, line)
                if run:
                    runs.append(run)
                else:
                    damaged += 1
    except FileNotFoundError:
        pass
    return runs, damaged


def _parse_run(number: int, line: bytes) -> Run | None:
    try:
        found = parse_json(line.decode("utf-8", "replace"))
        rows = tuple(checked_row(row) for row in found["rows"])
        return Run(number, str(found["time"]), str(found.get("label") or ""), rows) if rows else None
    except (ValueError, TypeError, KeyError):
        return None


def load_rows(name: str, settings: Settings) -> list[Row]:
    """The rows of a file (json, jsonl, csv; also llama-bench's), of stdin (`-`), or of a run of the history: `@3`, or
    `@-1` for the last.

    Raises UsageError where there is no such run or file, or where it holds no results.
    """
    if name.startswith("@"):
        return _from_history(name, settings)
    try:
        text = _read(_STDIN if name == "-" else Path(name))
    except OSError as error:
        raise UsageError(f"cannot read {printable(name)}: {error.strerror}") from None
    try:
        rows = [checked_row(row) for row in _parse(text)]
    except (ValueError, csv.Error) as error:
        reason = "not JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise UsageError(f"{printable(name)} holds no results of a bench: {reason}", hint=_HOW) from None
    if not rows:
        raise UsageError(f"{printable(name)} holds no results", hint=_HOW)
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


def _read(file: Path | int) -> str:
    with open(file, "rb", closefd=file != _STDIN) as source:
        return source.read(_MAX_BYTES).decode("utf-8-sig", "replace")


def _parse(text: str) -> Iterable[Any]:
    """The rows of whichever format it is. Raises ValueError or csv.Error for none."""
    start = text.lstrip()[:1]
    if start not in ("[", "{"):
        csv.field_size_limit(_CELL_CHARS)
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        return [{name: parse_cell(name, cell or "") for name, cell in row.items() if name} for row in table]
    try:
        found = parse_json(text)
    except json.JSONDecodeError:  # one object per line
        return [parse_json(line) for line in text.split("\n") if line.strip()]
    if isinstance(found, dict):
        found = found.get("results", [found])
    if not isinstance(found, list):
        raise ValueError("results is no list")
    return found
