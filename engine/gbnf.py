"""Checks a GBNF grammar before libllama sees it.

libllama prints a syntax error to file descriptor 2 by itself, and some grammars abort the process, overflow its
stack or never come back. This module accepts the language of llama.cpp's `llama-grammar.cpp` (at the pinned
version) and names line and column of what it refuses. It knows syntax and names; `gbnf_text` reads characters;
`gbnf_limits` knows which grammars of correct syntax libllama cannot carry. Nothing here matches text or builds
anything that libllama uses.

The numbering of rules follows libllama's, because its limit on repetitions and its search for undefined names
depend on it: every name takes the next number where it is first seen, every group and every repetition takes one too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field

from llmcli.engine.gbnf_limits import TERMINAL, Alternates, find_fault
from llmcli.engine.gbnf_text import END, HINT_RULE, LITERAL_RUN, NAME, GrammarText, quoted, short

MAX_REPETITIONS = 2000  # llama-grammar.cpp, MAX_REPETITION_THRESHOLD
# libllama's parser recurses once per open group, about 0.8 KB of stack each: 10,000 overflow the 8 MB of a main thread.
# 500 leave room on a thread with 512 KB.
MAX_NESTING = 500
# 8-byte elements that libllama holds in three copies once repetitions are written out: `"a long text"{2000}` is 22,000.
MAX_ELEMENTS = 1_000_000

_HINT_NAME = "a rule's name has letters, digits and - only"
_HINT_ID = "write <[id]> with an id that `llmcli tokenize` shows, or the text as a literal"
_HINT_REPEAT = "write * or + for any number, or repeat a smaller part"
_HINT_BRACES = "write {m}, {m,} or {m,n}"


def check_grammar(
    text: str, *, source: str, is_token: Callable[[str], bool] | None = None, n_vocab: int | None = None
) -> None:
    """Raise UsageError where libllama would refuse `text`, crash on it or not come back; return otherwise.

    source      what the message names: `--grammar` or a file's name
    is_token    whether a text, angle brackets included (`<think>`), is exactly one token of the model when special
                tokens are parsed and none is added; without it every text passes
    n_vocab     the model's vocabulary size, the bound of <[id]>; without it 32 bits are the bound
    """
    _Parser(GrammarText(text, source), is_token, n_vocab).check()


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
    def __init__(self, text: GrammarText, is_token: Callable[[str], bool] | None, n_vocab: int | None) -> None:
        self._in = text
        self._is_token = is_token
        self._n_vocab = n_vocab
        self._n_elements = 0
        self._name_ids: dict[str, int] = {}
        # By number: the name (for a generated rule its owner's), and where it is defined or, until then, first used.
        self._symbols: list[tuple[str, int]] = []
        self._rules: list[Alternates | None] = []  # by number; None where only used so far
        self._rule_elements: list[int] = []
        self._open: list[_Open] = []  # the rule and the groups open in it: not on Python's stack
        self._readers: dict[str, Callable[[_Open, int], None]] = {
            '"': self._literal,
            "[": self._set,
            ".": self._any,
            "<": self._token,
            "!": self._token,
            "(": self._group,
            "|": self._alternate,
            "*": self._operator,
            "+": self._operator,
            "?": self._operator,
            "{": self._braces,
        }

    def check(self) -> None:
        self._in.skip(lines=True)
        while self._in.peek() != END:
            self._rule()
        root = self._check_names()
        rules = [rule for rule in self._rules if rule is not None]  # all of them, now that the names are checked
        fault = find_fault(rules, self._rule_elements, root)
        if fault is not None:
            name, position = self._symbols[fault.rule_id]
            self._in.fail(position, fault.expected, fault.found.format(name=short(name)), fault.hint)

    def _rule(self) -> None:
        start = self._in.position
        name = self._in.match(NAME)
        if name is None:
            self._in.fail(start, "the name of a rule", hint=_HINT_NAME)
        self._in.skip(lines=False)
        if not self._in.take("::="):
            hint = _HINT_NAME if self._in.peek() == "_" else HINT_RULE
            self._in.fail(self._in.position, f"'::=' after {quoted(name)}", hint=hint)
        rule_id = self._id_of(name, start)
        self._symbols[rule_id] = (name, start)
        self._in.skip(lines=True)
        self._open = [_Open(rule_id, start, 0)]
        while self._symbol():
            pass
        if self._nested():
            opened = self._in.place(self._open[-1].start)
            self._in.fail(self._in.position, f"')' for the group opened at {opened}", hint="close every ( with a )")
        self._finish(self._open.pop())
        if self._in.peek() not in "\r\n" + END:
            hint = _HINT_NAME if self._in.peek() == "_" else HINT_RULE
            self._in.fail(self._in.position, "a symbol or the end of the line", hint=hint)
        self._in.skip(lines=True)

    def _symbol(self) -> bool:
        """Read one symbol or operator and the space behind it; False where none starts here."""
        start, first = self._in.position, self._in.peek()
        read = self._readers.get(first)
        if read is not None:
            read(self._open[-1], start)
        elif first == ")" and self._nested():
            self._close_group(self._open.pop(), start)
        else:
            name = self._in.match(NAME)
            if name is None:
                return False
            self._begin(self._open[-1], start, self._id_of(name, start), n_elements=1)
        self._in.skip(lines=self._nested() or first == "|")
        return True

    def _begin(self, rule: _Open, start: int, *items: int, n_elements: int, n_rules: int = 1) -> None:
        self._spend(n_elements, start)
        rule.begin_symbol(*items, n_elements=n_elements, n_rules=n_rules)

    def _literal(self, rule: _Open, start: int) -> None:
        self._in.position += 1
        n_chars = 0
        while (ch := self._in.peek()) != '"':
            if ch == END:
                opened = self._in.place(start)
                self._in.fail(self._in.position, f"'\"' for the text opened at {opened}", hint='close every " with a "')
            run = self._in.match(LITERAL_RUN)
            n_chars += 1 if run is None else len(run)
            if run is None:
                self._in.character()
        self._in.position += 1
        self._begin(rule, start, *([TERMINAL] if n_chars else []), n_elements=n_chars)

    def _set(self, rule: _Open, start: int) -> None:
        self._in.position += 1
        self._in.take("^")
        n_elements = 0
        while self._in.peek() != "]":
            self._set_character(start)
            n_elements += 1
            if self._in.peek() == "-" and self._in.peek(1) != "]":
                self._in.position += 1
                self._set_character(start)
                n_elements += 1
        self._in.position += 1
        self._begin(rule, start, *([TERMINAL] if n_elements else []), n_elements=n_elements)

    def _set_character(self, start: int) -> None:
        if self._in.peek() == END:
            opened = self._in.place(start)
            self._in.fail(self._in.position, f"']' for the set opened at {opened}", hint="close every [ with a ]")
        self._in.character()

    def _any(self, rule: _Open, start: int) -> None:
        self._in.position += 1
        self._begin(rule, start, TERMINAL, n_elements=1)

    def _token(self, rule: _Open, start: int) -> None:
        self._in.take("!")
        if self._in.take("<["):
            self._token_id()
        elif self._in.peek() == "<":
            self._token_text()
        else:
            self._in.fail(self._in.position, "'<' after '!'", hint=_HINT_ID)
        self._begin(rule, start, TERMINAL, n_elements=1)

    def _token_id(self) -> None:
        start = self._in.position
        token_id = self._in.integer("a token id")
        if not self._in.take("]>"):
            self._in.fail(self._in.position, "']>' after the token id", hint=_HINT_ID)
        bound = 2**32 if self._n_vocab is None else self._n_vocab
        if token_id >= bound:
            self._in.fail(start, f"a token id below {bound:,}", hint=_HINT_ID)

    def _token_text(self) -> None:
        start = self._in.position
        end = self._in.text.find(">", start)
        if end < 0:
            opened = self._in.place(start)
            self._in.fail(len(self._in.text) - 1, f"'>' for the token opened at {opened}", hint=_HINT_ID)
        self._in.position = end + 1
        token = self._in.text[start : end + 1]
        if self._is_token is not None and not self._is_token(token):
            self._in.fail(start, "a text that is one token of this model", quoted(token), _HINT_ID)

    # Groups and alternates.

    def _group(self, _rule: _Open, start: int) -> None:
        if len(self._open) > MAX_NESTING:
            expected = f"at most {MAX_NESTING} groups inside each other"
            self._in.fail(start, expected, "one more", "make an inner group a rule")
        self._in.position += 1
        n_symbols = len(self._symbols)
        self._open.append(_Open(self._new_id(start), start, n_symbols))

    def _close_group(self, group: _Open, start: int) -> None:
        self._finish(group)
        self._in.position += 1
        n_rules = len(self._symbols) - group.n_symbols_before
        self._begin(self._open[-1], start, group.rule_id, n_elements=1, n_rules=n_rules)

    def _alternate(self, rule: _Open, _start: int) -> None:
        self._in.position += 1
        rule.end_alternate()

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

    def _operator(self, rule: _Open, start: int) -> None:
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._in.peek()]
        self._in.position += 1
        self._repeat(rule, start, least, most)

    def _braces(self, rule: _Open, start: int) -> None:
        """{m}, {m,} or {m,n}. libllama takes an n above its limit as no bound, and so does this."""
        nested = self._nested()
        self._in.position += 1
        self._in.skip(lines=nested)
        least = self._in.integer("a number of repetitions")
        most: int | None = least
        self._in.skip(lines=nested)
        comma = self._in.take(",")
        if comma:
            self._in.skip(lines=nested)
            most = self._in.integer("a number of repetitions") if self._in.peek() in "0123456789" else None
            self._in.skip(lines=nested)
        if not self._in.take("}"):
            self._in.fail(self._in.position, "'}'" if comma else "',' or '}'", hint=_HINT_BRACES)
        if least > MAX_REPETITIONS:
            self._in.fail(start, f"at most {MAX_REPETITIONS:,} repetitions", f"{least:,}", _HINT_REPEAT)
        if most is not None and most < least:  # libllama would count n - m down from 2^64
            expected = "{m,n} with n no smaller than m"
            self._in.fail(start, expected, f"{{{least},{most}}}", "put the smaller number first")
        self._repeat(rule, start, least, None if most is None or most > MAX_REPETITIONS else most)

    def _repeat(self, rule: _Open, start: int, least: int, most: int | None) -> None:
        """Rewrite the last symbol S: S{m,n} is S m times, then n - m optional ones inside each other.

        S{m,} is S m times, then S' with S' ::= S S' | nothing.
        """
        symbol = rule.sequence[rule.last :]
        if not symbol:
            self._in.fail(start, "a symbol to repeat", hint='write "text"*, [a-z]+, name? or (a b){2}')
        n_rules = rule.n_last_rules * (most or least or 1)
        if n_rules > MAX_REPETITIONS:
            self._in.fail(start, f"at most {MAX_REPETITIONS:,} repeated rules", f"{n_rules:,}", _HINT_REPEAT)
        n_elements = rule.n_last_elements
        n_optional = 1 if most is None else most - least
        self._spend(n_elements * (least + n_optional + 1) + 3 * n_optional, start)
        if least == 0:
            del rule.sequence[rule.last :]
        else:
            rule.sequence.extend(symbol * (least - 1))
        rest: int | None = None
        for _ in range(n_optional):
            rule_id = self._new_id(start)
            follower = rule_id if most is None else rest
            self._define(rule_id, [symbol if follower is None else [*symbol, follower], []], n_elements + 3)
            rest = rule_id
        if rest is not None:
            rule.sequence.append(rest)
        rule.n_last_elements = n_elements * least + (rest is not None)
        rule.n_last_rules = n_rules

    # Names, numbers and the budget.

    def _id_of(self, name: str, position: int) -> int:
        rule_id = self._name_ids.setdefault(name, len(self._symbols))
        if rule_id == len(self._symbols):
            self._symbols.append((name, position))
        return rule_id

    def _new_id(self, position: int) -> int:
        """The number of a generated rule. libllama keeps its owner's name with each, so a long name costs too."""
        owner = self._symbols[self._open[0].rule_id][0]
        self._spend(8 + len(owner) // 8, position)
        self._symbols.append((owner, position))
        return len(self._symbols) - 1

    def _check_names(self) -> int:
        """The number of the root rule, once every name that is used is known to be defined."""
        if not self._rules:
            self._in.fail(0, "a rule named root", "an empty grammar", 'write root ::= "yes" | "no"')
        undefined = {rule_id for rule_id, rule in enumerate(self._rules) if rule is None}
        used = {item for rule in self._rules if rule for sequence in rule for item in sequence}
        undefined |= {rule_id for rule_id in used if rule_id >= len(self._rules)}
        if undefined:
            name, position = min((self._symbols[rule_id] for rule_id in undefined), key=lambda symbol: symbol[1])
            defined = [other for other, rule_id in self._name_ids.items() if rule_id not in undefined][:1000]
            near = difflib.get_close_matches(name[:100], defined, n=1)
            hint = f"did you mean {short(near[0])}?" if near else f"add a line: {short(name)} ::= …"
            self._in.fail(position, "the name of a rule that is defined", quoted(name), hint)
        root = self._name_ids.get("root", len(self._rules))
        if root >= len(self._rules):
            name, position = self._symbols[0]
            self._in.fail(position, "a rule named root", quoted(name), f"add a line: root ::= {short(name)}")
        return root

    def _nested(self) -> bool:
        return len(self._open) > 1

    def _spend(self, n_elements: int, position: int) -> None:
        self._n_elements += n_elements
        if self._n_elements > MAX_ELEMENTS:
            expected = f"at most {MAX_ELEMENTS:,} characters and rules with all repetitions written out"
            self._in.fail(position, expected, "more", _HINT_REPEAT)
