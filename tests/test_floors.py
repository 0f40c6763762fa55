"""The floors of docs/architecture.md, enforced: imports go down, packages on one floor do not know each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_packaging import MODULES, PACKAGES, ROOT

FLOORS = {
    "base": 0,
    "models": 1,
    "cache_store": 1,
    "sessions": 1,
    "hardware": 1,
    "engine": 2,
    "quant": 3,
    "bench": 3,
    "cli": 4,
}
# Who may import what comes from outside: top-level module -> path prefixes. Everything else is free above base.
ONLY_IN = {
    "click": ("cli/",),
    "rich": ("cli/",),
    "prompt_toolkit": ("cli/",),
    "llama_cpp": ("engine/native.py",),
    "huggingface_hub": ("models/hub.py",),
}
ENVIRONMENT_READER = "base/settings.py"
ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
DYNAMIC_IMPORTS = {"import_module", "__import__"}
STDLIB = sys.stdlib_module_names | {"tomllib", "tomli"}  # tomli is what Python 3.10 has for tomllib


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything the source imports; `from a import b` counts as a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _called_name(node) in DYNAMIC_IMPORTS:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def environment_uses(tree: ast.Module) -> Iterator[int]:
    """Lines that read or write the process environment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if node.attr in ENVIRONMENT_NAMES:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from (node.lineno for alias in node.names if alias.name in ENVIRONMENT_NAMES)


def violations(path: str, source: str) -> list[str]:
    """What breaks the rules in one file of a package, as `line N: why`."""
    tree, package = ast.parse(source), path.partition("/")[0]
    found = [f"line {line}: {why}" for line, name in imported_modules(tree) if (why := _wrong(path, package, name))]
    if path != ENVIRONMENT_READER:
        found += [f"line {line}: only {ENVIRONMENT_READER} uses the environment" for line in environment_uses(tree)]
    return found


def _wrong(path: str, package: str, name: str) -> str | None:
    top, *rest = name.split(".")
    if top == "":
        return f"relative import {name}"
    if top in FLOORS:
        return f"`{top}` without llmcli. in front is a second identity of that package"
    if top == "llmcli":
        if not rest or rest[0] not in FLOORS:
            return f"{name} is no module of ours"
        if rest[0] != package and FLOORS[rest[0]] >= FLOORS[package]:
            return f"{package} may not import {rest[0]}: imports only go down"
        return None
    if package == "base" and top not in STDLIB:
        return f"base uses the standard library only, not {top}"
    allowed = ONLY_IN.get(top)
    if allowed and not path.startswith(allowed):
        return f"only {' '.join(allowed)} imports {top}"
    return None


def test_every_package_has_a_floor() -> None:
    assert set(PACKAGES) <= set(FLOORS)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_keeps_to_the_floors(path: Path) -> None:
    assert violations(path.as_posix(), (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", sorted(p for d in ("tests", "tools", "benchmarks") for p in ROOT.glob(f"{d}/**/*.py")))
def test_nothing_beside_the_packages_makes_a_second_identity(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert [name for _, name in imported_modules(tree) if name.split(".")[0] in {*FLOORS, ""}] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("base/x.py", "from llmcli.models.facts import ModelFacts"),
        ("models/x.py", "def f():\n    import llmcli.hardware.cores"),
        ("models/x.py", "from llmcli import engine"),
        ("cli/x.py", "import engine.model"),
        ("cli/x.py", "from base.errors import ModelError"),
        ("engine/x.py", "from . import model"),
        ("engine/x.py", "import click"),
        ("engine/x.py", "from rich.text import Text"),
        ("engine/x.py", "import llama_cpp.llama_cpp as c"),
        ("cli/x.py", "from importlib import import_module\nimport_module('llama_cpp')"),
        ("models/resolve.py", "import huggingface_hub"),
        ("base/x.py", "import psutil"),
        ("models/x.py", "import os\nos.environ['A'] = '1'"),
        ("models/x.py", "from os import getenv"),
        ("models/x.py", "import llmcli"),
    ],
)
def test_the_check_finds(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/native.py", "import llama_cpp.llama_cpp"),
        ("models/hub.py", "from huggingface_hub import errors"),
        ("cli/cmd_run.py", "import click\nfrom llmcli.engine.model import Model\nfrom llmcli.base.errors import X"),
        ("models/x.py", "from llmcli.models.facts import ModelFacts\nimport os\nos.path.join('a')"),
        ("base/settings.py", "import os\nos.environ"),
    ],
)
def test_the_check_lets_pass(path: str, source: str) -> None:
    assert violations(path, source) == []


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(flag: str) -> None:
    code = (
        "import sys\n"
        "from llmcli.cli.main import call\n"
        f"assert call([{flag!r}]) == 0\n"
        "print('\\nLOADED', *sorted({m.split('.')[0] for m in sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split("\nLOADED ")[1].split())
    assert "click" in loaded
    heavy = {"llama_cpp", "huggingface_hub", "numpy", "jinja2", "rich", "psutil", "sqlite3", "ctypes"}
    assert loaded & heavy == set()
