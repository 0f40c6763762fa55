"""The best choice under a size, against trying everything."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from llmcli.quant.budget import Option, choose

OPTION = st.builds(Option, st.just("T"), st.integers(1, 60), st.floats(0, 10, allow_nan=False))
TENSORS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=4)


def named(tensors: list[list[Option]]) -> dict[str, list[Option]]:
    return {f"t{i}": options for i, options in enumerate(tensors)}


def cost(chosen: dict[str, Option]) -> float:
    return sum(option.cost for option in chosen.values())


def size(chosen: dict[str, Option]) -> int:
    return sum(option.nbytes for option in chosen.values())


@settings(max_examples=150)
@given(TENSORS, st.integers(1, 240))
def test_it_fits_and_is_near_the_best(tensors: list[list[Option]], budget: int) -> None:
    chosen = choose(named(tensors), budget)
    within = [c for c in itertools.product(*tensors) if sum(o.nbytes for o in c) <= budget]
    if not within:
        assert chosen is None
        return
    assert chosen is not None
    assert size(chosen) <= budget
    assert all(chosen[name] in options for name, options in named(tensors).items())
    # No single upgrade that still fits is left undone.
    for name, options in named(tensors).items():
        for option in options:
            if option.cost < chosen[name].cost:
                assert size(chosen) - chosen[name].nbytes + option.nbytes > budget


@settings(max_examples=60)
@given(TENSORS)
def test_with_room_for_all_every_tensor_has_its_best(tensors: list[list[Option]]) -> None:
    chosen = choose(named(tensors), 10_000)
    assert chosen is not None
    assert cost(chosen) == sum(min(option.cost for option in options) for options in tensors)


def test_bytes_go_where_they_gain_most() -> None:
    small, large = 10, 20
    tensors = {
        "tender": [Option("Q4", small, 5.0), Option("Q8", large, 0.1)],
        "robust": [Option("Q4", small, 0.2), Option("Q8", large, 0.1)],
    }
    chosen = choose(tensors, 30)
    assert chosen is not None
    assert {name: option.tensor_type for name, option in chosen.items()} == {"tender": "Q8", "robust": "Q4"}


def test_nothing_small_enough() -> None:
    assert choose({"a": [Option("Q4", 10, 1.0)]}, 9) is None
