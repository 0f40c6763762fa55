"""Why nothing, or not more, was restored: one word for programs and one sentence for people."""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum

from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.cache_store.block_file import read_header
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.keys import BLOCK_TOKENS, TOKEN_BYTES, Fingerprint, Namespace, Scalar, common_tokens
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.match import MAX_FOUND_CHILDREN, MAX_SEEN_NAMES

_KV_TYPES = {"type_k", "type_v"}
_MAX_NAMED = 3
_READABLE = 24  # longer values are digests, or as good as


class MissReason(str, Enum):
    """The words of `miss_reason` in JSON output."""

    OFF = "off"
    TOO_SHORT = "too_short"
    SHARES_TOO_LITTLE = "shares_too_little"
    NOT_TESTED = "not_tested"
    NOTHING_STORED = "nothing_stored"
    OTHER_MODEL = "other_model"
    OTHER_BUILD = "other_build"
    OTHER_KV_TYPE = "other_kv_type"
    OTHER_SETTINGS = "other_settings"
    EVICTED = "evicted"
    EXPIRED = "expired"
    DAMAGED = "damaged"
    REMOVED = "removed"
    COSTS_MORE = "costs_more"

    def __str__(self) -> str:
        return self.value


def too_short(tokens: int, min_tokens: int) -> str:
    """The sentence for a prompt that is too short itself."""
    end = "" if tokens < min_tokens else ", the last of which is always computed"
    return f"{format_count(tokens, 'token')}{end}, the minimum is {min_tokens:,}"


def shares_too_little(shared: int, min_tokens: int, *, usable: int | None = None) -> str:
    """The sentence for a prompt of which less is stored than is restored at least.

    usable   how many of the shared tokens a restore may use, where that is not all of them
    """
    end = "" if usable in (None, shared) else f", of which {usable:,} may be restored"
    return f"{format_count(shared, 'token')} with what is stored{end}, the minimum is {min_tokens:,}"


def other_reason(stored: Fingerprint, wanted: Fingerprint) -> tuple[MissReason, str]:
    """The reason and the sentence for tokens that are stored under another fingerprint."""
    # Digests tell a reader least: they stand behind what can be read.
    differences = sorted(stored.differences(wanted), key=lambda each: any(_is_digest(value) for value in each[1:]))
    names = {name for name, _, _ in differences}
    told = "; ".join(f"{n}: stored {_word(there)}, now {_word(here)}" for n, there, here in differences[:_MAX_NAMED])
    if "model" in names:
        return MissReason.OTHER_MODEL, told
    if "build" in names:
        return MissReason.OTHER_BUILD, told
    if names & _KV_TYPES:
        return MissReason.OTHER_KV_TYPE, told
    return MissReason.OTHER_SETTINGS, told


def stored_elsewhere(
    layout: Layout, known: Iterable[Fingerprint], wanted: Fingerprint, salt: str, prompt: bytes
) -> Fingerprint | None:
    """The most similar other fingerprint under which the beginning of `prompt` is stored."""
    others = [fingerprint for fingerprint in known if fingerprint.digest != wanted.digest]
    others.sort(key=lambda fingerprint: len(fingerprint.differences(wanted)))
    return next((other for other in others if _has_beginning(layout, Namespace.of(other, salt), prompt)), None)


def _has_beginning(layout: Layout, namespace: Namespace, prompt: bytes) -> bool:
    """Whether a first block of this namespace shares at least its first tokens with the prompt."""
    first = prompt[: BLOCK_TOKENS * TOKEN_BYTES]
    if len(first) == BLOCK_TOKENS * TOKEN_BYTES:
        keys = (namespace.key(namespace.root, first, exact=exact) for exact in (True, False))
        if any(os.path.exists(layout.block(namespace.root, key)) for key in keys):
            return True
    found, _ = layout.children(namespace.root, max_seen=MAX_SEEN_NAMES, max_found=MAX_FOUND_CHILDREN)
    for key in found:
        try:
            header, _ = read_header(layout.block(namespace.root, key))
        except (FileNotFoundError, DamagedError):
            continue
        if common_tokens(header.tokens, first) * 2 >= min(header.n_tokens, len(first) // TOKEN_BYTES):
            return True
    return False


def _word(value: Scalar) -> str:
    """A fact, short enough for a line: long digests are cut."""
    text = "nothing" if value is None else printable(str(value))
    return text[:12] + "…" if _is_digest(value) else text


def _is_digest(value: Scalar) -> bool:
    return len(printable(str(value))) > _READABLE
