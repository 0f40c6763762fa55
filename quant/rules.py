"""Which tensor gets which type: `REGEX=TYPE`, from the command line and from files.

The rules have llama-quantize's meaning: the pattern is lower-cased and searched for anywhere in a tensor's name, and
the first rule that is found counts. llama.cpp reads the pattern as an ECMAScript expression; here it is read by Python
to tell which tensors it means, and what llama.cpp made of it is compared with that (`require_applied`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from llmcli.base.errors import UsageError
from llmcli.base.text import decode_utf8, printable
from llmcli.models.gguf_types import TYPE_IDS
from llmcli.quant.types import parse_tensor_type

CHOSEN = "chosen:"  # what the source of a rule begins with that no user has written
_FILE_BYTES = 4 << 20
_PATTERN_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One rule. `source` is what the user wrote, for messages."""

    pattern: str
    tensor_type: str
    source: str

    @property
    def type_id(self) -> int:
        """Its number in enum ggml_type."""
        return TYPE_IDS[self.tensor_type]

    def matches(self, name: str) -> bool:
        """Whether the pattern is found in a tensor's name."""
        return _compiled(self.pattern).search(name) is not None


def parse_rule(text: str) -> TensorRule:
    """`REGEX=TYPE`. Raises UsageError where it has not that form, or the expression or the type is none."""
    pattern, equals, type_name = text.partition("=")
    if not equals or not pattern or not type_name:
        raise UsageError(f"{printable(text)!r} is not of the form REGEX=TYPE", hint="for example attn_v=q6_k")
    if len(pattern) > _PATTERN_CHARACTERS or "\0" in pattern:
        raise UsageError(f"the pattern of {printable(text[:60])!r} is too long or holds a NUL byte")
    rule = TensorRule(pattern.lower(), parse_tensor_type(type_name), text)
    try:
        _compiled(rule.pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{printable(pattern)!r} is no regular expression: {error}") from None
    return rule


def _compiled(pattern: str) -> re.Pattern[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # [[:alpha:]], which means another thing to llama.cpp
        return re.compile(pattern, re.ASCII)


def read_rules(file: str) -> tuple[TensorRule, ...]:
    """Rules from a file, one or more on a line. Raises UsageError where it cannot be read or a rule is wrong."""
    shown = printable(file)
    try:
        with open(file, "rb") as source:
            data = source.read(_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {shown}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _FILE_BYTES:
        raise UsageError(f"{shown} is larger than 4 MiB: no list of rules is")
    decoded = decode_utf8(data)
    if decoded.bad_offset is not None:
        raise UsageError(f"{shown} is not UTF-8 at byte {decoded.bad_offset:,}")
    try:
        found = tuple(parse_rule(word) for word in decoded.text.split())
    except UsageError as error:
        raise UsageError(f"{shown}: {error.message}", hint=error.hint) from None
    if not found:
        raise UsageError(f"{shown} holds no rule", hint="REGEX=TYPE, one on a line")
    return found


def first_match(rules: Sequence[TensorRule], name: str) -> TensorRule | None:
    """The rule that counts for a tensor."""
    return next((rule for rule in rules if rule.matches(name)), None)
