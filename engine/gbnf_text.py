"""The text of a GBNF grammar while it is read: a position in it, and errors that name line and column.

Knows characters, white space, comments and escapes; knows no rules.
"""

from __future__ import annotations

import re
from typing import NoReturn

from llmcli.base.errors import UsageError
from llmcli.base.text import printable

# libllama reads a grammar in no time; reading the densest text of this length here takes about 3 s.
MAX_CHARACTERS = 500_000

END = "\0"  # put behind the text so that every look-ahead finds a character; a NUL inside the text is refused first
NAME = re.compile(r"[a-zA-Z0-9-]+")
DIGITS = re.compile(r"[0-9]+")
LITERAL_RUN = re.compile(r'[^"\\\0]+')
_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n\0]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n\0]*)*")
_ESCAPE = re.compile(r'\\(?:[trn\\"\[\]-]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})')
_SURROGATE = re.compile("[\ud800-\udfff]")

HINT_RULE = 'a rule is one line: name ::= "text" [a-z]+ other-name | (a b)*'
_HINT_ESCAPE = r"write \\ for a backslash; the escapes are \n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH"
_HINT_TEXT = "save the grammar as UTF-8 text without NUL bytes"


class GrammarText:
    """The grammar and how far it is read. `fail` is the one place where messages are made."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text + END
        self.position = 0
        self._source = source
        if len(text) > MAX_CHARACTERS:
            self.fail(MAX_CHARACTERS, f"at most {MAX_CHARACTERS:,} characters", f"{len(text):,}", "write less")
        if END in text:  # libllama would take it for the end of the grammar
            self.fail(text.index(END), "text", "a NUL byte", _HINT_TEXT)
        surrogate = _SURROGATE.search(text)
        if surrogate:
            self.fail(surrogate.start(), "UTF-8 text", hint=_HINT_TEXT)

    def peek(self, ahead: int = 0) -> str:
        """The next character, or the one `ahead` of it; END behind the text."""
        return self.text[self.position + ahead]

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """What `pattern` finds here; the position moves behind it."""
        found = pattern.match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return found.group()

    def take(self, wanted: str) -> bool:
        """Move behind `wanted` where it is next."""
        found = self.text.startswith(wanted, self.position)
        if found:
            self.position += len(wanted)
        return found

    def skip(self, *, lines: bool) -> None:
        """Move behind white space and comments; behind line ends too where `lines`."""
        self.match(_SPACE_AND_LINES if lines else _SPACE)

    def character(self) -> None:
        """Move behind one character of a literal or a set, which may be an escape."""
        if self.peek() != "\\":
            self.position += 1
        elif self.match(_ESCAPE) is None:
            width = {"x": 2, "u": 4, "U": 8}.get(self.peek(1), 0)
            found = quoted(self.text[self.position : self.position + 2 + width].rstrip(END))
            self.fail(
                self.position, f"{width} hex digits after the escape" if width else "an escape", found, _HINT_ESCAPE
            )

    def integer(self, what: str) -> int:
        """A decimal number of at most 64 bits: libllama refuses longer ones."""
        start = self.position
        digits = self.match(DIGITS)
        if digits is None:
            self.fail(start, what)
        digits = digits.lstrip("0") or "0"
        if len(digits) > 20 or int(digits) >= 2**64:
            self.fail(start, f"{what} below 2^64", hint="write a smaller number")
        return int(digits)

    def place(self, position: int) -> str:
        """Line and column of a character, both counted from 1."""
        breaks = (self.text.rfind("\n", 0, position), self.text.rfind("\r", 0, position))
        n_lines = 1 + self.text.count("\n", 0, position) + self.text.count("\r", 0, position)
        n_lines -= self.text.count("\r\n", 0, position)  # one break, counted twice
        return f"line {n_lines}, column {position - max(breaks)}"

    def fail(self, position: int, expected: str, found: str | None = None, hint: str = HINT_RULE) -> NoReturn:
        """Refuse the grammar at `position`; `found` is what stands there unless it is given."""
        found = self._found(position) if found is None else found
        message = f"{printable(self._source)}, {self.place(position)}: expected {expected}, found {found}"
        raise UsageError(message, hint=hint)

    def _found(self, position: int) -> str:
        if position >= len(self.text) - 1:
            return "the end of the grammar"
        if self.text[position] in "\r\n":
            return "the end of the line"
        word = NAME.match(self.text, position)
        return quoted(word.group() if word else self.text[position])


def short(text: str) -> str:
    """`text` for a message: printable, and cut where it is long."""
    return printable(text if len(text) <= 40 else text[:39] + "…")


def quoted(text: str) -> str:
    """`text` for a message, in quotes."""
    return f"'{short(text)}'"
