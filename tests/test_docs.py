"""The documentation is complete: each command has help with an example and a page that names each of its flags."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import click
import pytest

from llmcli.base import errors
from llmcli.base.settings import OWN_VARIABLES
from llmcli.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def load(name: str) -> click.Command:
    module, attribute, _ = COMMANDS[name]
    found = getattr(import_module(f"llmcli.cli.{module}"), attribute)
    assert isinstance(found, click.Command)
    return found


def every_command() -> list[tuple[str, ...]]:
    """All commands and the subcommands of groups, by their words."""

    def below(words: tuple[str, ...], command: click.Command) -> list[tuple[str, ...]]:
        found = [words]
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                child = command.get_command(click.Context(command), name)
                assert child is not None
                found += below((*words, name), child)
        return found

    return [words for name in COMMANDS for words in below((name,), load(name))]


def find(words: tuple[str, ...]) -> click.Command:
    command = load(words[0])
    for word in words[1:]:
        assert isinstance(command, click.Group)
        child = command.get_command(click.Context(command), word)
        assert child is not None
        command = child
    return command


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_help_has_a_summary_and_an_example(words: tuple[str, ...]) -> None:
    command = find(words)
    text = command.get_help(
        click.Context(command, info_name="llmcli " + " ".join(words), help_option_names=["-h", "--help"])
    )
    assert command.get_short_help_str()
    example = re.search(r"^\s*Examples?:\s*\n\s+\S.*", text, re.MULTILINE)
    assert example, "no `Example:` section"
    assert f"llmcli {' '.join(words)}" in text[example.start() :]


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_option_has_help(words: tuple[str, ...]) -> None:
    assert [p.opts for p in find(words).params if isinstance(p, click.Option) and not p.hidden and not p.help] == []


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_page_names_every_flag_and_has_an_example(words: tuple[str, ...]) -> None:
    text = (DOCS / "commands" / f"{words[0]}.md").read_text(encoding="utf-8")
    missing = []
    for param in find(words).params:
        if isinstance(param, click.Option) and not param.hidden:
            # A whole flag: `-c` must not be found inside `-ctk`.
            flags = [*param.opts, *param.secondary_opts]
            missing += [flag for flag in flags if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text)]
    assert missing == []
    assert f"llmcli {' '.join(words)}" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_page_lists_its_exit_codes(name: str) -> None:
    text = (DOCS / "commands" / f"{name}.md").read_text(encoding="utf-8")
    section = text.partition("\n## Exit status\n")[2].partition("\n## ")[0]
    codes = {int(code) for code in re.findall(r"(?<![\w-])(\d+) ", section)}
    assert {0, 2} <= codes <= exit_codes()
    assert "(../exit-codes.md)" in section


@pytest.mark.parametrize("name", COMMANDS)
def test_page_is_in_the_index(name: str) -> None:
    assert f"(commands/{name}.md)" in (DOCS / "README.md").read_text(encoding="utf-8")


def test_no_page_for_a_command_that_is_not_there() -> None:
    assert {p.stem for p in (DOCS / "commands").glob("*.md")} == set(COMMANDS)


def exit_codes() -> set[int]:
    """Success, a reader that went away, and the codes of the error classes."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.LlmcliError)]
    return {0, 141, *(c.exit_code for c in classes)}


def test_exit_codes_are_listed() -> None:
    rows = re.findall(r"^\| (\d+)[ ,|]", (DOCS / "exit-codes.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(row) for row in rows} == exit_codes()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [t for t in LINK.findall(text) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda p: str(p.relative_to(DOCS)))
def test_every_page_is_reachable_from_the_index(page: Path) -> None:
    seen, queue = set[Path](), [DOCS / "README.md"]
    while queue:
        current = queue.pop()
        seen.add(current)
        links = (t for t in LINK.findall(current.read_text(encoding="utf-8")) if "://" not in t)
        targets = {(current.parent / link).resolve() for link in links}
        queue += [t for t in targets if t.suffix == ".md" and t.is_file() and t not in seen]
    assert page in seen


@pytest.mark.parametrize("name", sorted(OWN_VARIABLES))
def test_every_variable_is_documented(name: str) -> None:
    assert any(name in page.read_text() for page in DOCS.rglob("*.md"))


def test_what_a_shell_would_take_for_a_pattern_is_quoted() -> None:
    """zsh refuses a word with brackets that fits no file."""
    texts = [*PAGES, *(ROOT / "cli").glob("*.py")]
    bare = [
        line.strip() for text in texts for line in text.read_text().splitlines() if re.search(r"jq [^'\s]*[\[*?]", line)
    ]
    assert bare == []
