"""Each failure of the hub client has its own line and next step; the errors here are the client's own classes."""

from __future__ import annotations

import errno
import socket
import ssl
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmcli.base import settings as settings_module
from llmcli.base.errors import LlmcliError
from llmcli.models.hub_errors import TransientError, as_llmcli_error, asked_to_wait_s


def http(name: str, status: int) -> Exception:
    """An error as the client raises it on an answer of the hub."""
    from huggingface_hub import errors

    class Answer:
        status_code = status
        headers: dict[str, str] = {}  # noqa: RUF012
        request = None

    kind: Any = getattr(errors, name)
    return kind(f"{status} for url with-token-secret", response=Answer())  # type: ignore[no-any-return]


def translated(error: Exception, *, has_token: bool = False, fetching: bool = False) -> LlmcliError:
    return as_llmcli_error(error, "o/repo", "m.gguf", settings_module.load(), has_token=has_token, fetching=fetching)


@pytest.mark.parametrize(
    ("name", "status", "has_token", "message", "hint"),
    [
        ("GatedRepoError", 403, False, "o/repo is gated and there is no token", "HF_TOKEN"),
        ("GatedRepoError", 403, True, "your token has no access to o/repo", "ask for access at"),
        ("RepositoryNotFoundError", 401, False, "the hub has no repository o/repo, or it is private", "check the name"),
        ("RemoteEntryNotFoundError", 404, False, "o/repo has no file m.gguf", "/o/repo/tree/main"),
        ("RevisionNotFoundError", 404, False, "o/repo has no file m.gguf", "/o/repo/tree/main"),
        ("HfHubHTTPError", 401, True, "the hub does not accept your token", "HF_TOKEN"),
        ("HfHubHTTPError", 403, True, "the hub refuses o/repo: 403", "token"),
        ("HfHubHTTPError", 429, False, "the hub allows no more requests for now: 429", "wait"),
        ("HfHubHTTPError", 503, False, "the hub answers 503 for o/repo", "later"),
    ],
)
def test_answers(name: str, status: int, has_token: bool, message: str, hint: str, llmcli_home: Path) -> None:
    found = translated(http(name, status), has_token=has_token)
    assert found.message == message
    assert hint in str(found.hint)
    assert found.exit_code == 3
    assert "secret" not in found.message + str(found.hint)


def test_the_telling_cause_is_found_inside(llmcli_home: Path) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    outer = LocalEntryNotFoundError("An error happened while trying to locate the file")
    outer.__cause__ = http("HfHubHTTPError", 500)
    assert translated(outer).message == "the hub answers 500 for o/repo"
    outer.__cause__ = OSError(errno.ENOSPC, "No space left on device", "/cache/blob")
    assert translated(outer).exit_code == 6
    outer.__cause__ = PermissionError(errno.EACCES, "Permission denied", "/cache/blobs")
    assert translated(outer).message == "cannot write /cache/blobs: Permission denied"
    assert translated(outer).exit_code == 1


def test_what_is_no_answer_of_a_hub(llmcli_home: Path) -> None:
    from huggingface_hub.errors import FileMetadataError, HFValidationError, OfflineModeIsEnabled

    assert "is not a model hub" in translated(FileMetadataError("missing header")).message
    assert "not the name of a repository" in translated(HFValidationError("bad")).message
    assert translated(OfflineModeIsEnabled("offline")).message == "the network is switched off"
    cut = translated(OSError("Consistency check failed: 3"), fetching=True)
    assert cut.message == "the download of m.gguf broke off: Consistency check failed: 3"
    assert "CA certificates" in translated(FileNotFoundError(errno.ENOENT, "No such file or directory")).message
    assert translated(TimeoutError("timed out")).message == "cannot reach huggingface.co: no answer in time"


def test_numbers_that_are_not_the_systems(llmcli_home: Path) -> None:
    """1 is EPERM and 2 is ENOENT for a file, but not for TLS and not for a name look-up (macOS)."""
    assert translated(ssl.SSLError(1, "[SSL] wrong version number")).message.startswith("cannot reach ")
    assert translated(socket.gaierror(2, "nodename nor servname")).message.startswith("cannot reach ")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "120"}, 120),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:10 GMT"}, 10),
        ({"retry-after": "Wed, 21 Oct 2015 07:00:00 GMT"}, 0),
        ({"retry-after": "Fri, 21 Oct 2150 07:00:00 GMT"}, 24 * 3600),
        ({"retry-after": "999999"}, 24 * 3600),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        *(({"retry-after": text}, None) for text in ("", "soon", "-5", "1e9", "9" * 400, "\u0663")),
        ({}, None),
    ],
)
def test_how_long_a_server_asks_to_wait(headers: dict[str, str], expected: float | None) -> None:
    now = datetime(2015, 10, 21, 7, 28, 0, tzinfo=timezone.utc)
    assert asked_to_wait_s(headers, now) == expected


def test_a_revision_that_is_not_there(llmcli_home: Path) -> None:
    error = http("RevisionNotFoundError", 404)
    settings = settings_module.load()
    found = as_llmcli_error(error, "o/repo", "", settings, has_token=False, fetching=False, revision="v9")
    assert found.message == "o/repo has no revision v9"


def test_without_a_token_401_may_be_a_slip_of_the_pen(llmcli_home: Path) -> None:
    assert "has no repository o/repo, or it is private" in translated(http("HfHubHTTPError", 401)).message


def test_a_certificate_midway_is_not_tried_again(llmcli_home: Path) -> None:
    class ConnectError(OSError):
        request = SimpleNamespace(url=SimpleNamespace(host="cdn.example.org"))

    error = ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer certificate")
    found = translated(error, fetching=True)
    assert not isinstance(found, TransientError)
    assert found.message.startswith("the certificate of cdn.example.org is not trusted: ")
    assert "SSL_CERT_FILE" in str(found.hint)
