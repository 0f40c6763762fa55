"""The fixtures themselves: a helper that is wrong makes every test that uses it worthless."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

from tests.fixtures.cli_process import run_process
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.fixtures.random_models import WRITERS
from tests.fixtures.scripted_gguf import write_scripted
from tests.fixtures.terminal import CTRL_C, Terminal

PYTHON = sys.executable


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubStub]:
    with HubStub(tmp_path) as stub:
        stub.add("owner/name", "model.gguf", b"0123456789")
        yield stub


def get(hub: HubStub, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(hub.endpoint + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_home_is_empty_and_nothing_leaks_in(llmcli_home: Path) -> None:
    assert list(llmcli_home.iterdir()) == []
    assert [name for name in os.environ if name.startswith("LLMCLI_")] == ["LLMCLI_HOME"]
    assert os.environ["HF_HUB_OFFLINE"] == "1" and "HF_TOKEN" not in os.environ


def test_run_process_bytes_codes_and_memory() -> None:
    code = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(d[::-1]); sys.exit(7)"
    done = run_process([PYTHON, "-c", code], stdin=b"a\0\xff")
    assert (done.code, done.stdout, done.stderr) == (7, b"\xff\0a", b"")
    hungry = run_process([PYTHON, "-c", "x = b'x' * 300_000_000"])
    assert hungry.peak_bytes > 300_000_000
    killed = run_process([PYTHON, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
    assert killed.code == -signal.SIGSEGV


def test_run_process_gives_up_and_shows_the_output() -> None:
    with pytest.raises(AssertionError, match="half a line"):
        run_process([PYTHON, "-c", "import time; print('half a line', flush=True); time.sleep(60)"], timeout_s=1)


def test_terminal_is_a_terminal_and_ctrl_c_is_a_signal() -> None:
    code = "import sys, time; print(sys.stdin.isatty(), sys.stdout.isatty(), flush=True); time.sleep(60)"
    with Terminal([PYTHON, "-c", code], env=dict(os.environ)) as terminal:
        terminal.read_until("True True")
        terminal.send(CTRL_C)
        terminal.read_until("KeyboardInterrupt")
        assert terminal.wait() in (130, -signal.SIGINT)


def test_scripted_models_are_cached_by_arguments(scripted_model: Callable[..., Path]) -> None:
    first = scripted_model(["Hello", " world"])
    assert scripted_model(["Hello", " world"]) == first
    assert scripted_model(["Hello", " world"], n_ctx=256) != first
    fields = gguf.GGUFReader(first).fields
    assert fields["llama.context_length"].contents() == 512
    assert fields["tokenizer.ggml.tokens"].contents()[-2:] == ["Hello", "\u2581world"]


def test_scripted_model_refuses_an_ambiguous_script(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        write_scripted(tmp_path / "x.gguf", ["a", "b", "a"])


@pytest.mark.parametrize("kind", sorted(WRITERS))
def test_random_models_are_the_same_every_time(kind: str, random_model: Callable[[str], Path], tmp_path: Path) -> None:
    again = tmp_path / "again.gguf"
    WRITERS[kind](again)
    assert again.read_bytes() == random_model(kind).read_bytes()


def test_hub_lists_and_serves(hub: HubStub) -> None:
    status, _, body = get(hub, "/api/models/owner/name")
    listing = json.loads(body)
    assert status == 200 and listing["sha"] == COMMIT
    assert [row["rfilename"] for row in listing["siblings"]] == ["model.gguf"]
    status, headers, body = get(hub, "/owner/name/resolve/main/model.gguf", Range="bytes=4-")
    assert (status, body, headers["Content-Range"]) == (206, b"456789", "bytes 4-9/10")
    assert [r.byte_range for r in hub.requests] == [None, "bytes=4-"]


def test_hub_faults(hub: HubStub) -> None:
    assert get(hub, "/api/models/owner/other")[0] == 404
    assert get(hub, "/owner/name/resolve/main/none.gguf")[1]["X-Error-Code"] == "EntryNotFound"
    hub.set_fault("owner/name", gated=True)
    assert get(hub, "/owner/name/resolve/main/model.gguf")[1]["X-Error-Code"] == "GatedRepo"
    assert get(hub, "/owner/name/resolve/main/model.gguf", Authorization="Bearer x")[0] == 200
    hub.set_fault("owner/name", html=True)
    assert get(hub, "/owner/name/resolve/main/model.gguf")[2].startswith(b"<!DOCTYPE")
    hub.set_fault("owner/name", names=["../../evil.gguf"])
    assert "../../evil.gguf" in get(hub, "/api/models/owner/name/tree/main")[2].decode()
    hub.set_fault("owner/name", cut=3)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        get(hub, "/owner/name/resolve/main/model.gguf")
