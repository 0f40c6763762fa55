from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from llmcli.base.version import VERSION


def test_the_version_is_that_of_the_project() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "([^"]+)"$', project, re.MULTILINE)
    assert found is not None
    assert found[1] == VERSION
    assert version("llmcli") == VERSION
