"""The only importer of llama_cpp: loads the C API of llama.cpp and nothing of the Python package around it.

`import llama_cpp` runs the package's `__init__`, which brings in the high-level class, chat formats, jinja2 and numpy
(0.3 to 0.6 s). The bindings alone take about 0.05 s, so the package is registered here as an empty one and only its
`llama_cpp.llama_cpp` module is run. Whoever needs the whole package must import it in another process.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import tell_native_code
from llmcli.engine.log import CONTINUE, DEBUG, LogRing
from llmcli.engine.plan import Device

LOG = LogRing()
DISTRIBUTION = "llama-cpp-python"
_REINSTALL = "reinstall the engine: make install"
# enum ggml_backend_dev_type (ggml-backend.h): discrete and integrated GPUs; type 0 is the CPU, 3 a CPU accelerator.
_GPU_TYPES = (1, 2)
_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)  # ggml_log_callback (ggml.h)


@functools.cache
def lib() -> Any:
    """The ctypes module of llama.h, with the backend started and the log in `LOG`.

    Raises LlmcliError where the package or its library is missing or cannot be loaded.
    """
    tell_native_code("GGML_NO_BACKTRACE", "1")  # an abort in the library would start a debugger where there is one
    module = _import_bindings()
    _keep_log(module)
    module.llama_backend_init()
    return module


def library_files() -> tuple[Path, ...]:
    """The shared libraries of the installed package, by name. Raises LlmcliError where the package is missing."""
    folder = Path(next(iter(_package_spec().submodule_search_locations or ()))) / "lib"
    found = tuple(sorted(path for path in folder.glob("*") if ".so" in path.name or path.suffix in (".dylib", ".dll")))
    if not found:
        raise LlmcliError(f"{DISTRIBUTION} is installed without its library ({folder})", hint=_REINSTALL)
    return found


def _package_spec() -> ModuleSpec:
    spec = find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise LlmcliError(f"{DISTRIBUTION} is not installed in this environment", hint=_REINSTALL)
    return spec


def _import_bindings() -> Any:
    if "llama_cpp" not in sys.modules:
        spec = _package_spec()
        package = types.ModuleType("llama_cpp")
        package.__path__ = list(spec.submodule_search_locations or ())
        package.__spec__ = spec
        sys.modules["llama_cpp"] = package
    try:
        import llama_cpp.llama_cpp as bindings
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        # AttributeError: the library lacks a function that the bindings name, so the two do not belong together.
        raise LlmcliError(f"the llama.cpp library cannot be loaded: {error}", hint="llmcli doctor") from None
    return bindings


def _keep_log(module: Any) -> None:
    """Into the ring with everything but debugging lines: there are some 4,000 in a start, and nobody reads them.

    The text comes as an address, since to make an object of each would cost a start 20 ms.
    """
    last = DEBUG

    def on_log(level: int, text: int, _data: object) -> None:
        nonlocal last
        if level != CONTINUE:
            last = level
        if last != DEBUG:
            LOG.write(level, ctypes.string_at(text).decode("utf-8", "replace"))

    callback = _LOG_CALLBACK(on_log)
    module.llama_log_set(ctypes.cast(callback, module.llama_log_callback), None)
    module._llmcli_log_callback = callback  # the C side keeps a bare pointer: the callback lives as long as the module


def system_info() -> str:
    """llama.cpp's own line of compiled-in CPU features, for example `CPU : AVX2 = 1 | FMA = 1 | …`."""
    return str(lib().llama_print_system_info().decode("utf-8", "replace"))


def package_version() -> str:
    """The version of llama-cpp-python, which fixes the llama.cpp commit inside it; `unknown` without metadata."""
    from importlib.metadata import PackageNotFoundError, version  # 10 ms, for those who ask only

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def build_info() -> str:
    """One string that names the engine: package version and llama.cpp's own version."""
    return f"{DISTRIBUTION} {package_version()} (llama.cpp {lib().llama_version().decode('ascii', 'replace')})"


def supports_gpu_offload() -> bool:
    """Whether this build can put layers on a GPU at all."""
    return bool(lib().llama_supports_gpu_offload())


def ggml_library() -> Any:
    """The loaded library of ggml.h, whose functions the Python bindings do not declare: who calls one declares it."""
    lib()
    from llama_cpp._ggml import libggml

    return libggml


@functools.cache
def _ggml() -> Any:
    """Device functions of ggml-backend.h, which the Python bindings do not declare."""
    import ctypes

    libggml = ggml_library()
    size_p = ctypes.POINTER(ctypes.c_size_t)
    for name, arguments, result in (
        ("ggml_backend_dev_count", [], ctypes.c_size_t),
        ("ggml_backend_dev_get", [ctypes.c_size_t], ctypes.c_void_p),
        ("ggml_backend_dev_name", [ctypes.c_void_p], ctypes.c_char_p),
        ("ggml_backend_dev_description", [ctypes.c_void_p], ctypes.c_char_p),
        ("ggml_backend_dev_memory", [ctypes.c_void_p, size_p, size_p], None),
        ("ggml_backend_dev_type", [ctypes.c_void_p], ctypes.c_int),
    ):
        function = getattr(libggml, name)
        function.argtypes, function.restype = arguments, result
    return libggml


@functools.cache
def devices() -> tuple[Device, ...]:
    """The GPUs that this build can use, in llama.cpp's order; empty on a CPU build. Memory as of the first call."""
    if not supports_gpu_offload():
        return ()
    ggml = _ggml()
    handles = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return tuple(_device(ggml, h) for h in handles if ggml.ggml_backend_dev_type(h) in _GPU_TYPES)


def _device(ggml: Any, handle: int) -> Device:
    import ctypes

    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    return Device(
        name=ggml.ggml_backend_dev_name(handle).decode("utf-8", "replace"),
        description=ggml.ggml_backend_dev_description(handle).decode("utf-8", "replace"),
        free_bytes=free.value,
        total_bytes=total.value,
    )
