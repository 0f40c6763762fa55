"""Tables and plans of `llmcli cache` in words."""

from __future__ import annotations

import re

import pytest

from llmcli.cache_store.catalog import ASKED, Doomed, Entry, RemovalPlan
from llmcli.cache_store.keys import Key
from llmcli.cli.cache_view import entry_lines, plan_lines

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n<|im_start|>user\n"


def entry(apart: str, *, names: tuple[str, ...] = (), preview: str = "", pinned: bool = True) -> Entry:
    return Entry(
        Key(b"k" * 32), Key(b"p" * 32), b"F" * 32, 3, 123_456, 7_900_000_000, 6_900_000_000, 0.0, 0.0, 12_345,
        pinned and bool(names), names, preview or SYSTEM + apart, apart, apart,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [60, 72, 80, 100, 120, None])
def test_numbers_and_names_are_whole_at_every_width(columns: int | None) -> None:
    lines = entry_lines([entry("The contract says " * 20, names=("contract",)), entry("A letter")], columns)
    assert columns is None or max(map(len, lines)) <= columns
    assert all("6b6b6b6b6b6b  123,456  " in line for line in lines[1:])
    assert all(re.search(r"  12,345  ", line) for line in lines[1:])
    assert "  contract  … The contract " in lines[1]
    assert re.search(r"  12,345 +… A letter$", lines[2])
    assert lines[0].split()[-2:] == ["NAME", "TEXT"]


def test_what_goes_first_where_the_room_is_small() -> None:
    entries = [entry("The contract says " * 20, names=("contract",))]
    heads = {columns: entry_lines(entries, columns)[0].split() for columns in (130, 100, 80, 60)}
    assert heads[130] == ["KEY", "TOKENS", "BYTES", "OWN", "AGE", "USED", "HITS", "NAME", "TEXT"]
    assert heads[100] == ["KEY", "TOKENS", "BYTES", "OWN", "USED", "HITS", "NAME", "TEXT"]
    assert heads[80] == ["KEY", "TOKENS", "OWN", "HITS", "NAME", "TEXT"]
    assert heads[60] == ["KEY", "TOKENS", "HITS", "NAME", "TEXT"]


def test_no_name_no_column() -> None:
    assert "NAME" not in entry_lines([entry("x")], 80)[0]
    (_, line) = entry_lines([entry("x", names=("a", "b"), pinned=False)], 200)
    assert line.endswith("  a, b (not pinned)  … x")
    (_, line) = entry_lines([entry("x" * 100, names=("n" * 100,))], 80)
    assert re.search(r"  12,345  n+…n+  … x+…$", line)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (SYSTEM + "Hi\n\nthere", "You are a helpful AI assistant. Hi there"),
        ("<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "Hi"),
        ("<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]", "Be brief. Hi"),
        ("<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "Hi"),
        ("<｜begin▁of▁sentence｜>Hi", "Hi"),
        ("if a < b | c > d: users", "if a < b | c > d: users"),
        ("<|im_start|>userland", "userland"),
        ("\x1b[31mHi", r"\x1b[31mHi"),
        ("<|im_end|>", ""),
    ],
)
def test_text_without_markup(text: str, shown: str) -> None:
    (_, line) = entry_lines([entry(text, preview=text)], None)
    assert line.partition("  12,345")[2].strip() == shown


def test_a_plan_speaks_of_what_would_be() -> None:
    blocks = tuple(
        Doomed(Key(bytes([n]) * 32), Key(b"p" * 32), 1024, why) for n, why in enumerate((ASKED, "old", "old"))
    )
    assert plan_lines(RemovalPlan(blocks, ("x\n",), 2048)) == [
        "  to remove: 1 block, 1.0 KiB",
        "  to remove: 2 blocks, 2.0 KiB (old)",
        "  to remove: the name x\\n",
        "  3.0 KiB would be freed, 2.0 KiB would stay",
    ]
