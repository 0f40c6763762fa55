"""The quick dataclass does what the standard library's does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from llmcli.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A point."""

    x: int
    y: float = 1.5
    tags: tuple[str, ...] = dataclasses.field(default_factory=tuple)
    unit: ClassVar[str] = "m"

    @property
    def sum(self) -> float:
        """Both."""
        return self.x + self.y


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """The same by the standard library."""

    x: int
    y: float = 1.5
    tags: tuple[str, ...] = dataclasses.field(default_factory=tuple)
    unit: ClassVar[str] = "m"


@dataclass(frozen=True, slots=True)
class Checked:
    """Looks at its value."""

    value: int

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("negative")

    def __repr__(self) -> str:
        return "<checked>"


@dataclass(frozen=True, slots=True)
class Point3(Point):
    """One more field."""

    z: int = 0


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fields."""


@pytest.mark.parametrize(
    ("arguments", "named"), [((1,), {}), ((1, 2.0), {}), ((), {"x": 1, "tags": ("a",)}), ((1, 2.0, ("b",)), {})]
)
def test_values_repr_equality_and_hash_are_the_originals(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = Point(*arguments, **named), Model(*arguments, **named)
    assert dataclasses.astuple(ours) == dataclasses.astuple(theirs)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs).replace("Model", "Point")
    assert hash(ours) == hash(theirs)
    assert ours == Point(*arguments, **named)
    assert ours != dataclasses.replace(ours, x=7)
    assert (ours == theirs) is False  # type: ignore[comparison-overlap]
    assert pickle.loads(pickle.dumps(ours)) == ours == copy.deepcopy(ours)
    assert ours.sum == ours.x + ours.y


@pytest.mark.parametrize(("arguments", "named"), [((), {}), ((1, 2, (), 4), {}), ((1,), {"x": 2}), ((1,), {"q": 2})])
def test_wrong_arguments_are_refused_in_the_same_words(arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as ours:
        Point(*arguments, **named)
    with pytest.raises(TypeError) as theirs:
        Model(*arguments, **named)
    assert str(ours.value) == str(theirs.value).replace("Model", "Point")


def test_a_default_is_made_anew_each_time() -> None:
    @dataclass(frozen=True, slots=True)
    class Bag:
        """Holds a list."""

        items: list[int] = dataclasses.field(default_factory=list)

    first = Bag()
    first.items.append(1)
    assert Bag().items == []


def test_nothing_can_be_changed_or_added() -> None:
    point = Point(1)
    for name in ("x", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(point, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert not hasattr(point, "__dict__")


def test_post_init_and_own_methods_stay() -> None:
    assert repr(Checked(1)) == "<checked>"
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_inheritance_and_no_fields() -> None:
    assert repr(Point3(1, z=4)) == "Point3(x=1, y=1.5, tags=(), z=4)"
    assert Point3(1) != Point(1)
    assert dataclasses.replace(Point3(1), z=2).z == 2
    assert Nothing() == Nothing()
    assert repr(Nothing()) == "Nothing()"

    @dataclasses.dataclass(frozen=True)
    class Standard(Point):
        """Made by the standard library on top of ours."""

        w: int = 3

    assert Standard(1).w == 3


def test_match_statements_and_fields() -> None:
    assert Point.__match_args__ == Model.__match_args__
    assert [f.name for f in dataclasses.fields(Point)] == [f.name for f in dataclasses.fields(Model)]


def test_other_options_go_to_the_original() -> None:
    @dataclass
    class Open:
        """Not frozen."""

        x: int = 1

    item = Open()
    item.x = 5
    assert item.x == 5


def test_fields_with_options_go_to_the_original() -> None:
    @dataclass(frozen=True, slots=True)
    class Hidden:
        """One field does not count, one has no place, one is for making it only."""

        x: int
        note: str = dataclasses.field(default="", compare=False)
        _: dataclasses.KW_ONLY
        width: int = 3
        seed: dataclasses.InitVar[int] = 0

        def __post_init__(self, seed: int) -> None:
            object.__setattr__(self, "width", self.width + seed)

    assert Hidden(1, "a") == Hidden(1, "b") != Hidden(2)
    assert Hidden(1, width=5, seed=2).width == 7
    with pytest.raises(TypeError):
        Hidden(1, "a", 5)  # type: ignore[call-arg]
