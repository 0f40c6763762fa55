"""Saving a block: idempotent, within the budget, in one step, and never an exception for what the disk does.

Order: room is made, the file is written under a temp name and fsynced; then, inside one index transaction, its
parent is looked for, it gets its name, and its row. The transaction shuts eviction out, so no block is left behind a
parent that goes at the same moment. The folder is fsynced once per folder by `upkeep.flush`, not per block: a block
is complete on its own, and one that a power cut takes is a miss.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmcli.base.records import dataclass
from llmcli.cache_store.block_file import read_header, read_part, remove, write_temp
from llmcli.cache_store.block_format import BlockHeader, DamagedError, NewBlock, pack_header
from llmcli.cache_store.context import OFF, WRITABLE, Context, make_folder
from llmcli.cache_store.keys import NO_KEY, Fingerprint, Namespace, pack_tokens
from llmcli.cache_store.match import BlockRef
from llmcli.cache_store.policy import free_bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a block: where it is, what was written for it, or why it was not kept.

    refused   "off", "readonly", "over the budget", "the disk is nearly full", "its beginning is gone", "cannot write"
    """

    ref: BlockRef | None
    written_bytes: int = 0
    refused: str | None = None


def save_block(
    context: Context,
    fingerprint: Fingerprint,
    parent: BlockRef | None,
    tokens: Sequence[int],
    parts: Mapping[str, memoryview],
    *,
    preview: str,
    exact: bool,
) -> Stored:
    """Keep a block behind `parent` (None: at position 0). Raises ValueError for what the format cannot hold."""
    if context.mode != WRITABLE:
        return Stored(None, refused="off" if context.mode == OFF else "readonly")
    block = _new_block(context, fingerprint, parent, tokens, parts, preview=preview, exact=exact)
    path = Path(context.layout.block(block.parent, block.key))
    try:
        known = _known(path, block)
        if known is not None and set(parts) <= set(known.parts):
            return _adopt(context, known, path)
        if known is not None:  # the same tokens with a part that was missing: both kinds together in a new file
            block = _with_parts_of(block, known, path)
        return _write(context, fingerprint, parent, block, path)
    except DamagedError as error:
        return Stored(None, refused=error.message)
    except OSError as error:
        context.stop_writing(error)
        return Stored(None, refused="cannot write")


def _new_block(
    context: Context,
    fingerprint: Fingerprint,
    parent: BlockRef | None,
    tokens: Sequence[int],
    parts: Mapping[str, memoryview],
    *,
    preview: str,
    exact: bool,
) -> NewBlock:
    namespace = Namespace.of(fingerprint, context.salt)
    exact = exact and (parent is None or parent.exact)  # what follows decoded tokens is not what a cold run computes
    packed = pack_tokens(tokens)
    parent_key = parent.key if parent else namespace.root
    return NewBlock(
        namespace, namespace.key(parent_key, packed, exact=exact), parent_key, parent.parent if parent else NO_KEY,
        parent.end_tokens if parent else 0, packed, exact, preview, time.time(), dict(parts),
    )  # fmt: skip


def _with_parts_of(block: NewBlock, known: BlockHeader, path: Path) -> NewBlock:
    """The new block with the parts that only the stored one has; unchanged where those are damaged."""
    try:
        more = {name: read_part(path, block.key, name) for name in known.parts if name not in block.parts}
    except (FileNotFoundError, DamagedError):
        return block
    return replace(block, parts={**more, **block.parts})


def _known(path: Path, block: NewBlock) -> BlockHeader | None:
    """The header of the block if it is stored already; a file that is not this block is as good as none.

    Its bytes are checked, too: this run computed them, perhaps because something was damaged, and can write them again.
    """
    try:
        header, _ = read_header(path)
        sizes = {name: read_part(path, block.key, name).nbytes for name in header.parts if name in block.parts}
    except (FileNotFoundError, DamagedError):
        return None
    same = (header.key, header.tokens) == (block.key, block.tokens)
    return header if same and all(sizes[name] == block.parts[name].nbytes for name in sizes) else None


def _adopt(context: Context, header: BlockHeader, path: Path) -> Stored:
    """Another run stored it: mark it used, and see that the index knows it."""
    from llmcli.cache_store.index_schema import insert_block

    with contextlib.suppress(OSError):
        os.utime(path)
    with context.index.writing() as connection:
        if connection is not None and path.exists():
            insert_block(connection, header, time.time())
    return Stored(BlockRef.of(header, str(path)))


def _write(context: Context, fingerprint: Fingerprint, parent: BlockRef | None, block: NewBlock, path: Path) -> Stored:
    head = pack_header(block)
    nbytes = len(head) + sum(part.nbytes for part in block.parts.values())
    if refused := _make_room(context, nbytes, parent):
        return Stored(None, refused=refused)
    context.fingerprints.remember(fingerprint)
    make_folder(path.parent)
    if path.parent.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "a block folder is a link", str(path.parent))
    temp = context.writer.temp_path(path.parent)
    write_temp(temp, [memoryview(head), *block.parts.values()])
    try:
        placed = _place(context, parent, path, temp)
    finally:
        remove(temp)  # gone already where it got its name
    if placed is None:
        return Stored(None, refused="its beginning is gone")
    context.dirty_folders.add(path.parent)
    context.pending.count("written_bytes", nbytes)
    return Stored(BlockRef.of(placed, str(path)), nbytes)


def _make_room(context: Context, nbytes: int, parent: BlockRef | None) -> str | None:
    """Evict until `nbytes` fit; says why where they cannot."""
    from llmcli.cache_store.evict import make_room, stored_bytes

    free = free_bytes(context.layout.base)
    over = 0
    with context.index.reading() as connection:
        if connection is not None:
            stored = stored_bytes(connection) + overhead_bytes(context)
            over = context.policy.over_bytes(free, stored, nbytes)
    if not over:
        return None
    freed = 0
    with context.index.writing() as connection:
        if connection is not None:
            kept = context.names.pinned() | ({parent.key} if parent else set())
            freed = make_room(connection, context.layout, over, frozenset(kept))
    if freed >= over:
        return None
    short_of_disk = context.policy.min_free_bytes + nbytes > free + freed
    reason = "the disk is nearly full" if short_of_disk else "over the budget"
    context.warn(f"the prefix store kept less than it could: {reason}", once_as="trouble")
    return reason


def overhead_bytes(context: Context) -> int:
    """What counts towards the budget besides blocks: the index, and folders of other format versions."""
    if context.other_bytes is None:
        context.other_bytes = sum(_tree_bytes(folder) for folder in context.layout.other_formats())
    files = (Path(f"{context.layout.index}{suffix}") for suffix in ("", "-wal"))
    return context.other_bytes + sum(file.stat().st_size for file in files if file.exists())


def _tree_bytes(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, file)).st_size
    return total


def _place(context: Context, parent: BlockRef | None, path: Path, temp: Path) -> BlockHeader | None:
    """Give the file its name and its row; None where its parent is gone."""
    from llmcli.cache_store import gone
    from llmcli.cache_store.index_schema import delete_block, insert_block

    header, _ = read_header(temp)
    with context.index.writing() as connection:
        if parent is not None:
            try:
                os.utime(parent.path)
            except FileNotFoundError:
                return None
        os.replace(temp, path)
        if connection is not None:
            delete_block(connection, header.key, None, time.time())
            insert_block(connection, header, time.time())
            gone.forget(
                connection, Namespace(header.fingerprint, header.salt), header.parent, header.start_tokens,
                header.tokens, exact=header.exact,
            )  # fmt: skip
    return header
