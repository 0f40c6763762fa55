"""What the hub says before it sends anything: lists of files, and answers that are none."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import ModelError
from llmcli.models import http_body
from llmcli.models import hub as client
from llmcli.models.hub import HubFile, file_url, list_repository, read_range
from llmcli.models.hub_errors import RefusedError, TransientError
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.fixtures.odd_server import Answer, send, send_without_end, serving
from tests.pull_case import REPO, gguf, hub, online

__all__ = ["hub", "online"]


@pytest.fixture
def answer(online: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A server that gives the one answer in the list to everything."""
    body: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Silence."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body[0])))
            self.end_headers()
            self.wfile.write(body[0])

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield body
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "body",
    [
        *(b"<!DOCTYPE html><html>Please log in", b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"sha": "../x"}'),
        *(b"[" * 200_000, json.dumps({"sha": COMMIT}).encode(), b'{"sha": "' + COMMIT.encode() + b'", "siblings": 5}'),
    ],
    ids=range(10),
)
def test_what_is_no_list_of_files(answer: list[bytes], body: bytes) -> None:
    answer.append(body)
    with pytest.raises(ModelError) as caught:
        list_repository("o/r", "main", settings_module.load())
    assert "is not a model hub" in caught.value.message
    assert "log in to the network first" in str(caught.value.hint)


def test_a_list_without_end(answer: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    answer.append(b" " * 5000)
    monkeypatch.setattr(client, "_MAX_LISTING_BYTES", 1000)
    with pytest.raises(ModelError) as caught:
        list_repository("o/r", "main", settings_module.load())
    assert "is not a model hub" in caught.value.message


def test_the_list(hub: HubStub) -> None:
    found = list_repository(REPO, "main", settings_module.load())
    assert (found.repo_id, found.commit, [f.name for f in found.files]) == (REPO, COMMIT, ["Tiny-Q4_K_M.gguf"])


def test_addresses_are_quoted(online: None) -> None:
    settings = settings_module.load()
    url = file_url(HubFile("o/r", "a b/c#d?.gguf", "refs/pr/1"), settings)
    assert url == "https://huggingface.co/o/r/resolve/refs%2Fpr%2F1/a%20b/c%23d%3F.gguf"


@pytest.mark.parametrize("no_range", [False, True])
@pytest.mark.parametrize(("start", "count"), [(0, 10), (100, 4000), (4000, 10_000), (4120, 10), (9999, 1)])
def test_a_range(hub: HubStub, no_range: bool, start: int, count: int) -> None:
    hub.set_fault(REPO, no_range=no_range)
    wanted = HubFile(REPO, "Tiny-Q4_K_M.gguf", COMMIT)
    assert read_range(wanted, settings_module.load(), start, count) == gguf()[start : start + count]


def _of_a_refusal(body: bytes, *headers: tuple[str, str]) -> Answer:
    return lambda handler: send(handler, 404, body, ("X-Error-Code", "RepoNotFound"), *headers)


def _ask(of_a_file: bool) -> None:
    settings = settings_module.load()
    if of_a_file:
        read_range(HubFile("o/r", "m.gguf", COMMIT), settings, 0, 10)
    else:
        list_repository("o/r", "main", settings)


@pytest.mark.parametrize(
    "answer",
    [
        lambda handler: send_without_end(handler, 404, ("X-Error-Code", "RepoNotFound")),
        *(_of_a_refusal(body) for body in (b"[]", b"5", b'{"errors": [5]}', b'{"errors": 5}', b"[" * 200_000)),
        _of_a_refusal(b"no gzip at all", ("Content-Encoding", "gzip")),
        _of_a_refusal(b"", ("Content-Encoding", "gzip")),
    ],
    ids=["endless", "list", "number", "errors", "no errors", "deep", "not gzip", "empty gzip"],
)
@pytest.mark.parametrize("of_a_file", [False, True])
def test_what_a_refusal_says_is_not_read(
    online: None, monkeypatch: pytest.MonkeyPatch, answer: Answer, of_a_file: bool
) -> None:
    with serving(answer) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(ModelError) as caught:
            _ask(of_a_file)
    assert caught.value.message == "the hub has no repository o/r, or it is private"


@pytest.mark.parametrize("status", [203, 204, 304, 305])
def test_an_answer_that_is_neither_a_file_nor_a_refusal(
    online: None, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    with serving(lambda handler: send(handler, status, b"" if status in {204, 304} else b"GGUF")) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(ModelError) as caught:
            read_range(HubFile("o/r", "m.gguf", COMMIT), settings_module.load(), 0, 10)
    assert caught.value.message == f"what answers at {url} is not a model hub"


@pytest.mark.parametrize("location", ["/loop", "file:///etc/passwd", "gopher://x", "http://[::1", "http://x\x01y"])
@pytest.mark.parametrize("of_a_file", [False, True])
def test_a_redirect_that_leads_nowhere(
    online: None, monkeypatch: pytest.MonkeyPatch, location: str, of_a_file: bool
) -> None:
    with serving(lambda handler: send(handler, 302, b"", ("Location", location))) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(RefusedError) as caught:
            _ask(of_a_file)
    assert caught.value.message.startswith(f"the hub leads on from {'m.gguf' if of_a_file else 'o/r'} to nowhere: ")


@pytest.mark.parametrize("span", ["bytes 1-10/100", "bytes 10-0/100", "bytes x", "bytes " + "9" * 5000, None])
def test_another_part_than_the_one_asked_for(online: None, monkeypatch: pytest.MonkeyPatch, span: str | None) -> None:
    told = [("Content-Range", span)] if span else []
    with serving(lambda handler: send(handler, 206, b"GGUF", *told)) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(TransientError) as caught:
            _ask(of_a_file=True)
    assert "the server sent another part than the one asked for" in caught.value.message


def _trickle(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(206)
    for name, value in (("Content-Range", "bytes 0-9/10"), ("Content-Length", "10")):
        handler.send_header(name, value)
    handler.end_headers()
    for _ in range(10):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def test_a_server_that_trickles(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_body, "_SPAN_S", 0.1)
    with serving(_trickle) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        with pytest.raises(TransientError) as caught:
            _ask(of_a_file=True)
    assert "the server is too slow to wait for" in caught.value.message
