"""Finding the longest stored run of a prompt, from the files alone.

Walk: the key of the next 256 tokens is computed and its file opened, until there is none. Then the children of the
last block (shorter blocks, and full ones that differ somewhere) are compared token by token. A child that matches
whole is walked on from, so conversations that were stored turn by turn are followed to their end. At last the tails
beside the blocks that were walked past are tried, where a longer run may hang on one. The stored token ids are
compared everywhere; a key alone proves nothing.

Blocks that this look-up may not use (the end of a named prefix, an answer) are followed too, a little way: they are
stored, and what the prompt shares with them decides which stored prompt is the nearest, and what it is a use of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import NamedTuple

from llmcli.base.records import dataclass
from llmcli.base.text import printable
from llmcli.cache_store.block_file import read_header
from llmcli.cache_store.block_format import BlockHeader, DamagedError
from llmcli.cache_store.keys import (
    BLOCK_TOKENS,
    GRID_TOKENS,
    NO_KEY,
    TOKEN_BYTES,
    Key,
    Namespace,
    common_tokens,
    unpack_tokens,
)
from llmcli.cache_store.layout import Layout
from llmcli.cache_store.parting import Difference, Parting

MAX_SEEN_NAMES = 2_000  # about 1 ms of directory reading; beyond it the index is asked
MAX_FOUND_CHILDREN = 32
_MAX_EXPANSIONS = 512
_MAX_UNUSABLE = 32  # blocks followed that cannot be restored: for the account alone


@dataclass(frozen=True, slots=True)
class BlockRef:
    """A stored block as far as a caller needs it: what it covers, its parts, and where it is.

    start_tokens   position of its first token
    exact          computed by prefill on the grid; False for tokens that were decoded one by one, and all behind them
    part_bytes     part name -> size
    """

    key: Key
    parent: Key
    grandparent: Key
    start_tokens: int
    tokens: bytes = field(repr=False)
    exact: bool
    part_bytes: dict[str, int]
    file_bytes: int
    preview: str
    created_s: float
    path: str

    @property
    def n_tokens(self) -> int:
        """Tokens in this block."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def end_tokens(self) -> int:
        """The position behind its last token."""
        return self.start_tokens + self.n_tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its token ids."""
        return unpack_tokens(self.tokens)

    @classmethod
    def of(cls, header: BlockHeader, path: str) -> BlockRef:
        """The block with this header at this path."""
        return cls(
            header.key, header.parent, header.grandparent, header.start_tokens, header.tokens, header.exact,
            {name: entry.nbytes for name, entry in header.parts.items()}, header.file_bytes, header.preview,
            header.created_s, path,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """The longest run: whole blocks in order, then `partial_tokens` tokens of `partial`.

    passed   whole blocks that the prompt goes through and that this look-up may not use
    """

    blocks: tuple[BlockRef, ...]
    partial: BlockRef | None = None
    partial_tokens: int = 0
    difference: Difference | None = None
    passed: tuple[BlockRef, ...] = ()

    @property
    def tokens(self) -> int:
        """How many tokens of the prompt that is."""
        return (self.blocks[-1].end_tokens if self.blocks else 0) + self.partial_tokens


class _Node(NamedTuple):
    """A whole block on the way, and the one before it. A named tuple: hundreds are made per look-up.

    key, parent   of the block; the root key and NO_KEY where there is no block yet
    """

    ref: BlockRef | None
    before: _Node | None
    key: Key
    parent: Key
    end_tokens: int

    def then(self, ref: BlockRef) -> _Node:
        return _Node(ref, self, ref.key, ref.parent, ref.end_tokens)


@dataclass(slots=True)
class Walk:
    """One look-up.

    prompt        packed tokens
    exact_only    pass over blocks whose bytes a cold prefill would not give
    ending_part   only chains whose last block has this part count (recurrent models); nothing is cut then
    expired       whether a block last used at this time is too old
    on_damage     told of every file that is not what its name says
    neighbours    children of a block that are nearest to the tokens that follow, by the index; None without one
    expired_tokens   how much of the prompt blocks that are too old would have given, that of one behind the other
                     left out
    """

    layout: Layout
    namespace: Namespace
    prompt: bytes
    exact_only: bool
    ending_part: str | None
    expired: Callable[[float], bool]
    on_damage: Callable[[str, Key, DamagedError], None]
    neighbours: Callable[[Key, bytes], list[Key] | None]
    expired_tokens: int = 0
    _best: _Node | None = None
    _partial: BlockRef | None = None
    _partial_tokens: int = 0
    _expansions: int = 0
    _expanded: set[Key] = field(default_factory=set)
    _unusable: list[_Node] = field(default_factory=list)
    _walked: list[_Node] = field(default_factory=list)  # walked past; their children were not looked at
    _parting: Parting = field(init=False)

    def __post_init__(self) -> None:
        self._parting = Parting(self.prompt)

    @property
    def reached_tokens(self) -> int:
        """The longest beginning of the prompt that is stored, whether it may be used or not."""
        return self._parting.reached_tokens

    def find(self) -> Found:
        """The longest run that is stored and usable."""
        deepest = self._walk_full(_Node(None, None, self.namespace.root, NO_KEY, 0))
        self._explore(deepest)
        above = deepest
        while self.ending_part and not self._found_enough(above) and above.before and self._may_expand():
            above = above.before
            self._explore(above)
        self._look_aside()
        blocks, passed = _refs(self._best), self._pass_unusable()
        return Found(blocks, self._partial, self._partial_tokens, self._parting.difference(), passed)

    def _found_enough(self, node: _Node) -> bool:
        return self._best is not None and self._best.end_tokens >= node.end_tokens

    def _may_expand(self) -> bool:
        return self._expansions < _MAX_EXPANSIONS

    def _explore(self, start: _Node) -> None:
        """Look at everything that continues `start` with tokens of the prompt; the longest branch first."""
        stack = [start]
        while stack and self._may_expand():
            node = stack.pop()
            self._expansions += 1
            self._expanded.add(node.key)
            self._consider(node)
            whole = []
            for child, shared in self._children(node):
                if shared < child.n_tokens:
                    self._consider_cut(node, child, shared)
                elif not self._may_use(child):
                    self._unusable.append(node.then(child))
                elif child.key not in self._expanded:
                    whole.append(child)
            stack += [self._walk_full(node.then(child)) for child in sorted(whole, key=lambda ref: ref.n_tokens)]

    def _look_aside(self) -> None:
        """See what is stored behind tails of the blocks that were walked past, as long as a restore could end later.

        A stretch of tokens can be stored twice, in a full block and in a tail with more behind it: by two processes
        that begin at the same time, or by an import. Only tails that end on the grid are looked for: by their keys,
        since listing the children of every block on the way would cost more than it ever wins.
        """
        while self._walked and not self.ending_part and self._could_end_later() and self._may_expand():
            node = self._walked.pop()
            for tail in self._tails_on_grid(node):
                if tail.key not in self._expanded:
                    self._explore(self._walk_full(node.then(tail)))

    def _tails_on_grid(self, node: _Node) -> Iterator[BlockRef]:
        """Blocks behind `node` of less than 256 tokens of the prompt that end on the grid."""
        start, is_exact = node.end_tokens, node.ref is None or node.ref.exact
        for end in range(start - start % GRID_TOKENS + GRID_TOKENS, start + BLOCK_TOKENS, GRID_TOKENS):
            tokens = self.prompt[start * TOKEN_BYTES : end * TOKEN_BYTES]
            if len(tokens) == (end - start) * TOKEN_BYTES:
                tail = self._open(node, self.namespace.key(node.key, tokens, exact=is_exact), tokens)
                if tail is not None:
                    yield tail

    def _could_end_later(self) -> bool:
        end = (self._best.end_tokens if self._best else 0) + self._partial_tokens
        return end // GRID_TOKENS < len(self.prompt) // TOKEN_BYTES // GRID_TOKENS

    def _pass_unusable(self) -> tuple[BlockRef, ...]:
        """Follow what may not be used as far as the prompt goes with it; the blocks of the longest such run."""
        deepest, left = None, _MAX_UNUSABLE
        while self._unusable and left:
            node, left = self._walk_full(self._unusable.pop()), left - 1
            self._parting.went_to(node.end_tokens)
            if deepest is None or node.end_tokens > deepest.end_tokens:
                deepest = node
            for child, shared in self._children(node):
                if shared < child.n_tokens:
                    self._parting.left(node.end_tokens, child.tokens, shared)
                else:
                    self._unusable.append(node.then(child))
        return tuple(ref for ref in _refs(deepest) if not self._may_use(ref))

    def _may_use(self, ref: BlockRef) -> bool:
        return ref.exact or not self.exact_only

    def _walk_full(self, node: _Node) -> _Node:
        """Follow full blocks by computed key as far as they go."""
        step = BLOCK_TOKENS * TOKEN_BYTES
        while True:
            start = node.end_tokens * TOKEN_BYTES
            tokens = self.prompt[start : start + step]
            if len(tokens) < step or (found := self._full_block(node, tokens)) is None:
                return node
            self._walked.append(node)
            node = node.then(found)
            if self.ending_part and self.ending_part in found.part_bytes:
                self._consider(node)

    def _full_block(self, node: _Node, tokens: bytes) -> BlockRef | None:
        after_exact = node.ref is None or node.ref.exact
        for exact in (True, False):
            if (exact and not after_exact) or (self.exact_only and after_exact and not exact):
                continue
            ref = self._open(node, self.namespace.key(node.key, tokens, exact=exact), tokens)
            if ref is not None and ref.exact == exact:
                return ref
        return None

    def _children(self, node: _Node) -> Iterator[tuple[BlockRef, int]]:
        """Stored continuations of `node` with the tokens they share with the prompt, usable or not; some share none."""
        parent, start = node.key, node.end_tokens * TOKEN_BYTES
        rest = self.prompt[start : start + BLOCK_TOKENS * TOKEN_BYTES]
        if not rest:
            return
        keys, complete = self.layout.children(parent, max_seen=MAX_SEEN_NAMES, max_found=MAX_FOUND_CHILDREN)
        if not complete and (nearest := self.neighbours(parent, rest)) is not None:
            keys = nearest
        for key in keys:
            ref = self._open(node, key)
            if ref is not None:
                yield ref, common_tokens(ref.tokens, rest)

    def _open(self, node: _Node, key: Key, tokens: bytes | None = None) -> BlockRef | None:
        """The block `key` behind `node`; None where there is none, or one that is too old.

        tokens   what the block must hold, where `key` was computed from it; else the key is computed from the block
        """
        path = self.layout.block(node.key, key)
        try:
            header, facts = read_header(path)
            self._require(header, node, key, tokens, path)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self.on_damage(path, key, error)
            return None
        if self.expired(facts.st_mtime):
            shared = common_tokens(header.tokens, self.prompt[node.end_tokens * TOKEN_BYTES :])
            self.expired_tokens = max(self.expired_tokens, node.end_tokens + shared)
            return None
        return BlockRef.of(header, path)

    def _require(self, header: BlockHeader, node: _Node, key: Key, tokens: bytes | None, path: str) -> None:
        """Raises DamagedError unless the block belongs exactly here."""
        ok = header.key == key and header.parent == node.key and header.grandparent == node.parent
        ok = ok and header.start_tokens == node.end_tokens and header.fingerprint == self.namespace.fingerprint
        ok = ok and header.salt == self.namespace.salt
        if not ok or not (header.key_is_its_own() if tokens is None else header.tokens == tokens):
            raise DamagedError(f"{printable(path)}: holds another block")

    def _consider(self, node: _Node) -> None:
        self._parting.went_to(node.end_tokens)
        if node.ref is not None and not self._may_use(node.ref):
            return
        if self.ending_part and (node.ref is None or self.ending_part not in node.ref.part_bytes):
            return
        best_end = (self._best.end_tokens if self._best else 0) + self._partial_tokens
        if node.end_tokens > best_end or (node.end_tokens == best_end and self._partial):  # rather whole than cut
            self._best, self._partial, self._partial_tokens = node, None, 0

    def _consider_cut(self, node: _Node, child: BlockRef, shared: int) -> None:
        self._parting.left(node.end_tokens, child.tokens, shared)
        end = node.end_tokens + shared
        if not shared or self.ending_part or not self._may_use(child):
            return
        if end > (self._best.end_tokens if self._best else 0) + self._partial_tokens:
            self._best, self._partial, self._partial_tokens = node, child, shared


def _refs(node: _Node | None) -> tuple[BlockRef, ...]:
    """The blocks up to `node`, first block first."""
    found: list[BlockRef] = []
    while node is not None:
        if node.ref:
            found.append(node.ref)
        node = node.before
    return tuple(reversed(found))
