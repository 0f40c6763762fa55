"""Half files, cuts at any byte, answers that lie. Without a network: the bodies are made here."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UserInterruptError
from llmcli.base.units import format_bytes
from llmcli.models import transfer
from llmcli.models.hub_errors import TransientError
from llmcli.models.progress import SilentProgress
from llmcli.models.transfer import Wanted, fetch
from tests.pull_case import gguf

CONTENT = gguf(3000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class FakeBody:
    """A body that hands out `data` in pieces, and then what follows."""

    host, scheme, encoded = "example.org", "https", False

    def __init__(self, status: int, data: bytes, *, length: int | None, headers: Mapping[str, str], step: int) -> None:
        self.status, self.length, self.headers = status, length, headers
        self._data, self._step = data, step

    def read(self) -> memoryview:
        piece, self._data = self._data[: self._step], self._data[self._step :]
        return memoryview(piece)


class Server:
    """Sends `data`; each answer is cut after the next number of `cuts`, the last one is whole."""

    def __init__(self, data: bytes = CONTENT, cuts: tuple[int, ...] = (), *, step: int = 700, **lies: Any) -> None:
        self.data, self.cuts, self.step, self.lies = data, list(cuts), step, lies
        self.offsets: list[int] = []

    @contextlib.contextmanager
    def __call__(self, offset: int) -> Iterator[Any]:
        self.offsets.append(offset)
        if self.lies.get("no_range"):
            offset = 0
        data = self.data[offset:]
        headers = {"content-range": f"bytes {offset}-{len(self.data) - 1}/{len(self.data)}"} if offset else {}
        length = None if self.lies.get("no_length") else len(data)
        if self.cuts:
            data = data[: self.cuts.pop(0)]
        status = 206 if offset else 200
        yield FakeBody(status, data, length=length, headers={**headers, **self.lies.get("headers", {})}, step=self.step)


def wanted(size: int | None = len(CONTENT), digest: str | None = DIGEST) -> Wanted:
    return Wanted("m.gguf", size, digest, "HF_HOME")


def run(part: Path, server: Server, what: Wanted | None = None, notes: list[str] | None = None) -> str:
    told = [] if notes is None else notes
    return fetch(what or wanted(), part, server, task=SilentProgress(), notify=told.append)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.0, 0.0, 0.0))


@given(cuts=strategies.lists(strategies.integers(0, len(CONTENT)), max_size=8), step=strategies.integers(1, 4000))
@settings(deadline=None, max_examples=120)
def test_cut_at_any_byte_and_again(tmp_path_factory: pytest.TempPathFactory, cuts: list[int], step: int) -> None:
    part = tmp_path_factory.mktemp("cut") / "part"
    server = Server(cuts=tuple(cuts), step=step)
    for _ in range(10):  # a command that gives up is given again
        try:
            assert run(part, server) == DIGEST
            break
        except TransientError:
            assert not part.exists() or part.read_bytes() == CONTENT[: part.stat().st_size]
    assert part.read_bytes() == CONTENT


@given(have=strategies.binary(max_size=4000), right=strategies.integers(0, len(CONTENT)))
@settings(deadline=None, max_examples=80)
def test_whatever_the_half_file_holds(tmp_path_factory: pytest.TempPathFactory, have: bytes, right: int) -> None:
    part = tmp_path_factory.mktemp("half") / "part"
    part.write_bytes(CONTENT[:right] + have)
    assert run(part, Server()) == DIGEST
    assert part.read_bytes() == CONTENT


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(CONTENT[:1234])
    server = Server()
    run(part, server)
    assert server.offsets == [1234]


def test_a_whole_half_file_asks_nobody(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT)
    server = Server()
    run(tmp_path / "part", server)
    assert server.offsets == []


def test_a_damaged_half_file_costs_a_word_and_a_download(tmp_path: Path) -> None:
    part, server = tmp_path / "part", Server()
    notes: list[str] = []
    part.write_bytes(b"x" * 100)
    run(part, server, notes=notes)
    assert server.offsets == [100, 0]
    assert notes == ["the half file of m.gguf from an earlier try does not fit: fetching it from the start"]


def test_a_server_without_range_starts_again(tmp_path: Path) -> None:
    part = tmp_path / "part"
    notes: list[str] = []
    part.write_bytes(CONTENT[:100])
    assert run(part, Server(no_range=True), notes=notes) == DIGEST
    assert notes == ["m.gguf has changed, or its server cannot go on: fetching it from the start"]


def test_another_part_than_asked_for_is_not_glued_on(tmp_path: Path) -> None:
    part = tmp_path / "part"
    part.write_bytes(CONTENT[:100])
    server = Server(headers={"content-range": "bytes 90-3023/3024"})
    assert run(part, server) == DIGEST
    assert server.offsets == [100, 0]


@pytest.mark.parametrize(
    ("server", "what", "message"),
    [
        (Server(CONTENT[:-1]), wanted(), "m.gguf is sent with 3,023 bytes, expected 3,024"),
        (Server(CONTENT + b"x"), wanted(), "m.gguf is sent with 3,025 bytes, expected 3,024"),
        (Server(CONTENT + b"x", no_length=True), wanted(), "m.gguf goes on after its 3,024 bytes: refused"),
        (Server(CONTENT[:-1] + b"!"), wanted(), "m.gguf came with wrong bytes: sha256 "),
        (Server(b"<!DOCTYPE html><html>"), wanted(), "what came as m.gguf is an HTML page"),
        (Server(b""), wanted(None, None), "what came as m.gguf is an empty file"),
        (Server(b"version https://git-lfs.github.com/spec/v1\nsize 77\n"), wanted(), "is a Git LFS pointer (the real"),
        (Server(b"GGUF" + b"\xff" * 40), wanted(44, None), "what came is no usable model: m.gguf is not a usable GGUF"),
    ],
)  # fmt: skip
def test_wrong_answers_leave_nothing(tmp_path: Path, server: Server, what: Wanted, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        run(tmp_path / "part", server, what)
    assert message in caught.value.message
    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_without_a_length_the_end_is_believed_only_where_the_file_is_sound(tmp_path: Path) -> None:
    assert run(tmp_path / "part", Server(no_length=True), wanted(None, None)) == DIGEST


def test_giving_up_keeps_what_came_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(TransientError) as caught:
        run(tmp_path / "part", Server(cuts=(1000, 0, 0, 0, 0, 0)))
    assert caught.value.message.startswith("the download of m.gguf broke off: ")
    assert caught.value.message.endswith("; 1000 B of 3.0 KiB are kept")
    assert str(caught.value.hint).startswith("the same command goes on from there")
    assert (tmp_path / "part").read_bytes() == CONTENT[:1000]


def test_a_long_wait_is_the_users_to_decide(tmp_path: Path) -> None:
    @contextlib.contextmanager
    def busy(_offset: int) -> Iterator[Any]:
        raise TransientError("busy", wait_s=3600)
        yield

    with pytest.raises(TransientError, match="busy"):
        fetch(wanted(), tmp_path / "part", busy, task=SilentProgress(), notify=lambda _: None)


@pytest.mark.parametrize("at", [0, 1000, 2500])
def test_a_full_disk_keeps_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    real = transfer._Transfer._write

    def full(self: Any, piece: memoryview) -> None:
        if self._done + len(piece) > at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, piece)

    monkeypatch.setattr(transfer._Transfer, "_write", full)
    with pytest.raises(ResourceError) as caught:
        run(tmp_path / "part", Server(step=500))
    assert caught.value.exit_code == 6
    assert "the disk is full at " in caught.value.message
    kept = f"; {format_bytes(at)} of {format_bytes(len(CONTENT))} are kept" if at else "part"
    assert caught.value.message.endswith(kept)
    monkeypatch.undo()
    server = Server()
    assert run(tmp_path / "part", server) == DIGEST
    assert server.offsets == [at]


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(errno.EFBIG, 6, "the file is too large for the disk at "), (errno.EIO, 1, "cannot write ")],
)
def test_a_disk_that_fails_is_no_line_that_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, said: str
) -> None:
    real = transfer._Transfer._write

    def fails(self: Any, piece: memoryview) -> None:
        if self._done:
            raise OSError(number, "no")
        real(self, piece)

    monkeypatch.setattr(transfer._Transfer, "_write", fails)
    server = Server(step=1024)
    with pytest.raises(LlmcliError) as caught:
        run(tmp_path / "part", server)
    assert (caught.value.exit_code, server.offsets) == (code, [0])
    assert caught.value.message.startswith(said)
    assert "are kept" in caught.value.message


def test_a_server_that_sends_next_to_nothing_at_a_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.0, 0.0))
    server = Server(cuts=(600, *[20] * 50))
    with pytest.raises(TransientError, match="are kept"):
        run(tmp_path / "part", server)
    assert server.offsets == [0, 600, 620]
    assert run(tmp_path / "part", Server(cuts=(60,) * 30)) == DIGEST


def test_what_a_server_cannot_go_on_from_is_not_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.0, 0.0))
    with pytest.raises(TransientError) as caught:
        fetch(
            wanted(),
            tmp_path / "part",
            Server(cuts=(900,) * 9, no_range=True),
            task=SilentProgress(),
            notify=lambda _: None,
        )
    assert "kept" not in caught.value.message
    assert "goes on" not in str(caught.value.hint)


@pytest.mark.parametrize("put_back", [None, b"", CONTENT + b"x"])
def test_a_part_that_is_taken_away_meanwhile(tmp_path: Path, put_back: bytes | None) -> None:
    part = tmp_path / "m.part"

    class Thief(SilentProgress):
        def update(self, done_bytes: int) -> None:
            if done_bytes == len(CONTENT):
                part.unlink()
                if put_back is not None:
                    part.write_bytes(put_back)

    with pytest.raises(TransientError) as caught:
        fetch(wanted(), part, Server(), task=Thief(), notify=pytest.fail)
    assert caught.value.message == "the download of m.gguf broke off: its half file was removed meanwhile"
    assert run(part, Server()) == DIGEST
    assert part.read_bytes() == CONTENT


def test_a_stop_ends_it_between_two_pieces(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(UserInterruptError):
        fetch(wanted(), tmp_path / "part", Server(), task=SilentProgress(), notify=lambda _: None, stop=stop)


def test_gits_own_digest_is_checked_too(tmp_path: Path) -> None:
    sha1 = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    assert run(tmp_path / "part", Server(), wanted(digest=sha1)) == DIGEST
    with pytest.raises(LlmcliError, match="wrong bytes: sha1"):
        run(tmp_path / "other", Server(), wanted(digest="0" * 40))
