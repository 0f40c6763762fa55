"""A model from a plain address: what is believed of a server that states nothing."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError, ModelError, UsageError
from llmcli.models import transfer
from llmcli.models.progress import silent
from llmcli.models.pull import Pulled, PullOptions, carry_out, make_plan
from llmcli.models.pull_url import addresses_of, look
from tests.fixtures.odd_server import send, serving
from tests.pull_case import gguf, halves, named, online

__all__ = ["online"]

CONTENT = gguf()
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Web:
    """A web server with files; `cut` ends each body there, `status` is the answer to all."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etag: str | None = '"v1"'
        self.cut: int | None = None
        self.status = 200
        self.requests: list[dict[str, str]] = []


@pytest.fixture
def web(online: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Web, str]]:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.0, 0.0))
    shared = Web()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Silence."""

        def do_GET(self) -> None:
            shared.requests.append({k.lower(): v for k, v in self.headers.items()})
            data = shared.files.get(self.path.partition("?")[0])
            if data is None or shared.status != 200:
                self.send_response(404 if data is None else shared.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            span = self.headers.get("Range")
            if self.headers.get("If-Range") not in (None, shared.etag):
                span = None
            first, _, last = (span or "bytes=0-").partition("=")[2].partition("-")
            body = data[int(first) : int(last) + 1 if last else None]
            self.send_response(206 if span else 200)
            if shared.etag:
                self.send_header("ETag", shared.etag)
            if span:
                self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: shared.cut])
            self.close_connection = shared.cut is not None

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield shared, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def pull(url: str, notes: list[str] | None = None, **options: str) -> Pulled:
    told = [] if notes is None else notes
    settings = settings_module.load()
    found = make_plan(url, PullOptions(**options), settings, choose=_never, notify=told.append)
    return carry_out(found, settings, progress=silent, notify=told.append)


def _never(_candidates: object) -> Any:
    raise AssertionError("there is nothing to choose")


def test_into_our_own_folder(web: tuple[Web, str]) -> None:
    server, root = web
    server.files["/d/m-Q4_0.gguf"] = CONTENT
    path = settings_module.load().data_dir / "models" / "m-Q4_0.gguf"
    assert pull(f"{root}/d/m-Q4_0.gguf?token=secret") == Pulled(path, ("m-Q4_0.gguf",))
    assert path.read_bytes() == CONTENT
    assert pull(f"{root}/d/m-Q4_0.gguf", sha256=DIGEST) == Pulled(path, ())
    assert sorted(p.name for p in path.parent.iterdir()) == [".locks", "m-Q4_0.gguf"]


def test_it_goes_on_with_the_servers_own_validator(web: tuple[Web, str]) -> None:
    server, root = web
    server.files["/m.gguf"], server.cut = CONTENT, 1000
    assert pull(f"{root}/m.gguf?sig=secret").path.read_bytes() == CONTENT
    resumed = [r for r in server.requests if r.get("range") == "bytes=1000-"]
    assert [r["if-range"] for r in resumed] == ['"v1"']


def test_a_kept_half_never_holds_the_address(web: tuple[Web, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, root = web
    server.files["/m.gguf"], server.cut = CONTENT, 1000
    monkeypatch.setattr(transfer, "PAUSES_S", ())
    with pytest.raises(LlmcliError) as caught:
        pull(f"{root}/m.gguf?sig=secret")
    assert "secret" not in f"{caught.value.message}{caught.value.hint}"
    (half,) = halves()
    memo = half.with_name(f".{half.name}.json")
    assert json.loads(memo.read_text())["validator"] == '"v1"'
    assert "secret" not in memo.read_text()
    assert named() == []


@pytest.mark.parametrize("etag", ['"v2"', None])
def test_a_changed_file_is_fetched_whole(
    web: tuple[Web, str], monkeypatch: pytest.MonkeyPatch, etag: str | None
) -> None:
    server, root = web
    server.files["/m.gguf"], server.cut = CONTENT, 1000
    with monkeypatch.context() as patched:
        patched.setattr(transfer, "PAUSES_S", ())
        with pytest.raises(LlmcliError):
            pull(f"{root}/m.gguf")
    newer = gguf(seed=3)
    server.files["/m.gguf"], server.cut, server.etag = newer, None, etag
    notes: list[str] = []
    assert pull(f"{root}/m.gguf", notes).path.read_bytes() == newer
    assert "fetching it from the start" in notes[-1]


def test_a_stated_digest_decides(web: tuple[Web, str]) -> None:
    server, root = web
    server.files["/m.gguf"] = CONTENT[:-1] + b"!"
    with pytest.raises(LlmcliError, match="wrong bytes"):
        pull(f"{root}/m.gguf", sha256=DIGEST)
    assert named() == halves() == []
    server.files["/m.gguf"] = CONTENT
    assert pull(f"{root}/m.gguf", sha256=DIGEST).path.read_bytes() == CONTENT


def test_another_file_of_that_name_is_not_touched(web: tuple[Web, str]) -> None:
    server, root = web
    server.files["/m.gguf"] = CONTENT
    path = pull(f"{root}/m.gguf").path
    server.files["/m.gguf"] = CONTENT + b"more"
    with pytest.raises(LlmcliError, match="is there already, and is another file"):
        pull(f"{root}/m.gguf")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "refuses m.gguf: 401"), (403, "refuses m.gguf: 403"), (429, "no more requests"), (500, "answers 500")],
)
def test_refusals(web: tuple[Web, str], status: int, message: str) -> None:
    server, root = web
    server.files["/m.gguf"], server.status = CONTENT, status
    with pytest.raises(LlmcliError) as caught:
        pull(f"{root}/m.gguf")
    assert message in caught.value.message
    assert "HF_TOKEN" not in str(caught.value.hint)
    assert caught.value.exit_code == 3


def test_all_parts_of_a_split_model(web: tuple[Web, str]) -> None:
    server, root = web
    for n in (1, 2):
        server.files[f"/m-0000{n}-of-00002.gguf"] = gguf(seed=n)
    assert len(pull(f"{root}/m-00002-of-00002.gguf").received) == 2
    del server.files["/m-00001-of-00002.gguf"]
    with pytest.raises(LlmcliError, match="has no m-00001-of-00002"):
        pull(f"{root}/m-00002-of-00002.gguf")


@pytest.mark.parametrize(
    "url",
    [
        *("https://example.org/", "https://example.org/model.bin", "https:///m.gguf", "http://example.org/m.gguf"),
        *(
            "https://example.org/..%2fm.gguf",
            "https://example.org/a%2Fm.gguf",
            "https://example.org/%1b.gguf",
            "https://example.org/.gguf",
        ),
    ],
)
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        addresses_of(url, trusted=False)


def test_addresses_of_parts() -> None:
    url = "https://example.org/a/m-00002-of-00003.gguf?x=1"
    assert addresses_of(url, trusted=False) == tuple(url.replace("00002", f"0000{n}") for n in (1, 2, 3))
    assert addresses_of("http://example.org/m.gguf", trusted=True) == ("http://example.org/m.gguf",)


def test_a_proxy_that_refuses_is_named(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:1")
    with pytest.raises(LlmcliError) as caught:
        pull("https://example.invalid/m.gguf")
    assert "through the proxy http://127.0.0.1:1" in caught.value.message
    assert "secret" not in f"{caught.value.message}{caught.value.hint}"
    assert Path(settings_module.load().data_dir / "models" / "m.gguf").exists() is False


@pytest.mark.parametrize("location", ["/loop.gguf", "file:///etc/passwd", "http://[::1", "http://x\x01y/"])
def test_a_redirect_that_leads_nowhere(online: None, location: str) -> None:
    with (
        serving(lambda handler: send(handler, 302, b"", ("Location", location))) as url,
        pytest.raises(ModelError, match=r"^127\.0\.0\.1 leads on from m\.gguf to nowhere: "),
    ):
        look(f"{url}/m.gguf", settings_module.load())
