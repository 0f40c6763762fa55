from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmcli.cache_store.fingerprints import Fingerprints
from llmcli.cache_store.keys import Fingerprint
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.writers import Writer

ONE, TWO = Fingerprint.of({"model": "a", "swa": None}), Fingerprint.of({"model": "b", "n": 1.5})


@pytest.fixture
def known(tmp_path: Path) -> Fingerprints:
    layout = Layout(tmp_path)
    for folder in layout.folders():
        folder.mkdir()
    return Fingerprints(layout, Writer(layout))


def test_remember_and_get(known: Fingerprints, tmp_path: Path) -> None:
    known.remember(ONE)
    known.remember(TWO)
    known.remember(ONE)
    assert known.get(ONE.digest) == ONE
    assert {fingerprint.digest for fingerprint in known.all()} == {ONE.digest, TWO.digest}
    assert known.get(b"x" * 32) is None
    known.forget(ONE.digest)
    assert known.all() == [TWO]
    known.remember(ONE)
    assert known.get(ONE.digest) == ONE


def test_a_description_under_another_digest_is_not_believed(known: Fingerprints, tmp_path: Path) -> None:
    known.remember(ONE)
    known.remember(TWO)
    folder = tmp_path / "v1" / "fingerprints"
    (folder / f"{TWO.digest.hex()}.json").write_bytes((folder / f"{ONE.digest.hex()}.json").read_bytes())
    assert known.get(TWO.digest) is None
    assert known.all() == [ONE]


@pytest.mark.parametrize("junk", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b'{"a":' * 500, b" " * 70_000 + b"{}", b"3"])
def test_junk_is_nothing(known: Fingerprints, tmp_path: Path, junk: bytes) -> None:
    folder = tmp_path / "v1" / "fingerprints"
    (folder / f"{ONE.digest.hex()}.json").write_bytes(junk)
    (folder / f"{ONE.digest.hex()}.notes").write_bytes(junk)
    (folder / ("z" * 64 + ".json")).write_bytes(junk)
    assert known.all() == []
    assert known.notes(ONE.digest) == {}


def test_notes_add_up(known: Fingerprints) -> None:
    known.note(ONE.digest, {"grid": 64, "trusted": True})
    known.note(ONE.digest, {"grid": 32})
    assert known.notes(ONE.digest) == {"grid": 32, "trusted": True}
    assert known.notes(TWO.digest) == {}
    with pytest.raises(ValueError, match="JSON"):
        known.note(ONE.digest, {"rate": float("inf")})


def test_damaged_notes_are_none(known: Fingerprints, tmp_path: Path) -> None:
    """They decide what is believed: neither a flipped byte nor a file of another fingerprint counts."""
    known.note(ONE.digest, {"grid": 64})
    known.note(TWO.digest, {"grid": 256})
    folder = tmp_path / "v1" / "fingerprints"
    path = folder / f"{ONE.digest.hex()}.notes"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert known.notes(ONE.digest) in ({}, {"grid": 64})  # white space may become other white space
    path.write_bytes((folder / f"{TWO.digest.hex()}.notes").read_bytes())
    assert known.notes(ONE.digest) == {}
    known.note(ONE.digest, {"grid": 64})
    assert known.notes(ONE.digest) == {"grid": 64}


def test_a_pipe_is_not_waited_for(known: Fingerprints, tmp_path: Path) -> None:
    folder = tmp_path / "v1" / "fingerprints"
    for suffix in (".json", ".notes"):
        os.mkfifo(folder / (ONE.digest.hex() + suffix))
    assert (known.get(ONE.digest), known.notes(ONE.digest)) == (None, {})
