"""The chain that ends with a stored block, found from that end."""

from __future__ import annotations

from llmcli.cache_store.block_file import read_header
from llmcli.cache_store.block_format import DamagedError
from llmcli.cache_store.keys import Key
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.match import BlockRef


def climb(layout: Layout, key: Key, parent: Key) -> list[BlockRef] | None:
    """The chain that ends with the block `key` behind `parent`, first block first; None where it is not whole.

    Needs no index: a header names its grandparent, which with the parent's key makes the parent's path.
    """
    chain: list[BlockRef] = []
    while True:
        path = layout.block(parent, key)
        try:
            header, _ = read_header(path)
        except (FileNotFoundError, DamagedError):
            return None
        follows = not chain or (chain[-1].start_tokens, chain[-1].grandparent) == (
            header.start_tokens + header.n_tokens,
            header.parent,
        )
        if not follows or (header.key, header.parent) != (key, parent) or not header.key_is_its_own():
            return None
        chain.append(BlockRef.of(header, path))
        if header.start_tokens == 0:
            return chain[::-1]
        key, parent = header.parent, header.grandparent
