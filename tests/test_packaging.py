"""What is packaged is what lies in the checkout. Nothing is built and nothing is fetched here."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
NOT_PACKAGED = {"tests", "tools", "benchmarks", "docs"}
PACKAGES = sorted(p.parent.name for p in ROOT.glob("*/__init__.py") if p.parent.name not in NOT_PACKAGED)
MODULES = sorted(p.relative_to(ROOT) for name in PACKAGES for p in (ROOT / name).glob("*.py"))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_there_are_packages() -> None:
    assert {"base", "engine", "cli"} <= set(PACKAGES)


def test_every_folder_with_code_is_a_package() -> None:
    folders = {p.parent.name for p in ROOT.glob("*/*.py")}
    assert folders - NOT_PACKAGED == set(PACKAGES)


def test_packages_list_is_the_folders(project: dict[str, Any]) -> None:
    assert sorted(project["tool"]["setuptools"]["packages"]) == [f"llmcli.{name}" for name in PACKAGES]


def test_mapping_is_the_folders(project: dict[str, Any]) -> None:
    assert project["tool"]["setuptools"]["package-dir"] == {f"llmcli.{name}": name for name in PACKAGES}


def test_typing_links_are_the_folders() -> None:
    links = {p.name: os.readlink(p) for p in (ROOT / ".typing" / "llmcli").iterdir() if p.is_symlink()}
    assert links == {name: f"../../{name}" for name in PACKAGES}


def test_no_folder_shadows_the_installed_package() -> None:
    assert not (ROOT / "llmcli").exists()


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_flat_typed_and_its_init_only_a_docstring(name: str) -> None:
    folder = ROOT / name
    assert (folder / "py.typed").is_file()
    assert [p.name for p in folder.iterdir() if p.is_dir() and p.name != "__pycache__"] == []
    body = ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body
    assert len(body) == 1
    assert ast.get_docstring(ast.Module(body, []))


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_module_is_found_under_its_installed_name(path: Path) -> None:
    name = f"llmcli.{path.parent}" if path.stem == "__init__" else f"llmcli.{path.parent}.{path.stem}"
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).resolve() == ROOT / path


def test_script_and_version(project: dict[str, Any]) -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="llmcli")
    assert callable(script.load())
    assert importlib.metadata.version("llmcli") == project["project"]["version"]


def test_engine_is_pinned_exactly(project: dict[str, Any]) -> None:
    # Its C API and its layout of saved states change without notice, and tools/build_engine.py reads the version here.
    (requirement,) = (r for r in project["project"]["dependencies"] if r.startswith("llama-cpp-python"))
    assert requirement.startswith("llama-cpp-python==")
