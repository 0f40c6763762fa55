from __future__ import annotations

import re
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.engine import native
from llmcli.engine.plan import Device
from tests.fixtures.cli_process import run_process


def test_only_the_bindings_are_loaded() -> None:
    code = (
        "import sys\nfrom llmcli.engine import native\nnative.lib()\n"
        "print([n for n in ('numpy', 'jinja2', 'llama_cpp.llama') if n in sys.modules])\n"
        "print('llama_cpp.llama_cpp' in sys.modules)"
    )
    done = run_process([sys.executable, "-c", code])
    assert (done.code, done.out, done.err) == (0, "[]\nTrue\n", "")


def test_the_library_is_loaded_once_and_speaks_into_the_ring() -> None:
    assert native.lib() is native.lib()
    native.LOG.clear()
    params = native.lib().llama_model_default_params()
    assert not native.lib().llama_model_load_from_file(b"/no/such.gguf", params)
    assert "/no/such.gguf" in "\n".join(native.LOG.lines())
    assert native.LOG.last_error()


def test_what_it_says_of_itself() -> None:
    assert native.package_version() == "0.3.36"
    assert re.fullmatch(r"llama-cpp-python 0\.3\.36 \(llama\.cpp \S.*\)", native.build_info())
    assert "CPU : " in native.system_info()


def test_the_version_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "DISTRIBUTION", "no-such-distribution")
    assert native.package_version() == "unknown"


def test_the_files_of_the_library() -> None:
    files = native.library_files()
    assert list(files) == sorted(files)
    assert any("llama" in path.name for path in files)
    assert all(path.is_file() for path in files)


# ---- missing and broken installations --------------------------------------------------------------------------------


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as if it had not been imported yet."""
    for name in [n for n in sys.modules if n == "llama_cpp" or n.startswith("llama_cpp.")]:
        monkeypatch.delitem(sys.modules, name)


def package_at(folder: Path | None) -> ModuleSpec | None:
    if folder is None:
        return None
    spec = ModuleSpec("llama_cpp", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


@pytest.mark.parametrize("spec", [None, ModuleSpec("llama_cpp", None)], ids=["absent", "a module"])
def test_a_package_that_is_not_there(spec: ModuleSpec | None, unloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: spec)
    for attempt in (native._import_bindings, native.library_files):
        with pytest.raises(LlmcliError, match="llama-cpp-python is not installed in this environment") as failure:
            attempt()
        assert (failure.value.exit_code, failure.value.hint) == (1, "reinstall the engine: make install")
    assert "llama_cpp" not in sys.modules


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('Failed to load shared library: libomp.so.5')", "libomp.so.5"),
        ("raise OSError('wrong ELF class')", "wrong ELF class"),
        ("raise AttributeError('undefined symbol: llama_new')", "undefined symbol: llama_new"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_a_library_that_does_not_load(
    source: str, reason: str, unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "llama_cpp.py").write_text(source)
    monkeypatch.setattr(native, "find_spec", lambda name: package_at(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with pytest.raises(LlmcliError, match=f"the llama.cpp library cannot be loaded: .*{re.escape(reason)}") as failure:
        native._import_bindings()
    assert failure.value.hint == "llmcli doctor"
    monkeypatch.delitem(sys.modules, "llama_cpp")


def test_a_package_without_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "find_spec", lambda name: package_at(tmp_path))
    with pytest.raises(LlmcliError, match=r"is installed without its library \(.*/lib\)"):
        native.library_files()


def test_a_package_that_somebody_else_imported_is_used(unloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    package, bindings = types.ModuleType("llama_cpp"), types.ModuleType("llama_cpp.llama_cpp")
    package.__path__ = []
    package.llama_cpp = bindings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", package)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", bindings)
    assert native._import_bindings() is bindings


# ---- devices ---------------------------------------------------------------------------------------------------------


class Ggml(SimpleNamespace):
    """ggml-backend.h of a machine with a CPU, an accelerator, two GPUs of which one tells no memory."""

    ROWS = (
        (b"CPU", b"a CPU", 0, 64, 64),
        (b"CUDA0", b"NVIDIA H\xff", 1, 5, 8),
        (b"Vulkan1", b"integrated", 2, 0, 0),
        (b"BLAS", b"an accelerator", 3, 0, 0),
    )

    def ggml_backend_dev_count(self) -> int:
        return len(self.ROWS)

    def ggml_backend_dev_get(self, index: int) -> int:
        return index

    def ggml_backend_dev_name(self, handle: int) -> bytes:
        return self.ROWS[handle][0]

    def ggml_backend_dev_description(self, handle: int) -> bytes:
        return self.ROWS[handle][1]

    def ggml_backend_dev_type(self, handle: int) -> int:
        return self.ROWS[handle][2]

    def ggml_backend_dev_memory(self, handle: int, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = self.ROWS[handle][3:]


def test_devices_are_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "supports_gpu_offload", lambda: True)
    monkeypatch.setattr(native, "_ggml", Ggml)
    assert native.devices.__wrapped__() == (
        Device("CUDA0", "NVIDIA H\ufffd", 5, 8),
        Device("Vulkan1", "integrated", 0, 0),
    )


def test_a_build_without_gpus_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "supports_gpu_offload", lambda: False)
    assert native.devices.__wrapped__() == ()


def test_the_real_devices_can_be_asked() -> None:
    assert native._ggml().ggml_backend_dev_count() >= 1
    assert native.supports_gpu_offload() or native.devices() == ()
