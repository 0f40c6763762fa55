"""The line of a list: read from a header, or what is wrong in a clause."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.settings import load
from llmcli.models.check import check_model
from llmcli.models.file_identity import file_identity
from llmcli.models.headline import Headline, Headlines, read_headline
from tests.library_case import tiny


@pytest.mark.parametrize("kind", ["plain", "iswa", "hybrid", "mamba"])
def test_the_same_facts_as_the_careful_check(random_model: Callable[[str], Path], kind: str) -> None:
    path = random_model(kind)
    facts, found = check_model(path, need_vocabulary=False), read_headline(path)
    assert (found.status, found.problem) == ("ok", None)
    assert (found.architecture, found.quant, found.n_params) == (facts.architecture, facts.quant, facts.n_params)
    assert (found.tensor_bytes, found.n_ctx_train, found.bpw) == (facts.tensor_bytes, facts.n_ctx_train, facts.bpw)


def test_a_real_vocabulary(smollm2_path: Path, gemma3_path: Path) -> None:
    for path in (smollm2_path, gemma3_path):
        facts, found = check_model(path), read_headline(path)
        assert (found.quant, found.bpw, found.n_ctx_train) == (facts.quant, facts.bpw, facts.n_ctx_train)


def test_no_file_at_all(tmp_path: Path) -> None:
    assert read_headline(tmp_path / "gone.gguf") == Headline("damaged", "does not exist")


def test_what_was_not_asked_for_is_forgotten(llmcli_home: Path, tmp_path: Path) -> None:
    paths = [tiny().write(tmp_path / f"{name}.gguf") for name in "ab"]
    first = Headlines(load())
    first.of_all({path: [file_identity(str(path))] for path in paths})
    first.save()
    memo = llmcli_home / "cache" / "models" / "headlines.json"
    assert all(str(path) in memo.read_text() for path in paths)
    second = Headlines(load())
    second.of_all({paths[0]: [file_identity(str(paths[0]))]})
    second.save()
    assert str(paths[1]) not in memo.read_text()
    assert memo.stat().st_mode & 0o777 == 0o600
