"""The short names."""

from __future__ import annotations

import pytest

from llmcli.models.catalogue import CATALOGUE, well_known
from llmcli.models.default_model import BUILT_IN
from llmcli.models.reference import looks_like_path, parse_hub


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_stands_for_a_repository(name: str) -> None:
    found = parse_hub(CATALOGUE[name])
    assert found is not None
    assert found.selector is None  # which quantization is for the machine to decide
    assert found.repo.endswith("-GGUF")
    assert name == name.casefold()
    assert not looks_like_path(name)
    assert name not in BUILT_IN


def test_case_is_ignored() -> None:
    assert well_known("Qwen3-4B") == CATALOGUE["qwen3-4b"]
    assert well_known("qwen3") is None
