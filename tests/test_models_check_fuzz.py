"""Damaged models that check.py lets through never bring llama.cpp down: they load, or it refuses them.

A small, fixed part of a larger search; to look further: more seeds, more mutants, in a loop.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.errors import ModelError
from llmcli.models.check import check_model
from tests.fixtures.fuzz_bases import make_bases
from tests.fixtures.gguf_mutants import mutants
from tests.fixtures.load_child import LoadChild

SEED, MUTANTS = 1, 60


def test_bases_are_sound(tmp_path: Path) -> None:
    # Damage to a model that would not load anyway shows nothing.
    with LoadChild() as child:
        for name, model in make_bases(tmp_path).items():
            path = model.write(tmp_path / "model.gguf")
            check_model(path, need_vocabulary=False)
            assert child.load(path) == "loaded", name


def test_what_is_let_through_ends_no_process(tmp_path: Path) -> None:
    let_through, refused = 0, 0
    path = tmp_path / "model.gguf"
    with LoadChild() as child:
        for name, model in mutants(make_bases(tmp_path), SEED, MUTANTS):
            model.write(path)
            try:
                check_model(path, need_vocabulary=False)
            except ModelError:
                refused += 1
                continue
            let_through += 1
            assert child.load(path) in {"loaded", "refused"}, name
    # Both happen, so neither the check nor the damage is idle.
    assert let_through > 10
    assert refused > 10


@pytest.mark.parametrize("seed", [3, 4])
def test_the_check_itself_survives_everything(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "model.gguf"
    messages = []
    for _, model in mutants(make_bases(tmp_path), seed, 40):
        model.write(path)
        try:
            check_model(path, need_vocabulary=False)
        except ModelError as error:
            messages.append(error.message)
    assert len(messages) > 10
    assert all(message.isprintable() for message in messages)
