"""Looking after the whole store: verify and repair, carry out removals, clear."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from llmcli.cache_store.block_file import read_header, read_part, remove
from llmcli.cache_store.block_format import BlockHeader, DamagedError
from llmcli.cache_store.catalog import RemovalPlan
from llmcli.cache_store.chain import climb
from llmcli.cache_store.context import WRITABLE, Context
from llmcli.cache_store.evict import REMOVED, delete_leaves
from llmcli.cache_store.keys import Key
from llmcli.cache_store.layout import TEMP_PREFIX, BlockName, parse_block_name
from llmcli.cache_store.upkeep import reconcile
from llmcli.cache_store.writers import stray_temps

_AT_ONCE = 128  # blocks per transaction: others may write in between


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that is not as it should be, and whether it was removed."""

    path: Path
    what: str
    removed: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of going through every byte.

    index_added, index_dropped   rows that the index lacked, and rows of blocks that are no longer there
    """

    blocks: int
    nbytes: int
    problems: tuple[Problem, ...]
    index_added: int
    index_dropped: int


def verify(context: Context, *, repair: bool, on_bytes: Callable[[int], None] | None = None) -> Verified:
    """Check every block's name, header, key, parts and parent. Safe while others write.

    repair removes damaged blocks, blocks whose beginning is gone, and temp files of ended processes, and brings the
    index in line. Files that are not ours are reported and left. `on_bytes` is told the bytes read so far.

    What seems wrong is looked at again with the others shut out: between two looks at a folder they remove chains and
    save them again.
    """
    repair = repair and context.mode == WRITABLE
    problems: list[Problem] = []
    blocks = nbytes = 0
    for path, name in _files(context):
        problem, size = _check(context, path, name, repair=repair)
        if problem is not None:
            problems.append(problem)
        elif size:
            blocks, nbytes = blocks + 1, nbytes + size
            if on_bytes:
                on_bytes(nbytes)
    problems += _adrift(context, repair=repair)
    for temp in stray_temps(context.layout):
        problems.append(Problem(temp, "left by a process that was ended", removed=repair and remove(temp)))
    added, dropped = reconcile(context) if repair else (0, 0)
    return Verified(blocks, nbytes, tuple(problems), added, dropped)


@contextlib.contextmanager
def _alone(context: Context) -> Iterator[None]:
    """No other process saves or removes in here; where this one may not write that cannot be had."""
    if context.mode != WRITABLE:
        yield
        return
    with context.index.writing():
        yield


def _check(context: Context, path: Path, name: BlockName | None, *, repair: bool) -> tuple[Problem | None, int]:
    """What is wrong with a file, and else its size; 0 where it is gone by now."""
    what, size = _trouble(context, path, name)
    if what is None:
        return None, size
    with _alone(context):
        what, size = _trouble(context, path, name)
        if what is None:
            return None, size
        removable = name is not None and not what.startswith("cannot be read")
        return Problem(path, what, removed=repair and removable and remove(path)), 0


def _files(context: Context) -> list[tuple[Path, BlockName | None]]:
    """Everything in the block folders but temp files."""
    found: list[tuple[Path, BlockName | None]] = []
    for shard in context.layout.shards():
        if not shard.is_dir(follow_symlinks=False):
            found.append((Path(shard.path), None))
            continue
        names = sorted(name for name in os.listdir(shard.path) if not name.startswith(TEMP_PREFIX))
        found += [(Path(shard.path) / name, parse_block_name(name)) for name in names]
    return found


def _trouble(context: Context, path: Path, name: BlockName | None) -> tuple[str | None, int]:
    """What is wrong with a file (None: nothing, or it is gone by now), and its size."""
    if name is None:
        return "not a block file", 0
    if str(path) != context.layout.block(name.parent, name.key):
        return "in the wrong folder", 0
    try:
        header, facts = read_header(path)
        if (header.parent, header.key) != (name.parent, name.key) or not header.key_is_its_own():
            return "holds another block", 0
        for part in header.parts:
            read_part(path, header.key, part)
    except FileNotFoundError:
        return None, 0
    except DamagedError as error:
        words = error.message.rpartition(": ")[2]
        return (words if error.removable or _is_other(path) else f"cannot be read: {words}"), 0
    return None, facts.st_size


def _is_other(path: Path) -> bool:
    """Whether a file is readable and regular, so that it is its format that is not ours."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and os.access(path, os.R_OK)
    except OSError:
        return False


def _adrift(context: Context, *, repair: bool) -> list[Problem]:
    """Blocks that no chain from position 0 leads to, in the order of their positions."""
    suspects: list[BlockHeader] = []
    reached: dict[Key, int] = {}
    for header in sorted((header for header, _ in context.headers()), key=lambda header: header.start_tokens):
        if header.start_tokens == 0 or reached.get(header.parent) == header.start_tokens:
            reached[header.key] = header.start_tokens + header.n_tokens
        else:
            suspects.append(header)
    problems: list[Problem] = []
    for some in _in_batches(suspects, _AT_ONCE):
        with _alone(context):
            problems += [problem for header in some if (problem := _surely_adrift(context, header, repair=repair))]
    return problems


def _surely_adrift(context: Context, header: BlockHeader, *, repair: bool) -> Problem | None:
    path = Path(context.layout.block(header.parent, header.key))
    if climb(context.layout, header.key, header.parent) is not None or not path.exists():
        return None
    return Problem(path, "its beginning is gone", removed=repair and remove(path))


_Item = TypeVar("_Item")


def _in_batches(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """`items` in order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def carry_out(context: Context, plan: RemovalPlan) -> tuple[int, int]:
    """Remove what a plan says, as far as it is still true: (blocks, bytes) that went.

    Blocks that were pinned or continued since the plan was made stay.
    """
    blocks = nbytes = 0
    if context.mode != WRITABLE:
        return 0, 0
    for name in plan.names:
        context.names.remove(name)
    kept = context.names.pinned()
    doomed = [(block.key, block.parent) for block in plan.blocks]
    for some in _in_batches(doomed, _AT_ONCE):
        with context.index.writing() as connection:
            if connection is not None:
                went = delete_leaves(connection, context.layout, some, kept, REMOVED)
                blocks, nbytes = blocks + went[0], nbytes + went[1]
    return blocks, nbytes


def clear(context: Context) -> tuple[int, int]:
    """Remove every block, name, fingerprint and count of this format: (blocks, bytes) that went."""
    blocks = nbytes = 0
    if context.mode != WRITABLE:
        return 0, 0
    with context.index.writing() as connection:
        for _, path in context.layout.all_blocks():
            size = os.lstat(path).st_size if os.path.exists(path) else 0
            if remove(path):
                blocks, nbytes = blocks + 1, nbytes + size
        if connection is not None:
            for table in ("blocks", "children", "gone", "counters"):
                connection.execute(f"DELETE FROM {table}")  # noqa: S608 the four names above
    for name in context.names.all():
        context.names.remove(name.name)
    for fingerprint in context.fingerprints.all():
        context.fingerprints.forget(fingerprint.digest)
    for temp in stray_temps(context.layout):
        remove(temp)
    return blocks, nbytes
