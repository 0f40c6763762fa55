"""From what the hub client raises to one line and a next step. Knows the client's errors by name only.

By name, so that this file needs no import of the client or of the HTTP library under it, which has changed its name
between versions. Every cause in the chain is looked at: the client wraps the telling error in a vague one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from llmcli.base.errors import LlmcliError, ModelError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_seconds
from llmcli.models.place import as_disk_error
from llmcli.models.reach import (
    causes,
    class_names,
    leads_nowhere,
    proxy_for,
    reason_of,
    unreachable,
    untrusted,
    without_credentials,
)

_MAX_WAIT_S = 24 * 3600
# OSErrors whose numbers are not the system's: 1 of the TLS library is not "operation not permitted".
_FOREIGN_NUMBERS = {"SSLError", "gaierror"}


class RefusedError(ModelError):
    """The hub's answer was no, and will be no the next time: gated, private, missing, no right to it."""


class TransientError(ModelError):
    """A failure that may be gone on the next try; `wait_s` is how long the server asks to wait, None: it does not."""

    def __init__(self, message: str, *, hint: str | None = None, wait_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s


def as_llmcli_error(
    error: Exception,
    repo_id: str,
    file: str,
    settings: Settings,
    *,
    has_token: bool,
    fetching: bool,
    revision: str | None = None,
) -> LlmcliError:
    """The error to report for `error`, raised while `file` of `repo_id` was asked for or, then, `fetching` it.

    revision  the branch, tag or commit that was asked for, where that may be what is missing
    """
    chain = list(causes(error))
    names = {name for link in chain for name in class_names(link)}
    repo, where = printable(repo_id), _endpoint(settings)
    if refused := _refusal(
        chain, names, f"{where}/{repo}", repo, printable(file), has_token=has_token, revision=revision
    ):
        return refused
    if disk := _disk_error(chain, settings):
        return disk
    if "FileMetadataError" in names:
        return not_a_hub(settings)
    if "HFValidationError" in names:
        return ModelError(f"{repo} is not the name of a repository", hint="write it as owner/repo")
    if "OfflineModeIsEnabled" in names:
        return ModelError("the network is switched off", hint="unset HF_HUB_OFFLINE and LLMCLI_OFFLINE")
    target = urlsplit(settings.hub_endpoint)
    if any(leads_nowhere(link, proxy_for(target.scheme, target.hostname or "")) for link in chain):
        return RefusedError(f"the hub leads on from {printable(file) or repo} to nowhere: {reason_of(error)}")
    if fetching and not untrusted(error):
        return broke_off(file, reason_of(error))
    host = _asked_host(chain) or target.hostname or where
    return unreachable(host, proxy_for(target.scheme, host), error)


def broke_off(file: str, reason: str) -> TransientError:
    """For a transfer that ended before the file did."""
    return TransientError(f"the download of {printable(file)} broke off: {reason}", hint="try again")


def asked_to_wait_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """What Retry-After (seconds or a date) or the hub's RateLimit header asks for; None where neither does."""
    text = headers.get("retry-after", "").strip()
    found = re.search(r"\bt=(\d{1,6})\b", headers.get("ratelimit", "")) if not text else None
    text = found[1] if found else text
    if re.fullmatch(r"[0-9]{1,6}", text):
        return min(float(text), _MAX_WAIT_S)
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    until = until if until.tzinfo else until.replace(tzinfo=timezone.utc)
    return min(max(0.0, (until - (now or datetime.now(timezone.utc))).total_seconds()), _MAX_WAIT_S)


def in_trouble(status: int, who: str, what: str, headers: Mapping[str, str]) -> TransientError | None:
    """The error for a server that is busy (429) or broken (5xx) when asked for `what`; None for any other status."""
    wait_s = asked_to_wait_s(headers)
    wait = f"wait {format_seconds(wait_s)}, which is what it asks for" if wait_s else None
    if status == 429:
        hint = wait or "wait some minutes, or set HF_TOKEN"
        return TransientError(f"{who} allows no more requests for now: 429", hint=hint, wait_s=wait_s)
    if status >= 500 or status == 408:
        return TransientError(f"{who} answers {status} for {what}", hint=wait or "try again later", wait_s=wait_s)
    return None


def not_a_hub(settings: Settings) -> ModelError:
    """For an answer without the hub's own headers: a login portal, or a mirror that is none."""
    return ModelError(
        f"what answers at {_endpoint(settings)} is not a model hub",
        hint="check HF_ENDPOINT; or log in to the network first",
    )


def _endpoint(settings: Settings) -> str:
    return without_credentials(printable(settings.hub_endpoint))


def _disk_error(chain: list[BaseException], settings: Settings) -> LlmcliError | None:
    for link in chain:
        if not isinstance(link, OSError) or _FOREIGN_NUMBERS & class_names(link):
            continue
        if isinstance(link, FileNotFoundError) and link.errno and not link.filename:
            # How the ssl module reports a certificate file that is not there.
            return ModelError("the file with the CA certificates is missing", hint="correct SSL_CERT_FILE")
        if found := as_disk_error(link, settings.hub_cache_dir, move_with="HF_HOME"):
            return found
    return None


def _refusal(
    chain: list[BaseException],
    names: set[str],
    page: str,
    repo: str,
    file: str,
    *,
    has_token: bool,
    revision: str | None,
) -> ModelError | None:
    """The answer was no. The hub says 401 for a missing repository as for a private one, and the client knows which."""
    answers = [getattr(link, "response", None) for link in chain]
    status = next((answer.status_code for answer in answers if answer is not None), None)
    if "GatedRepoError" in names and has_token:
        return RefusedError(f"your token has no access to {repo}", hint=f"ask for access at {page}")
    if "GatedRepoError" in names:
        return RefusedError(
            f"{repo} is gated and there is no token", hint=f"accept its terms at {page}, then set HF_TOKEN"
        )
    if "RepositoryNotFoundError" in names or (status == 401 and not has_token):
        hint = "check the name; a private repository needs a token that may read it (HF_TOKEN)"
        return RefusedError(f"the hub has no repository {repo}, or it is private", hint=hint)
    if "RevisionNotFoundError" in names and revision is not None:
        return RefusedError(
            f"{repo} has no revision {printable(revision)}", hint=f"a branch, a tag or a commit: see {page}/tree/main"
        )
    if names & {"RevisionNotFoundError", "RemoteEntryNotFoundError"}:
        return RefusedError(f"{repo} has no file {file}", hint=f"see what there is at {page}/tree/main")
    if "DisabledRepoError" in names:
        return RefusedError(f"the hub has switched {repo} off", hint=f"see {page}")
    if status == 401:
        return RefusedError("the hub does not accept your token", hint="renew or unset HF_TOKEN")
    if status == 403:
        return RefusedError(f"the hub refuses {repo}: 403", hint=f"check what your token may read, and {page}")
    if status is not None and (trouble := in_trouble(status, "the hub", repo, _headers(answers))):
        return trouble
    if status is not None:
        return RefusedError(f"the hub answers {status} for {repo}", hint=f"check the name at {page}")
    return None


def _asked_host(chain: list[BaseException]) -> str | None:
    """The host that the failed request went to, which after a redirect is not the hub."""
    for link in chain:
        try:
            return str(link.request.url.host)  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):  # the library raises RuntimeError where there was no request
            continue
    return None


def _headers(answers: list[Any]) -> Mapping[str, str]:
    return next((answer.headers for answer in answers if answer is not None), {})
