"""Opening and filling beside other processes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from llmcli.cache_store import index_file
from llmcli.cache_store.index_file import IndexFile
from llmcli.cache_store.index_schema import APPLICATION_ID, INDEX_VERSION, SCHEMA


def test_a_half_filled_index_is_never_seen(tmp_path: Path) -> None:
    """Another process fills the file between two reads: what is seen is the empty file, not a foreign one."""
    path = tmp_path / "index.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA journal_mode=WAL")
        looking = sqlite3.connect(path, isolation_level=None)

        def fill(statement: str) -> None:
            if "application_id" in statement:
                for line in (
                    *SCHEMA,
                    f"PRAGMA application_id={APPLICATION_ID}",
                    f"PRAGMA user_version={INDEX_VERSION}",
                ):
                    other.execute(line)
                other.commit()

        looking.set_trace_callback(fill)
        assert not index_file._is_good(looking)
        looking.set_trace_callback(None)
        assert index_file._is_good(looking)
        looking.close()
    other.close()


def test_a_file_that_is_missing_is_made_only_on_request(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "index.sqlite", list)
    assert (file.open(build=False), file.inode) == (None, -1)
    assert list(tmp_path.iterdir()) == []
    connection = file.open(build=True)
    assert connection is not None
    assert connection.execute("SELECT count(*) FROM blocks").fetchone() == (0,)
    assert file.inode > 0
    connection.close()
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_gate_is_for_one_at_a_time(tmp_path: Path) -> None:
    one, other = (IndexFile(tmp_path / "index.sqlite", list) for _ in range(2))
    with one.gate(0) as is_ours, other.gate(0) as is_theirs:
        assert (is_ours, is_theirs) == (True, False)
    with other.gate(0) as is_theirs:
        assert is_theirs


def test_without_locks_the_gate_is_open(tmp_path: Path) -> None:
    with IndexFile(tmp_path / "nowhere" / "index.sqlite", list).gate(0) as is_ours:
        assert is_ours
