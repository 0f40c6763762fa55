from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.files import file_lock
from llmcli.cache_store import index_schema
from llmcli.cache_store.index import Index
from llmcli.cache_store.index_file import IndexFile
from llmcli.cache_store.index_schema import APPLICATION_ID, INDEX_VERSION, SCHEMA, BrokenIndexError
from tests.cache_store_case import (  # noqa: F401
    FINGERPRINT,
    Told,
    assert_right,
    block_files,
    no_waiting_for_the_disk,
    open_store,
    put,
)

TOKENS = list(range(600))


def rows(root: Path) -> int:
    with sqlite3.connect(root / "v1" / "index.sqlite") as connection:
        return int(connection.execute("SELECT count(*) FROM blocks").fetchone()[0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with open_store(tmp_path / "s") as store:
        put(store, TOKENS, preview="hello")
        put(store, [9, 9, 9])
    return tmp_path / "s"


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def noise(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def flipped_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(bytes(data))


def other_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={INDEX_VERSION + 1}")


def foreign(path: Path) -> None:
    remove(path)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE blocks (key TEXT)")


def with_a_trigger(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON gone BEGIN DELETE FROM blocks; END")


def hostile_values(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE blocks SET nbytes = 'many', used_s = x'00', parent = 'x'")
        connection.execute("UPDATE counters SET value = 'NaN?'")
        connection.execute("UPDATE children SET tokens = hex(tokens), key = hex(key)")


def empty(path: Path) -> None:
    remove(path)
    path.touch()


@pytest.mark.parametrize(
    "harm", [remove, noise, flipped_page, other_version, foreign, with_a_trigger, hostile_values, empty]
)
def test_whatever_happens_to_the_index_it_is_rebuilt(root: Path, harm: Callable[[Path], None]) -> None:
    harm(root / "v1" / "index.sqlite")
    with open_store(root) as store:
        put(store, [9, 9, 9, 9])
        match = store.match(FINGERPRINT, TOKENS)
        assert match.matched_tokens == 600
        assert_right(store, match.blocks)
        entries = store.keeper().entries()
        entries = store.keeper().entries()
        assert sorted(entry.tokens for entry in entries) == [3, 4, 600]
        assert {entry.preview for entry in entries} == {"hello", ""}
    assert rows(root) == len(block_files(root)) == 5


def test_the_index_is_private_and_its_schema_is_exact(root: Path) -> None:
    path = root / "v1" / "index.sqlite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (INDEX_VERSION,)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        found = [row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")]
    assert sorted(found) == sorted(SCHEMA)


def test_without_a_usable_index_saving_and_finding_go_on_with_one_warning(root: Path) -> None:
    path = root / "v1" / "index.sqlite"
    remove(path)
    path.mkdir()  # SQLite cannot open it, and it cannot be removed like a file
    told = Told()
    with open_store(root, notify=told) as store:
        put(store, [7, 7, 7])
        put(store, [8, 8, 8])
        assert store.match(FINGERPRINT, [7, 7, 7]).matched_tokens == 3
        assert len(store.keeper().entries()) == 4
    assert len(told) == 1
    assert "index cannot be used" in told[0]
    assert "\n" not in told[0]


def test_no_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(self: IndexFile, *, build: bool) -> None:
        raise sqlite3.OperationalError("locking protocol")

    monkeypatch.setattr(IndexFile, "open", no_locks)
    told = Told()
    with open_store(root, notify=told) as store:
        put(store, [*TOKENS, 1])
        assert store.match(FINGERPRINT, [*TOKENS, 1]).matched_tokens == 601
    assert told == ["the prefix store's index cannot be used (locking protocol); going on without it"]


def test_a_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    index = Index(tmp_path / "i", lambda: (), Told())

    def fail() -> None:
        with index.writing() as connection:
            assert connection is not None
            connection.execute("INSERT INTO counters VALUES ('a', 1)")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with index.reading() as connection:
        assert connection is not None
        assert connection.execute("SELECT count(*) FROM counters").fetchone() == (0,)
    index.close()


def test_an_error_in_use_rebuilds_and_is_remembered(tmp_path: Path) -> None:
    index = Index(tmp_path / "i", lambda: (), Told())
    with index.writing() as connection:
        assert connection is not None
        connection.execute("INSERT INTO counters VALUES ('a', 1)")
    with index.writing() as connection:
        raise BrokenIndexError
    assert index.missed_changes
    with index.reading() as connection:
        assert connection is not None
        assert connection.execute("SELECT count(*) FROM counters").fetchone() == (0,)
    index.close()


def test_an_index_replaced_by_another_process_is_noticed(tmp_path: Path) -> None:
    one, two = Index(tmp_path / "i", lambda: (), Told()), Index(tmp_path / "i", lambda: (), Told())
    with one.writing() as connection:
        assert connection is not None
    two.rebuild()
    with one.writing() as connection:
        assert connection is not None
        connection.execute("INSERT INTO counters VALUES ('a', 1)")
    with two.reading() as connection:
        assert connection is not None
        assert connection.execute("SELECT count(*) FROM counters").fetchone() == (1,)
    one.close()
    two.close()


def test_a_glance_neither_builds_nor_waits(tmp_path: Path) -> None:
    index = Index(tmp_path / "i", lambda: (), Told())
    with index.reading(build=False) as connection:
        assert connection is None
    assert not (tmp_path / "i").exists()
    (tmp_path / "i").write_bytes(b"noise" * 1000)
    with index.reading(build=False) as connection:
        assert connection is None


def test_network_homes_get_no_wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:5 / {str(tmp_path).replace(' ', chr(92) + '040')} rw shared:1 - nfs4 host:/x rw\n"
        "broken line\n"
    )
    assert index_schema._file_system(tmp_path / "i", mounts) == "nfs4"
    assert index_schema._file_system(Path("/elsewhere"), mounts) == "ext4"
    assert index_schema._file_system(Path("/elsewhere"), tmp_path / "none") == ""
    monkeypatch.setattr(index_schema, "_file_system", lambda path: "nfs4")
    assert index_schema.journal_mode(tmp_path) == "DELETE"
    with open_store(tmp_path / "s") as store:
        put(store, [1, 2, 3])
    assert [file.name for file in (tmp_path / "s" / "v1").glob("index.sqlite*")] == ["index.sqlite"]
    assert rows(tmp_path / "s") == 1


def test_opening_waits_for_a_process_that_replaces_the_index(root: Path) -> None:
    """The file is in pieces as long as the lock is held; a glance does not wait for it."""
    path, order = root / "v1" / "index.sqlite", list[str]()
    index = Index(path, list, Told())

    def read() -> None:
        with index.reading() as connection:
            assert connection is not None
            order.append("read")

    reader = threading.Thread(target=read)
    with file_lock(path.with_suffix(".lock"), timeout_s=0):
        with Index(path, list, Told()).reading(build=False) as connection:
            assert connection is None
        reader.start()
        reader.join(0.1)
        order.append("replaced")
    reader.join(10)
    index.close()
    assert order == ["replaced", "read"]
    assert stat.S_IMODE(path.with_suffix(".lock").stat().st_mode) == 0o600


def test_a_broken_index_that_another_process_replaced_is_left_alone(root: Path) -> None:
    path = root / "v1" / "index.sqlite"
    index = Index(path, list, Told())
    with index.reading() as connection:
        assert connection is not None
        remove(path)
        path.write_bytes(b"the new one")
        raise sqlite3.DatabaseError("database disk image is malformed")
    assert path.read_bytes() == b"the new one"
