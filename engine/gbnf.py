"""Checks a GBNF grammar before libllama sees it.

libllama prints a syntax error to file descriptor 2 by itself, and some grammars abort the process, overflow its
stack or never come back. This module accepts the language of llama.cpp's `llama-grammar.cpp` (at the pinned
version) and names line and column of what it refuses. It knows syntax and names; `gbnf_limits` knows which
grammars of correct syntax libllama cannot carry. It does not match text and builds nothing that libllama uses.

The numbering of rules follows libllama's, because its limit on repetitions and its search for undefined names
depend on it: every name takes the next number where it is first seen, every group and every repetition takes one too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.engine.gbnf_limits import TERMINAL, Alternates, find_fault

MAX_REPETITIONS = 2000  # llama-grammar.cpp, MAX_REPETITION_THRESHOLD
# libllama's parser recurses once per open group, about 0.8 KB of stack each: 10,000 overflow 8 MB, the main thread's.
# 500 leave room on a thread with 512 KB.
MAX_NESTING = 500
# 8-byte elements that libllama holds in three copies once repetitions are written out: `"a long text"{2000}` is 22,000.
MAX_ELEMENTS = 2_000_000

_END = "\0"  # put behind the text so that every look-ahead finds a character; a NUL inside the text is refused first
_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n\0]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\r\n\0]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_DIGITS = re.compile(r"[0-9]+")
_LITERAL_RUN = re.compile(r'[^"\\\0]+')
_ESCAPE = re.compile(r'\\(?:[trn\\"\[\]-]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})')
_SURROGATE = re.compile("[\ud800-\udfff]")
_LINE_BREAK = re.compile(r"\r\n|\r|\n")

_HINT_RULE = 'a rule is one line: name ::= "text" [a-z]+ other-name | (a b)*'
_HINT_NAME = "a rule's name has letters, digits and - only"
_HINT_ESCAPE = r"write \\ for a backslash; the escapes are \n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH"
_HINT_TOKEN = "write <[id]> with an id that `llmcli tokenize` shows, or the text as a literal"
_HINT_REPEAT = "write * or + for any number, or repeat a smaller part"


def check_grammar(
    text: str, *, source: str, is_token: Callable[[str], bool] | None = None, n_vocab: int | None = None
) -> None:
    """Raise UsageError where libllama would refuse `text`, crash on it or not come back; return otherwise.

    source      what the message names: `--grammar` or a file's name
    is_token    whether a text, angle brackets included (`<think>`), is exactly one token of the model when special
                tokens are parsed and none is added; without it every text passes
    n_vocab     the model's vocabulary size, the bound of <[id]>; without it 32 bits are the bound
    """
    _Parser(text, source, is_token, n_vocab).check()


@dataclass(slots=True)
class _Open:
    """A rule or group being read. The last symbol is kept apart, for a repetition rewrites it."""

    rule_id: int
    start: int
    n_symbols_before: int
    alternates: Alternates = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    last: int = 0  # index in `sequence` where the last symbol starts
    n_last_elements: int = 0
    n_elements: int = 0  # without the last symbol
    n_last_rules: int = 1  # libllama's measure of how much a repetition of the last symbol repeats

    def begin_symbol(self, *items: int, n_elements: int, n_rules: int = 1) -> None:
        self.last = len(self.sequence)
        self.sequence.extend(items)
        self.n_elements += self.n_last_elements
        self.n_last_elements = n_elements
        self.n_last_rules = n_rules

    def end_alternate(self) -> None:
        self.alternates.append(self.sequence)
        self.sequence = []
        self.begin_symbol(n_elements=0)
        self.n_elements += 1


class _Parser:
    def __init__(self, text: str, source: str, is_token: Callable[[str], bool] | None, n_vocab: int | None) -> None:
        self._text = text + _END
        self._source = source
        self._is_token = is_token
        self._n_vocab = n_vocab
        self._pos = 0
        self._n_elements = 0
        self._name_ids: dict[str, int] = {}
        self._symbols: list[tuple[str, int]] = []  # by number: the name (a generated rule's owner), where first seen
        self._rules: list[Alternates | None] = []  # by number; None where only used so far
        self._rule_elements: list[int] = []
        self._starts = {"[": self._class, "(": self._open_group, ")": self._close_group, "|": self._alternate}
        self._starts |= {'"': self._literal, ".": self._any, "<": self._token, "!": self._token, "{": self._braces}
        self._starts |= {"*": self._star, "+": self._plus, "?": self._optional}
        self._open: list[_Open] = []

    def check(self) -> None:
        self._check_characters()
        self._skip(lines=True)
        while self._peek() != _END:
            self._rule()
        self._check_names()
        rules = [rule for rule in self._rules if rule is not None]  # all of them, now that the names are checked
        fault = find_fault(rules, self._rule_elements)
        if fault is not None:
            name, position = self._symbols[fault.rule_id]
            self._fail(position, fault.expected, fault.found.format(name=printable(name)), fault.hint)

    def _check_characters(self) -> None:
        nul = self._text.find("\0", 0, len(self._text) - 1)
        if nul >= 0:
            self._fail(nul, "text", "a NUL byte", "save the grammar as UTF-8 text")
        surrogate = _SURROGATE.search(self._text)
        if surrogate:
            self._fail(surrogate.start(), "UTF-8 text", hint="save the grammar as UTF-8 text")

    # One rule, group by group. The open groups lie in self._open, not on Python's stack.

    def _rule(self) -> None:
        start = self._pos
        name = self._match(_NAME)
        if name is None:
            self._fail(start, "the name of a rule", hint=_HINT_NAME)
        self._skip(lines=False)
        if not self._text.startswith("::=", self._pos):
            self._fail(self._pos, f"'::=' after {_short(name)}", hint=_HINT_RULE if self._peek() != "_" else _HINT_NAME)
        self._pos += 3
        self._skip(lines=True)
        self._open = [_Open(self._id_of(name, start), start, 0)]
        while self._symbol():
            pass
        if len(self._open) > 1:
            opened = self._place(self._open[-1].start)
            self._fail(self._pos, f"')' for the group opened at {opened}", hint="close every ( with a )")
        self._finish(self._open.pop())
        if self._peek() not in "\r\n" + _END:
            self._fail(self._pos, "a symbol or the end of the line", hint=_HINT_RULE)
        self._skip(lines=True)

    def _symbol(self) -> bool:
        """Read one symbol or operator and the space behind it; False where none starts here."""
        start = self._pos
        read = self._starts.get(self._peek())
        if read is not None:
            return read(self._open[-1], start) is not False
        name = self._match(_NAME)
        if name is None:
            return False
        self._open[-1].begin_symbol(self._id_of(name, start), n_elements=1)
        self._spend(1, start)
        return self._skip(lines=self._nested())

    def _literal(self, rule: _Open, start: int) -> bool:
        self._pos += 1
        n_chars = 0
        while (ch := self._peek()) != '"':
            if ch == _END:
                self._fail(
                    self._pos, f"'\"' for the text opened at {self._place(start)}", hint='close every " with a "'
                )
            run = self._match(_LITERAL_RUN)
            n_chars += 1 if run is None else len(run)
            if run is None:
                self._character()
        self._pos += 1
        rule.begin_symbol(*([TERMINAL] if n_chars else []), n_elements=n_chars)
        self._spend(n_chars, start)
        return self._skip(lines=self._nested())

    def _class(self, rule: _Open, start: int) -> bool:
        self._pos += 1
        if self._peek() == "^":
            self._pos += 1
        n_elements = 0
        while self._peek() != "]":
            self._class_character(start)
            n_elements += 1
            if self._peek() == "-" and self._text[self._pos + 1] != "]":
                self._pos += 1
                self._class_character(start)
                n_elements += 1
        self._pos += 1
        rule.begin_symbol(*([TERMINAL] if n_elements else []), n_elements=n_elements)
        self._spend(n_elements, start)
        return self._skip(lines=self._nested())

    def _class_character(self, start: int) -> None:
        if self._peek() == _END:
            self._fail(self._pos, f"']' for the set opened at {self._place(start)}", hint=r"close every [ with a ]")
        self._character()

    def _character(self) -> None:
        if self._peek() != "\\":
            self._pos += 1
        elif self._match(_ESCAPE) is None:
            width = {"x": 2, "u": 4, "U": 8}.get(self._text[self._pos + 1])
            found = _quoted(self._text[self._pos : self._pos + 2 + (width or 0)].rstrip(_END))
            self._fail(self._pos, f"{width} hex digits after the escape" if width else "an escape", found, _HINT_ESCAPE)

    def _any(self, rule: _Open, start: int) -> bool:
        self._pos += 1
        rule.begin_symbol(TERMINAL, n_elements=1)
        self._spend(1, start)
        return self._skip(lines=self._nested())

    def _token(self, rule: _Open, start: int) -> bool:
        if self._peek() == "!":
            self._pos += 1
        if self._peek() != "<":
            self._fail(self._pos, "'<' after '!'", hint=_HINT_TOKEN)
        if self._text[self._pos + 1] == "[":
            self._token_id()
        else:
            self._token_text()
        rule.begin_symbol(TERMINAL, n_elements=1)
        self._spend(1, start)
        return self._skip(lines=self._nested())

    def _token_id(self) -> None:
        self._pos += 2
        start = self._pos
        token_id = self._integer("a token id")
        if not self._text.startswith("]>", self._pos):
            self._fail(self._pos, "']>' after the token id", hint=_HINT_TOKEN)
        self._pos += 2
        bound = 2**32 if self._n_vocab is None else self._n_vocab
        if token_id >= bound:
            self._fail(start, f"a token id below {bound:,}", hint=_HINT_TOKEN)

    def _token_text(self) -> None:
        start = self._pos
        end = self._text.find(">", start)
        if end < 0:
            self._fail(len(self._text) - 1, f"'>' for the token opened at {self._place(start)}", hint=_HINT_TOKEN)
        self._pos = end + 1
        token = self._text[start : self._pos]
        if self._is_token is not None and not self._is_token(token):
            self._fail(start, "a text that is one token of this model", _quoted(token), _HINT_TOKEN)

    def _open_group(self, _rule: _Open, start: int) -> bool:
        if len(self._open) > MAX_NESTING:
            self._fail(start, f"at most {MAX_NESTING} groups inside each other", "one more", "give inner groups a name")
        name = self._symbols[self._open[0].rule_id][0]
        n_symbols = len(self._symbols)
        self._pos += 1
        self._open.append(_Open(self._new_id(name, start), start, n_symbols))
        return self._skip(lines=True)

    def _close_group(self, rule: _Open, start: int) -> bool:
        if not self._nested():
            return False
        self._open.pop()
        self._finish(rule)
        self._open[-1].begin_symbol(rule.rule_id, n_elements=1, n_rules=len(self._symbols) - rule.n_symbols_before)
        self._spend(1, start)
        self._pos += 1
        return self._skip(lines=self._nested())

    def _alternate(self, rule: _Open, _start: int) -> bool:
        rule.end_alternate()
        self._pos += 1
        return self._skip(lines=True)

    def _finish(self, rule: _Open) -> None:
        rule.end_alternate()
        self._define(rule.rule_id, rule.alternates, rule.n_elements)

    def _define(self, rule_id: int, alternates: Alternates, n_elements: int) -> None:
        """A name that is defined twice keeps its last definition, as in libllama."""
        missing = rule_id + 1 - len(self._rules)
        self._rules.extend([None] * missing)
        self._rule_elements.extend([0] * missing)
        self._rules[rule_id], self._rule_elements[rule_id] = alternates, n_elements

    # Repetitions: written out into rules, as libllama does.

    def _star(self, rule: _Open, start: int) -> bool:
        return self._operator(rule, start, 0, None)

    def _plus(self, rule: _Open, start: int) -> bool:
        return self._operator(rule, start, 1, None)

    def _optional(self, rule: _Open, start: int) -> bool:
        return self._operator(rule, start, 0, 1)

    def _operator(self, rule: _Open, start: int, least: int, most: int | None) -> bool:
        self._pos += 1
        self._repeat(rule, start, least, most)
        return self._skip(lines=self._nested())

    def _braces(self, rule: _Open, start: int) -> bool:
        """{m}, {m,} or {m,n}. libllama takes an n above its limit as no bound, and so does this."""
        nested = self._nested()
        self._pos += 1
        self._skip(lines=nested)
        least = self._integer("a number of repetitions")
        most: int | None = least
        self._skip(lines=nested)
        if self._peek() == ",":
            self._pos += 1
            self._skip(lines=nested)
            most = self._integer("a number of repetitions") if self._peek() in "0123456789" else None
            self._skip(lines=nested)
        elif self._peek() != "}":
            self._fail(self._pos, "',' or '}' after the number of repetitions", hint="write {m}, {m,} or {m,n}")
        if self._peek() != "}":
            self._fail(self._pos, f"'}}' for the repetition opened at {self._place(start)}", hint="write {m,} or {m,n}")
        if least > MAX_REPETITIONS:
            self._fail(start, f"at most {MAX_REPETITIONS:,} repetitions", f"{least:,}", _HINT_REPEAT)
        if most is not None and most < least:  # libllama counts n - m down from 2^64
            self._fail(start, "{m,n} with n no smaller than m", f"{{{least},{most}}}", "put the smaller number first")
        return self._operator(rule, start, least, None if most is None or most > MAX_REPETITIONS else most)

    def _integer(self, what: str) -> int:
        start = self._pos
        digits = self._match(_DIGITS)
        if digits is None:
            self._fail(start, what)
        digits = digits.lstrip("0") or "0"
        if len(digits) > 20 or int(digits) >= 2**64:
            self._fail(start, f"{what} below 2^64", hint="write a smaller number")
        return int(digits)

    def _repeat(self, rule: _Open, start: int, least: int, most: int | None) -> None:
        """Rewrite the last symbol S: S{m,n} is m times S and n - m nested optional ones, S{m,} is S^m S' with S' ::= S S' |."""
        symbol = rule.sequence[rule.last :]
        if not symbol:
            self._fail(start, "a symbol to repeat", hint='write "text"*, [a-z]+, name? or (a b){2}')
        n_rules = rule.n_last_rules * (most or least or 1)
        if n_rules > MAX_REPETITIONS:
            self._fail(start, f"at most {MAX_REPETITIONS:,} repeated rules", f"{n_rules:,}", _HINT_REPEAT)
        n_elements = rule.n_last_elements
        n_optional = 1 if most is None else most - least
        self._spend(n_elements * (least + n_optional + 1) + 3 * n_optional, start)
        if least == 0:
            del rule.sequence[rule.last :]
        else:
            rule.sequence.extend(symbol * (least - 1))
        name = self._symbols[self._open[0].rule_id][0]
        rest: int | None = None
        for _ in range(n_optional):
            rule_id = self._new_id(name, start)
            follower = rule_id if most is None else rest
            self._define(rule_id, [symbol if follower is None else [*symbol, follower], []], n_elements + 3)
            rest = rule_id
        if rest is not None:
            rule.sequence.append(rest)
        rule.n_last_elements = n_elements * least + (rest is not None)
        rule.n_last_rules = n_rules

    # Names and numbers.

    def _id_of(self, name: str, position: int) -> int:
        rule_id = self._name_ids.setdefault(name, len(self._symbols))
        if rule_id == len(self._symbols):
            self._symbols.append((name, position))
        return rule_id

    def _new_id(self, owner: str, position: int) -> int:
        """The number of a generated rule; libllama keeps the owner's name with each, so a long name costs too."""
        self._spend(8 + len(owner) // 8, position)
        self._symbols.append((owner, position))
        return len(self._symbols) - 1

    def _check_names(self) -> None:
        if not self._rules:
            self._fail(0, "a rule named root", "an empty grammar", 'write root ::= "yes" | "no"')
        undefined = {rule_id for rule_id, rule in enumerate(self._rules) if rule is None}
        used = {item for rule in self._rules if rule for sequence in rule for item in sequence}
        undefined |= {rule_id for rule_id in used if rule_id >= len(self._rules)}
        if undefined:
            name, position = min((self._symbols[rule_id] for rule_id in undefined), key=lambda symbol: symbol[1])
            defined = [other for other, number in self._name_ids.items() if number not in undefined][:1000]
            near = difflib.get_close_matches(name[:100], defined, n=1)
            hint = f"did you mean {_short(near[0])}?" if near else f"add a line: {_short(name)} ::= …"
            self._fail(position, "the name of a rule that is defined", _short(name), hint)
        root = self._name_ids.get("root", len(self._rules))
        if root >= len(self._rules):
            name, position = self._symbols[0]
            self._fail(
                position, "a rule named root", f"{_short(name)} and no root", f"add a line: root ::= {_short(name)}"
            )

    # Reading.

    def _peek(self) -> str:
        return self._text[self._pos]

    def _nested(self) -> bool:
        return len(self._open) > 1

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._text, self._pos)
        if found is None:
            return None
        self._pos = found.end()
        return found.group()

    def _skip(self, *, lines: bool) -> bool:
        self._match(_SPACE_AND_LINES if lines else _SPACE)
        return True

    def _spend(self, n_elements: int, position: int) -> None:
        self._n_elements += n_elements
        if self._n_elements > MAX_ELEMENTS:
            expected = f"at most {MAX_ELEMENTS:,} characters and rules with all repetitions written out"
            self._fail(position, expected, "more", _HINT_REPEAT)

    def _place(self, position: int) -> str:
        breaks = list(_LINE_BREAK.finditer(self._text, 0, position))
        column = position - (breaks[-1].end() if breaks else 0) + 1
        return f"line {len(breaks) + 1}, column {column}"

    def _fail(self, position: int, expected: str, found: str | None = None, hint: str = _HINT_RULE) -> NoReturn:
        found = self._found(position) if found is None else found
        message = f"{printable(self._source)}, {self._place(position)}: expected {expected}, found {found}"
        raise UsageError(message, hint=hint)

    def _found(self, position: int) -> str:
        if position >= len(self._text) - 1:
            return "the end of the grammar"
        if self._text[position] in "\r\n":
            return "the end of the line"
        word = _NAME.match(self._text, position)
        return _quoted(word.group() if word else self._text[position])


def _short(text: str) -> str:
    return printable(text if len(text) <= 40 else text[:39] + "…")


def _quoted(text: str) -> str:
    return f"'{_short(text)}'"
