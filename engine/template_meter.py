"""What a chat template may use up: time, the size of one value, and memory at any one moment.

A template comes with a downloaded file and runs in our process, so it is treated as hostile. The checks are made
between its operations (see template_sandbox), where Python can still say no: a single operation of the interpreter
cannot be stopped, neither by a signal nor from another thread, so each is refused beforehand if it could be large.
That leaves no timer, trace function, signal handler or rlimit behind, and works in every thread.

Knows sizes and clocks; knows nothing of Jinja.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from typing import Any, TypeVar

from llmcli.base.units import format_bytes

T = TypeVar("T")

_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ItemsView, ValuesView)
# Room beyond what the messages need: templates bring their own default prompts and tables.
_BASE_VALUE_BYTES = 1 << 20
_BASE_LIVE_BYTES = 32 << 20
# Templates copy a message a few times (split, strip, replace, join) before it is printed; wide characters in one
# part of a text make all of it up to four times as large.
_VALUE_FACTOR = 8
_LIVE_FACTOR = 16
# What a container, or a value that is neither text nor container, takes at least.
_ITEM_BYTES = 64
_MOST_NESTED = 64
_INT_BITS = 63


class TemplateLimitError(Exception):
    """The template went over a limit; the text continues "the chat template ..."."""


class Meter:
    """Limits for one rendering.

    input_bytes   size of the messages and variables the template is given
    time_s        processor time of this thread for compiling and rendering together: a busy machine does no harm
    """

    def __init__(
        self,
        input_bytes: int = 0,
        *,
        time_s: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self.max_value_bytes = _BASE_VALUE_BYTES + _VALUE_FACTOR * input_bytes
        self._max_live_bytes = _BASE_LIVE_BYTES + _LIVE_FACTOR * input_bytes
        self._time_s = time_s
        self._clock, self._used = clock, used
        self._used_up_s = used() + time_s
        self._deadline_s = clock() + time_s
        # Values the template made and their sizes, by id: when the sum gets large, those still in use are counted.
        self._made: dict[int, tuple[Any, int]] = {}
        self._live_bytes = 0
        # id -> (flattened size, nesting, the container itself, so that the id stays its own)
        self._weighed: dict[int, tuple[int, int, Any]] = {}

    def tick(self) -> None:
        """Called once per operation; raises TemplateLimitError when the time is up."""
        # The clock on the wall is five times as fast to read, and never behind the processor's.
        if self._clock() >= self._deadline_s:
            left_s = self._used_up_s - self._used()
            if left_s <= 0:
                raise TemplateLimitError(f"takes longer than {self._time_s:.1f} s")
            self._deadline_s = self._clock() + left_s

    def fits(self, size_bytes: int) -> None:
        """Raise TemplateLimitError where one value of this size would be too large."""
        if size_bytes > self.max_value_bytes:
            raise TemplateLimitError(f"makes a value of more than {format_bytes(self.max_value_bytes)}")

    def fits_text(self, length: int) -> None:
        """The same for a text of `length` characters, four bytes each at most."""
        self.fits(4 * length)

    def made(self, value: T, inside_bytes: int = 0) -> T:
        """Account for a value that an operation gave, and pass it on.

        inside_bytes   what an object keeps inside that cannot be seen from here: the arguments it was made from
        """
        self.tick()
        if isinstance(value, str):
            if len(value) > 1:  # shorter ones are shared by the interpreter
                self._hold(value, sys.getsizeof(value))
        elif isinstance(value, _CONTAINERS):
            # The items may be new too (split) or only referred to (a slice); counted as if they were new.
            self._hold(value, self.weigh(value))
        elif isinstance(value, int):
            if value.bit_length() > _INT_BITS:
                raise TemplateLimitError("makes a number of more than 63 bits")
        elif value is not None and not isinstance(value, float):
            self._hold(value, 4 * _ITEM_BYTES + inside_bytes)
        return value

    def weigh(self, value: object) -> int:
        """Size of `value` written out, in bytes: shared parts count as often as they occur.

        `[x, x]` forty times over is small in memory and 2**40 long when it is printed, compared or hashed.
        Raises TemplateLimitError where it is too large or nested too deeply (a deep tuple's hash overflows the stack).
        """
        return self._weigh(value)[0]

    def weigh_all(self, *values: Iterable[object]) -> int:
        """Size of everything in `values` together, as arguments of a call."""
        total = 0
        for group in values:
            for value in group:
                total += self.weigh(value)
                self.fits(total)
        return total

    def _weigh(self, value: Any) -> tuple[int, int]:
        if isinstance(value, str):
            return sys.getsizeof(value), 0
        if not isinstance(value, _CONTAINERS):
            return _ITEM_BYTES, 0
        if (known := self._weighed.get(id(value))) is not None:
            return known[0], known[1]
        total, nested = _ITEM_BYTES + sys.getsizeof(value), 0
        items: Iterable[Any] = (part for pair in value.items() for part in pair) if isinstance(value, dict) else value
        for item in items:
            size, depth = self._weigh(item)
            total, nested = total + size, max(nested, depth)
            self.fits(total)
        self.tick()
        if nested >= _MOST_NESTED:
            raise TemplateLimitError(f"nests lists more than {_MOST_NESTED} deep")
        self._weighed[id(value)] = total, nested + 1, value
        return total, nested + 1

    def _hold(self, value: object, size_bytes: int) -> None:
        self.fits(size_bytes)
        if id(value) in self._made:
            return
        self._made[id(value)] = value, size_bytes
        self._live_bytes += size_bytes
        if self._live_bytes > self._max_live_bytes:
            self._release()

    def _release(self) -> None:
        """Let go of the values that only this object still refers to; raise where too much is left.

        Newest first: a container goes before its items, which then are free too.
        """
        self._weighed.clear()
        kept: list[tuple[Any, int]] = []
        while self._made:
            unused = _references(self._made) <= _UNUSED
            entry = self._made.popitem()[1]
            if not unused:
                kept.append(entry)
            del entry  # before the next one is looked at: it may be an item of this one
        self._made = {id(entry[0]): entry for entry in reversed(kept)}
        self._live_bytes = sum(size for _, size in kept)
        if self._live_bytes > self._max_live_bytes // 2:
            raise TemplateLimitError(f"needs more than {format_bytes(self._max_live_bytes)} of memory")


def input_size(value: object) -> int:
    """Bytes of what a template is given: text, and lists and mappings of it."""
    if isinstance(value, dict):
        return _ITEM_BYTES + sum(input_size(key) + input_size(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return _ITEM_BYTES + sum(map(input_size, value))
    return sys.getsizeof(value)


def _references(made: dict[int, tuple[Any, int]]) -> int:
    """How many references there are to the newest value, those of this function included."""
    value = next(reversed(made.values()))[0]
    return sys.getrefcount(value)


# The count for a value that nothing but the dictionary refers to; it differs between Python versions.
_UNUSED = _references({0: (object(), 0)})
