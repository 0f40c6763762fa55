"""The fields of every JSON object of a model command stand in the command's page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmcli.bench.result import LLAMA_BENCH_FIELDS
from tests.conftest import RunCli
from tests.fixtures.text_models import write_text_model

PAGES = Path(__file__).parent.parent / "docs/commands"
# Objects whose keys are names of things (settings, types, metadata), and what is explained by a page of its own.
OPEN = frozenset({"rope", "sampling", "provenance", "licence", "contexts", "drivers", "type_rates", "config", "CPU"})

CALLS: Mapping[str, tuple[str, ...]] = {
    "ls": ("ls",),
    "show": ("show", "{model}", "--tensors"),
    "pull": ("pull", "--dry-run", "smollm2"),
    "alias": ("alias", "ls", "--all"),
    "verify": ("verify", "{model}"),
    "rm": ("rm", "--dry-run", "{model}"),
    "doctor": ("doctor", "--quick"),
    "doctor --estimate": ("doctor", "--estimate", "{model}"),
    "doctor --fit": ("doctor", "--fit"),
    "imatrix": ("imatrix", "{model}", "-f", "{text}", "-c", "64", "--chunks", "2", "-t", "1", "-o", "{out}"),
    "quality": ("quality", "{model}", "--base", "{model}", "-f", "{text}", "-c", "64", "--chunks", "1", "-t", "1"),
    "quantize": ("quantize", "{model}", "Q8_0", "--dry-run"),
    "bench": ("bench", "-m", "{model}", "-p", "16", "-n", "2", "-r", "1", "-t", "1"),
    "bench latency": (
        "bench", "latency", "-m", "{model}", "-p", "64", "-r", "1", "-t", "1", "--answer-tokens", "2",
        "--question-tokens", "4", "--no-processes",
    ),
    "bench sweep": ("bench", "sweep", "-m", "{model}", "-t", "1", "-ub", "64", "-fa", "on", "--prompt-tokens", "32",
                    "--answer-tokens", "8", "--budget", "1s"),
    "bench history": ("bench", "history"),
    "bench compare": ("bench", "compare", "@-1", "@-1"),
}  # fmt: skip


@pytest.fixture
def home(llmcli_home: Path, tmp_path: Path) -> Path:
    folder = llmcli_home / "data" / "models"
    folder.mkdir(parents=True)
    return write_text_model(folder / "little-F32.gguf")


def keys(value: Any) -> Iterator[str]:
    """Every key in the object, and in the objects in it."""
    if isinstance(value, list):
        for one in value:
            yield from keys(one)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in OPEN:
                yield from keys(inner)


@pytest.mark.parametrize("call", CALLS)
def test_every_field_is_documented(call: str, run_cli: RunCli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    places = {"{model}": str(home), "{text}": str(tmp_path / "text.txt"), "{out}": str(tmp_path / "m.imatrix.gguf")}
    if call in ("bench history", "bench compare"):
        assert run_cli("bench", "-m", home, "-p", "16", "-n", "0", "-r", "1", "-t", "1").code == 0
    done = run_cli(*(places.get(word, word) for word in CALLS[call]), "--json")
    assert done.out, done.err
    page = (PAGES / f"{call.split(maxsplit=1)[0]}.md").read_text()
    words = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", page))
    known = words | set(LLAMA_BENCH_FIELDS) | {name for name in os.environ if call == "doctor"}
    assert sorted(set(keys(json.loads(done.out.splitlines()[0]))) - known) == []
