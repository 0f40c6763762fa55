"""`@dataclass(frozen=True, slots=True)` that is made in a quarter of the time: a start makes some 50 of them.

The standard library writes and compiles six methods for each class, 0.4 ms; together that was a tenth of the time of
`llmcli run -n 1`. Here only `__init__` is compiled, 0.1 ms; the others are the same for all classes and look at the
fields when they are called. To type checkers, and in what it does, this is `dataclasses.dataclass`: fields, replace,
asdict, pickle and copy work; whatever is asked for beyond frozen and slots goes to the original.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass

__all__ = ["dataclass"]

_PLAIN = {"frozen": True, "slots": True}
_set = object.__setattr__


def _make(cls: type) -> type:
    if _is_special(cls):
        return dataclasses.dataclass(frozen=True, slots=True)(cls)
    own = set(vars(cls))
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__dataclass_params__.frozen = True  # what a class that inherits from this one is told
    made.__init__ = _init(made, dataclasses.fields(made))
    for name, method in _SHARED.items():
        if name not in own:
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _is_special(cls: type) -> bool:
    """Whether it inherits from a dataclass, or has fields with options or of another kind."""
    inherits = any(hasattr(base, "__dataclass_fields__") for base in cls.__mro__[1:])
    fields = (value for value in vars(cls).values() if isinstance(value, dataclasses.Field))
    kinds = " ".join(map(str, vars(cls).get("__annotations__", {}).values()))
    return inherits or "InitVar" in kinds or "KW_ONLY" in kinds or not all(map(_is_usual, fields))


def _is_usual(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.repr and field.compare and field.hash is None and field.kw_only is not True


def _init(made: type, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """The one method that is compiled, since it is called often and its arguments have names."""
    known: dict[str, Any] = {"_set": _set, "_missing": dataclasses.MISSING}
    arguments, lines = [], []
    for field in fields:
        name, value = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_made_{name}"] = field.default_factory
            arguments.append(f"{name}=_missing")
            value = f"_made_{name}() if {name} is _missing else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            arguments.append(f"{name}=_default_{name}")
        else:
            arguments.append(name)
        lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    code = "def __init__(self, " + ", ".join(arguments) + "):\n" + "\n".join(lines or [" pass"])
    exec(code, known)  # noqa: S102  # names of fields and nothing else, as the standard library does it
    known["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return known["__init__"]


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__match_args__)


def _repr(self: Any) -> str:
    pairs = zip(self.__match_args__, _values(self), strict=True)
    return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse_set(_self: Any, name: str, _value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(_self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        _set(self, name, value)


_SHARED = {
    "__repr__": _repr,
    "__eq__": _eq,
    "__hash__": _hash,
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": lambda self: list(_values(self)),
    "__setstate__": _set_state,
}

if not TYPE_CHECKING:

    def dataclass(cls=None, /, **options):
        """`dataclasses.dataclass`; quick where it is frozen and has slots."""
        if cls is not None or options != _PLAIN:
            return dataclasses.dataclass(cls, **options)
        return _make
