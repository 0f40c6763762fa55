from __future__ import annotations

from dataclasses import replace

from llmcli.cache_store.catalog import Catalog, Row
from llmcli.cache_store.keys import Key
from llmcli.cache_store.names import Name


def key(text: str) -> Key:
    return Key(text.encode().ljust(32, b"."))


def row(name: str, parent: str, start: int, n_tokens: int = 256, used_s: float = 100.0, nbytes: int = 10) -> Row:
    return Row(key(name), key(parent), b"F" * 32, start, n_tokens, nbytes, 1.0, used_s, 3, True, f"text of {name}")


# root -> a -> b -> c (an end) ; b -> d (an end) ; a -> e (an end) ; f (an end of its own)
ROWS = [
    row("c", "b", 512, 40, used_s=300),
    row("a", "root", 0),
    row("b", "a", 256),
    row("d", "b", 512, used_s=200),
    row("e", "a", 256, 9, used_s=400),
    row("f", "root", 0, 7, used_s=50, nbytes=5),
]


def named(name: str, at: str, *, pinned: bool = True) -> Name:
    return Name(name, key(at), key("?"), pinned, 1.0)


def test_entries_are_ends_with_what_is_theirs() -> None:
    entries = {entry.key: entry for entry in Catalog(ROWS, []).entries()}
    assert list(entries) == [key("e"), key("c"), key("d"), key("f")]
    c = entries[key("c")]
    assert (c.blocks, c.tokens, c.chain_bytes, c.private_bytes, c.hits) == (3, 552, 30, 10, 3)
    assert (c.preview, c.private_preview, c.pinned, c.names) == ("text of a", "text of c", False, ())
    assert (entries[key("f")].chain_bytes, entries[key("f")].private_bytes) == (5, 5)


def used(name: str, parent: str, start: int, hits: int, used_s: float = 100.0) -> Row:
    plain = row(name, parent, start, used_s=used_s)
    return replace(plain, hits=hits)


def test_hits_are_the_uses_of_the_chain() -> None:
    """Two texts behind one system prompt, each with its own uses, and a third that nobody asked about again."""
    rows = [
        used("system", "root", 0, 9, 900),
        used("one", "system", 256, 5, 500),
        used("one end", "one", 512, 0, 100),
        used("one more", "one", 512, 2, 300),
        used("two", "system", 256, 3, 950),
        used("three", "system", 256, 0, 50),
    ]
    entries = {entry.preview + entry.private_preview: entry for entry in Catalog(rows, []).entries()}
    found = {entry.key: (entry.hits, entry.used_s) for entry in entries.values()}
    assert found == {
        # one use ended in the system prompt, and is of all behind it
        key("one end"): (1 + 3, 500),
        key("one more"): (1 + 3 + 2, 500),
        key("two"): (1 + 3, 950),
        key("three"): (1, 50),
    }


def test_apart_is_the_text_that_others_beside_it_do_not_have() -> None:
    texts = {
        ("a", "root"): "You are a lawyer. Read: the contract",
        ("b", "root"): "You are a lawyer. Read: the letter",
        ("c", "root"): "Hello",
        ("d", "root"): "the same 48 tokens",
        ("e", "root"): "the same 48 tokens",
        ("d2", "d"): "and one end",
        ("e2", "e"): "and another",
    }
    rows = [
        replace(row(name, parent, 0 if parent == "root" else 256), preview=text)
        for (name, parent), text in texts.items()
    ]
    found = {entry.key: entry.apart for entry in Catalog(rows, []).entries()}
    assert found == {
        key("a"): "contract",
        key("b"): "letter",
        key("c"): "Hello",
        key("d2"): "and one end",
        key("e2"): "and another",
    }


def test_a_named_block_inside_a_chain_is_an_entry_and_keeps_its_blocks() -> None:
    catalog = Catalog(ROWS, [named("x", "b"), named("y", "b", pinned=False)])
    entries = {entry.key: entry for entry in catalog.entries()}
    assert (entries[key("b")].names, entries[key("b")].pinned) == (("x", "y"), True)
    assert entries[key("b")].private_bytes == 0
    assert catalog.plan_removal(key("b")).blocks == ()
    assert catalog.plan_removal(key("b")).names == ("x", "y")


def test_removing_an_entry_removes_its_private_blocks_alone() -> None:
    catalog = Catalog(ROWS, [])
    plan = catalog.plan_removal(key("c"))
    assert [block.key for block in plan.blocks] == [key("c")]
    assert (plan.nbytes, plan.kept_bytes) == (10, 45)
    alone = Catalog([entry for entry in ROWS if entry.key not in (key("d"), key("e"))], [])
    assert [block.key for block in alone.plan_removal(key("c")).blocks] == [key("c"), key("b"), key("a")]
    assert catalog.plan_removal(key("a")).blocks == ()  # the beginning of others
    assert catalog.plan_removal(key("nothing")).blocks == ()


def test_prune_takes_the_oldest_ends_until_it_fits() -> None:
    catalog = Catalog(ROWS, [])
    plan = catalog.plan_prune(unused_since_s=None, max_bytes=40, fingerprints=None)
    assert [(block.key, block.reason) for block in plan.blocks] == [
        (key("f"), "over the budget"),
        (key("d"), "over the budget"),
    ]
    assert plan.kept_bytes == 40
    everything = catalog.plan_prune(unused_since_s=None, max_bytes=0, fingerprints=None)
    assert len(everything.blocks) == 6
    order = [block.key for block in everything.blocks]
    assert all(order.index(child.key) < order.index(child.parent) for child in ROWS if child.parent in order)


def test_prune_by_age_and_by_fingerprint() -> None:
    catalog = Catalog(ROWS, [named("x", "d")])
    plan = catalog.plan_prune(unused_since_s=250, max_bytes=None, fingerprints=None)
    assert [(block.key, block.reason) for block in plan.blocks] == [(key("f"), "unused for long")]
    assert len(catalog.plan_prune(unused_since_s=None, max_bytes=None, fingerprints=frozenset()).blocks) == 0
    mine = catalog.plan_prune(unused_since_s=None, max_bytes=None, fingerprints=frozenset({b"F" * 32}))
    assert {block.key for block in mine.blocks} == {key("f"), key("c"), key("e")}  # d is pinned, and keeps b and a
    assert {block.reason for block in mine.blocks} == {"asked for"}


def test_blocks_adrift_are_no_entries_and_are_pruned_first() -> None:
    rows = [*ROWS, row("g", "gone", 256), row("h", "g", 512), row("i", "a", 999), row("loop", "loop", 256)]
    catalog = Catalog(rows, [])
    assert len(catalog.entries()) == 4
    plan = catalog.plan_prune(unused_since_s=0, max_bytes=None, fingerprints=None)
    assert {block.key for block in plan.blocks} == {key("g"), key("h"), key("i"), key("loop")}
    assert {block.reason for block in plan.blocks} == {"its beginning is gone"}
    assert catalog.entry(key("h")) is None


def test_dedupe_ratio() -> None:
    assert Catalog([], []).dedupe_ratio() == 1.0
    assert Catalog(ROWS, []).dedupe_ratio() == (30 + 30 + 20 + 5) / 55


def test_chain() -> None:
    assert [block.key for block in Catalog(ROWS, []).chain(key("d"))] == [key("a"), key("b"), key("d")]


def test_everything_of_a_fingerprint_goes_ends_first_and_names_too() -> None:
    other = Row(key("z"), key("root"), b"G" * 32, 0, 256, 7, 1.0, 1.0, 0, True, "another model's")
    catalog = Catalog([*ROWS, other], [named("x", "b"), named("z", "z")])
    plan = catalog.plan_forget(frozenset({b"F" * 32}))
    gone = [block.key for block in plan.blocks]
    assert set(gone) == {entry.key for entry in ROWS}
    assert all(gone.index(block.key) < gone.index(block.parent) for block in plan.blocks if block.parent in gone)
    assert (plan.names, plan.nbytes, plan.kept_bytes) == (("x",), 55, 7)
    assert catalog.plan_forget(frozenset()).blocks == ()
