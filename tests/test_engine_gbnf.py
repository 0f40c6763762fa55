"""The grammar check: what it says, that it agrees with libllama, and that libllama lives through what it accepts."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import UsageError
from llmcli.engine.gbnf import MAX_ELEMENTS, MAX_NESTING, MAX_REPETITIONS, check_grammar

YES_NO = 'root ::= "yes" | "no"\n'
ARITHMETIC = r"""# sums such as 1 + (x - 2)
root ::= (expr "=" ws num "\n")+
expr ::= term ([-+*/] ws term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
JSON = r"""root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value   # the first
    ("," ws string ":" ws value)*
  )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
EVERYTHING = (
    'root ::= a |\r\n  b # the next line belongs to it\r\n\r\na-1 ::= ( "x"\n # a comment\n | . )?\r'
    'a ::= [^\\x41-\\u005a\\U0001F600é-] a-1{2} "" [] | ""\nb ::= <[5]> !<|im_end|>{ 1 , } "\n"{2,3} [-a] [a-]{0}'
)
GOOD = {
    "yes or no": YES_NO,
    "arithmetic": ARITHMETIC,
    "json": JSON,
    "everything": EVERYTHING,
    "a rule that is defined twice": 'root ::= gone\nroot ::= "a"',
    "a repetition of what may be empty": 'root ::= (space "x"?)* "y"\nspace ::= [ ]*',
    "left recursion out of reach, behind a rule that may be empty": (
        'root ::= "x"\na ::= n a "y" | "z"\nn ::= m\nm ::= | "m"'
    ),
    "no text at all": "root ::= ",
    "an n above the limit is no bound": 'root ::= "a"{3,5000}',
    "as many repetitions as the limit": f'root ::= "a"{{{MAX_REPETITIONS}}} x{{0,{MAX_REPETITIONS}}}\nx ::= | "x"',
    "as deep as the limit": "root ::= " + "(" * MAX_NESTING + '"a"' + ' "b")' * MAX_NESTING,
    "4,000 rules that start with one another": (
        "root ::= r1\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(1, 3999)) + 'r3999 ::= "a"'
    ),
    "100 optional symbols": "root ::= " + '"a"? ' * 100,
    "2,000 words": "root ::= " + " | ".join(f'"word {n}"' for n in range(2_000)),
}

BAD = {
    "": (1, 1, "a rule named root, found an empty grammar"),
    "# only this\n": (1, 1, "a rule named root, found an empty grammar"),
    'a ::= "x"': (1, 1, "a rule named root, found 'a'"),
    'a ::= root{0} "x"': (1, 1, "a rule named root, found 'a'"),
    "root ::= itme\nitem ::= [a-z]": (1, 10, "the name of a rule that is defined, found 'itme'"),
    'root ::= a{0} "x"\nb ::= "y"': (1, 10, "the name of a rule that is defined, found 'a'"),
    'root := "a"': (1, 6, "'::=' after 'root', found ':'"),
    "my_rule ::= root": (1, 3, "'::=' after 'my', found '_'"),
    '= "a"': (1, 1, "the name of a rule, found '='"),
    'root ::= "a" )': (1, 14, "a symbol or the end of the line, found ')'"),
    'root ::= "a"\n  "b"': (2, 3, "the name of a rule, found '\"'"),
    'root ::= ("a" |\r\n "b"': (2, 5, "')' for the group opened at line 1, column 10, found the end of the grammar"),
    'root ::= "a': (1, 12, "'\"' for the text opened at line 1, column 10, found the end of the grammar"),
    "root ::= [a-": (1, 13, "']' for the set opened at line 1, column 10, found the end of the grammar"),
    'root ::= "\\q"': (1, 11, r"an escape, found '\q'"),
    'root ::= "é\\u12g4"': (1, 12, r"4 hex digits after the escape, found '\u12g4'"),
    "root ::= *": (1, 10, "a symbol to repeat, found '*'"),
    'root ::= ""+': (1, 12, "a symbol to repeat, found '+'"),
    "root ::= a{0}?\na ::= ": (1, 14, "a symbol to repeat, found '?'"),
    'root ::= "a"{,3}': (1, 14, "a number of repetitions, found ','"),
    'root ::= "a"{1': (1, 15, "',' or '}', found the end of the grammar"),
    'root ::= "a"{1,\n2}': (1, 16, "'}', found the end of the line"),
    'root ::= "a"{3,2}': (1, 13, "{m,n} with n no smaller than m, found {3,2}"),
    'root ::= "a"{2001}': (1, 13, "at most 2,000 repetitions, found 2,001"),
    'root ::= (("a"{0,40}) "b"){0,48}': (1, 27, "at most 2,000 repeated rules, found 2,016"),
    'root ::= "a"{0,18446744073709551616}': (1, 16, "a number of repetitions below 2^64, found '18446744073709551616'"),
    "root ::= !x": (1, 11, "'<' after '!', found 'x'"),
    "root ::= <think": (1, 16, "'>' for the token opened at line 1, column 10, found the end of the grammar"),
    "root ::= <[5>": (1, 13, "']>' after the token id, found '>'"),
    "root ::= <[4294967296]>": (1, 12, "a token id below 4,294,967,296, found '4294967296'"),
    'root ::= "a"\0"b"': (1, 13, "text, found a NUL byte"),
    'root ::= "\udc80"': (1, 11, r"UTF-8 text, found '\udc80'"),
    '\ufeffroot ::= "a"': (1, 1, r"the name of a rule, found '\ufeff'"),
    "root ::= " + "(" * (MAX_NESTING + 1): (1, 510, "at most 500 groups inside each other, found one more"),
    'root ::= "' + "a" * 1001 + '"{1000}': (1, 1013, f"at most {MAX_ELEMENTS:,} characters and rules with all"),
}

# A library that dies takes its process along: every grammar goes to libllama in a child. It walks a few tokens, each
# the first that the grammar allows from a place that moves, and answers with one letter per grammar.
_CHILD = """
import ctypes, json, sys
from llmcli.engine import native
lib = native.lib()
params = lib.llama_model_default_params()
params.vocab_only = True
model = lib.llama_model_load_from_file(sys.argv[1].encode(), params)
vocab = lib.llama_model_get_vocab(model)
n_vocab = lib.llama_vocab_n_tokens(vocab)
rows = (lib.llama_token_data * n_vocab)()
for line in sys.stdin:
    sampler = lib.llama_sampler_init_grammar(vocab, json.loads(line).encode(), b"root")
    for step in range(4 if sampler else 0):
        for token in range(n_vocab):
            rows[token] = lib.llama_token_data(token, 0.0, 0.0)
        table = lib.llama_token_data_array(rows, n_vocab, -1, False)
        lib.llama_sampler_apply(sampler, ctypes.byref(table))
        order = [(token + 61 * step) % n_vocab for token in range(n_vocab)]
        allowed = [token for token in order if rows[token].logit == 0.0 and not lib.llama_vocab_is_eog(vocab, token)]
        if not allowed:
            break
        lib.llama_sampler_accept(sampler, allowed[0])
    if sampler:
        lib.llama_sampler_free(sampler)
    print("y" if sampler else "n", end="", flush=True)
"""

_SNIPPETS = [
    *('"', "[", "]", "(", ")", "|", "*", "+", "?", "{2}", "{0,3}", "{0}", "{,2}", "{2001}", "{1,2001}", "}", ",", "{"),
    *("<[5]>", "<[", "!", "<|im_end|>", "<no>", ".", "::=", " ", "\n", "\r\n", "\r", "\t", "#", "\\", "\\n", "\\x4"),
    *("-", "^", "a", "root", "x", "1", "_", "é", '""', "[]", "[^]", '("a"?)*', "(a)", " | ", "root ::= ", "a ::= b\n"),
    *('b ::= "b"\n', "n ::= m\n", "m ::= \n", "n "),
]
# Refusals that are ours alone: libllama takes such a grammar and then crashes, stalls or can never be satisfied.
_OURS = ("n no smaller than m", "comes to itself again", "leads to text", "a token id below", "a rule named root")


def _verdicts(model: Path, grammars: Iterable[str]) -> str:
    child: subprocess.CompletedProcess[bytes] = subprocess.run(
        [sys.executable, "-c", _CHILD, model],
        input="".join(json.dumps(grammar) + "\n" for grammar in grammars).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout.decode()


def _refusal(text: str, **options: Any) -> str | None:
    try:
        check_grammar(text, source="g", **options)
    except UsageError as error:
        return error.message
    return None


def _is_ours(refusal: str | None) -> bool:
    return any(part in (refusal or "") for part in _OURS)


def _mutated(draw: random.Random) -> str:
    text = draw.choice([YES_NO, ARITHMETIC, JSON, EVERYTHING, GOOD["a repetition of what may be empty"]])
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 5))):
        at = draw.randrange(len(text) + 1)
        end = at + draw.choice((0, 0, 0, 1, 2, 8))
        text = text[:at] + draw.choice([*_SNIPPETS, "", ""]) + text[end:]
    return text or " "


def _built(draw: random.Random) -> str:
    """A grammar of correct syntax: rules that refer to each other at random."""
    names = ["root", *"abcd"[: draw.randrange(1, 4)]]

    def symbol(depth: int) -> str:
        kind = draw.random()
        text: str
        if kind < 0.4:
            text = draw.choice(names)
        elif kind < 0.75 or depth > 2:
            text = draw.choice(['"x"', "[a-c]", ".", '""', "<[5]>"])
        else:
            text = f"({alternates(depth + 1)})"
        operator: str = draw.choice("*+?") if draw.random() < 0.3 else ""
        return text + operator

    def alternates(depth: int) -> str:
        sequences = [[symbol(depth) for _ in range(draw.choice((0, 1, 1, 2, 3)))] for _ in range(draw.choice((1, 2)))]
        return " | ".join(" ".join(sequence) for sequence in sequences)

    return "".join(f"{name} ::= {alternates(0)}\n" for name in names)


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_a_good_grammar_passes(text: str) -> None:
    check_grammar(text, source="--grammar")


def test_libllama_takes_and_survives_the_good_ones(scripted_model: Callable[..., Path]) -> None:
    assert _verdicts(scripted_model(["Hello", " world"]), GOOD.values()) == "y" * len(GOOD)


@pytest.mark.parametrize("text", BAD, ids=ascii)
def test_a_bad_grammar_is_refused_with_line_and_column(text: str) -> None:
    line, column, rest = BAD[text]
    with pytest.raises(UsageError) as caught:
        check_grammar(text, source="my\x1b.gbnf")
    assert caught.value.message.startswith(rf"my\x1b.gbnf, line {line}, column {column}: expected {rest}")
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_agrees_with_libllama(seed: int, scripted_model: Callable[..., Path]) -> None:
    draw = random.Random(seed)
    grammars = [_mutated(draw) if n % 3 else _built(draw) for n in range(300)]
    refusals = [_refusal(text, is_token="<|im_end|>".__eq__, n_vocab=261) for text in grammars]
    compared = [pair for pair in zip(grammars, refusals, strict=True) if not _is_ours(pair[1])]
    verdicts = _verdicts(scripted_model(["Hello", " world"]), (text for text, _ in compared))
    expected = "".join("n" if refusal else "y" for _, refusal in compared)
    assert [pair for pair, took, want in zip(compared, verdicts, expected, strict=True) if took != want] == []
    assert 40 < verdicts.count("y") < len(compared) - 40


def test_a_token_must_be_one_of_the_model() -> None:
    options: dict[str, Any] = {"is_token": "<think>".__eq__, "n_vocab": 10}
    assert _refusal("root ::= <think> !<think>* <[9]>", **options) is None
    assert _refusal("root ::= <[10]>", **options) == ("g, line 1, column 12: expected a token id below 10, found '10'")
    assert _refusal("root ::= <thin k>", **options) == (
        "g, line 1, column 10: expected a text that is one token of this model, found '<thin k>'"
    )


def test_a_name_close_to_the_undefined_one_is_offered() -> None:
    with pytest.raises(UsageError) as caught:
        check_grammar('root ::= numbr\nnumber ::= "1"', source="g")
    assert caught.value.hint == "did you mean number?"


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "a " * 100_000 + '\na ::= "x"',
        "root ::= " + "|" * 100_000,
        "root ::= " + '("a")*' * 5_000,
        "root ::= [" + "a-b" * 160_000,
        "\n" * 490_000 + 'root ::= "',
        "x" * 600_000,
    ],
    ids=["names", "alternates", "groups", "a set", "lines", "too long"],
)
def test_dense_texts_are_answered_in_time(text: str) -> None:
    start = time.monotonic()
    _refusal(text)
    assert time.monotonic() - start < 5
