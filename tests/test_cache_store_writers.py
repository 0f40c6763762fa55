from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.base import files
from llmcli.cache_store import writers
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.writers import Writer, dead_writers, stray_temps, sweep_temps


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    for folder in (*layout.folders(), layout.blocks / "00"):
        folder.mkdir()
    return layout


def killed_child(layout: Layout) -> None:
    """A process that dies with a temp file open."""
    child = os.fork()
    if child == 0:
        Writer(layout).temp_path(layout.blocks / "00").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_one_marker_per_process_and_no_two_equal_temps(layout: Layout) -> None:
    writer = Writer(layout)
    assert list(layout.writers.iterdir()) == []
    one, two = writer.temp_path(layout.blocks / "00"), writer.temp_path(layout.names)
    (marker,) = layout.writers.iterdir()
    assert one.name.startswith(f".tmp-{marker.name}-")
    assert one.name != two.name
    assert stat.S_IMODE(marker.stat().st_mode) == 0o600
    assert dead_writers(layout) == []
    writer.end(keep_marker=False)
    assert list(layout.writers.iterdir()) == []
    assert writer.temp_path(layout.names).name.startswith(".tmp-")  # begins again
    writer.end(keep_marker=True)
    assert len(dead_writers(layout)) == 1


def test_only_the_temps_of_the_dead_are_swept(layout: Layout) -> None:
    living = Writer(layout)
    mine = living.temp_path(layout.blocks / "00")
    mine.touch()
    killed_child(layout)
    dead = dead_writers(layout)
    assert len(dead) == 1
    assert len(stray_temps(layout)) == 1
    assert sweep_temps(layout, dead) == 1
    assert mine.exists()
    assert stray_temps(layout) == []


def test_a_forked_child_writes_under_its_own_name(layout: Layout) -> None:
    writer = Writer(layout)
    mine = writer.temp_path(layout.names).name
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write_end, writer.temp_path(layout.names).name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read_end, 200).decode()
    os.close(read_end)
    os.close(write_end)
    assert theirs.rpartition("-")[0] != mine.rpartition("-")[0]


def test_without_locks_a_marker_lives_for_a_day(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(path: Path, **_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(writers, "file_lock", no_locks)
    fresh, old = layout.writers / "1-a", layout.writers / "1-b"
    fresh.touch()
    old.touch()
    os.utime(old, (1, 1))
    assert dead_writers(layout) == [old]


def test_a_writer_can_begin_without_locks(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(path: Path, **_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(writers, "file_lock", no_locks)
    assert Writer(layout).temp_path(layout.names).parent == layout.names
    assert len(list(layout.writers.iterdir())) == 1


@pytest.mark.parametrize("early", [True, False], ids=["before it is opened", "before it is locked"])
def test_a_writer_that_ends_while_looked_at_is_not_a_dead_one(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Opening a marker that has just gone must not make it anew: nobody would be there to remove it."""

    @contextlib.contextmanager
    def file_lock(path: Path, **options: Any) -> Iterator[None]:
        if early:
            path.unlink()
        with files.file_lock(path, **options):
            path.unlink(missing_ok=True)
            yield

    (layout.writers / "1-a").touch()
    monkeypatch.setattr(writers, "file_lock", file_lock)
    assert dead_writers(layout) == []
    assert list(layout.writers.iterdir()) == []


def test_a_marker_in_the_making_is_not_touched_and_one_that_was_never_made_goes(layout: Layout) -> None:
    young, old, ahead = (layout.writers / f".tmp-1-{name}" for name in "abc")
    for marker in (young, old, ahead):
        marker.touch()
    now_s = time.time()
    os.utime(old, (now_s - 2, now_s - 2))
    os.utime(ahead, (now_s + 1000, now_s + 1000))  # the clock was set back
    with files.file_lock(young, timeout_s=0):
        assert sorted(dead := dead_writers(layout)) == [old, ahead]
    assert sweep_temps(layout, dead) == 0
    assert (dead, list(layout.writers.iterdir())) == ([], [young])


@pytest.mark.parametrize("losses", [9, 10])
def test_a_marker_that_is_lost_in_the_making_is_made_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    left = list(range(losses))

    def replace(source: Path, target: Path) -> None:
        if left:
            left.pop()
            source.unlink()  # another process took it for a dead one's
        real(source, target)

    real = os.replace
    monkeypatch.setattr(os, "replace", replace)
    with contextlib.nullcontext() if losses < 10 else pytest.raises(OSError, match="cannot make a writer's marker"):
        Writer(layout).temp_path(layout.names)
    assert len(list(layout.writers.iterdir())) == (1 if losses < 10 else 0)
