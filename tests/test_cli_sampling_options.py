"""Where a grammar comes from, and what is said of one that is none. The flags themselves: test_cli_options.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.ask import Ask, Asked


@pytest.fixture
def ask(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(llmcli_home.parent / "home")
    return Ask(monkeypatch, capfd)


def refused(asked: Asked) -> str:
    assert (asked.code, asked.out) == (2, "")
    return asked.err


def test_a_grammar_that_does_not_parse_names_its_source(ask: Ask) -> None:
    Path("bad.gbnf").write_text('root ::= "x')
    assert "error: bad.gbnf, line 1, " in refused(ask("--grammar-file", "bad.gbnf", "hi"))
    assert "error: --grammar, line 1, " in refused(ask("--grammar", 'root ::= "x', "hi"))


def test_a_grammar_file_that_is_none(ask: Ask) -> None:
    Path("latin1.gbnf").write_bytes(b'root ::= "\xe9"')
    assert refused(ask("--grammar-file", "latin1.gbnf", "hi")) == "error: latin1.gbnf is not UTF-8 at byte 10\n"
    Path("big.gbnf").write_bytes(b" " * ((1 << 20) + 1))
    assert "big.gbnf is larger than 1 MiB" in refused(ask("--grammar-file", "big.gbnf", "hi"))
    assert "cannot read none.gbnf: No such file or directory" in refused(ask("--grammar-file", "none.gbnf", "hi"))
