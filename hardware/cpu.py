"""The CPU's name and its vector features, in the names that llama.cpp prints for what it was compiled with.

Names: `ggml_backend_cpu_get_features` in llama.cpp's ggml/src/ggml-cpu/ggml-cpu.cpp. Sources: flags of /proc/cpuinfo
(arch/x86/include/asm/cpufeatures.h, arm64's Documentation/arch/arm64/elf_hwcaps.rst), sysctl on macOS.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmcli.base.records import dataclass
from llmcli.hardware.kernel_files import REAL_ROOT, colon_fields, read_text
from llmcli.hardware.sysctl import Sysctl, read_sysctl

# llama.cpp's name -> the kernel's names, any of which means it
_X86 = {
    "SSE3": ("pni", "sse3"),
    "SSSE3": ("ssse3",),
    "AVX": ("avx",),
    "AVX_VNNI": ("avx_vnni",),
    "AVX2": ("avx2",),
    "F16C": ("f16c",),
    "FMA": ("fma",),
    "BMI2": ("bmi2",),
    "AVX512": ("avx512f",),
    "AVX512_VBMI": ("avx512vbmi", "avx512_vbmi"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "AMX_INT8": ("amx_int8",),
}
# Every 64-bit ARM CPU has fused multiply-add with its vector unit; a 32-bit one has it with vfpv4.
_ARM = {
    "NEON": ("asimd", "neon"),
    "ARM_FMA": ("asimd", "vfpv4"),
    "FP16_VA": ("asimdhp",),
    "MATMUL_INT8": ("i8mm",),
    "SVE": ("sve",),
    "DOTPROD": ("asimddp",),
    "SME": ("sme",),
    "SME2": ("sme2",),
}
_S390X = {"VXE": ("vxe", "vxe2")}
_RISCV = {"RISCV_V": ("v",)}
_TABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": _X86,
    "i686": _X86,
    "aarch64": _ARM,
    "arm": _ARM,
    "s390x": _S390X,
    "riscv64": _RISCV,
}
# Apple: sysctl name -> our name (developer.apple.com, "Determining instruction set characteristics").
_APPLE_ARM = {
    "hw.optional.AdvSIMD": ("NEON", "ARM_FMA"),
    "hw.optional.arm.FEAT_FP16": ("FP16_VA",),
    "hw.optional.arm.FEAT_I8MM": ("MATMUL_INT8",),
    "hw.optional.arm.FEAT_DotProd": ("DOTPROD",),
    "hw.optional.arm.FEAT_SME": ("SME",),
    "hw.optional.arm.FEAT_SME2": ("SME2",),
}
_APPLE_X86 = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
# Apple's spelling of x86 flags where it differs from Linux's in more than case and dots.
_APPLE_X86_NAMES = {"avx1.0": "avx", "avx512vnni": "avx512_vnni"}
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64", "i386": "i686", "i586": "i686", "armv7l": "arm", "armv8l": "arm"}


@dataclass(frozen=True, slots=True)
class Cpu:
    """model_name as the system gives it (`unknown` where it does not), architecture as `uname -m` on Linux.

    features   llama.cpp's names; empty where the system does not tell, which means "not known", never "none"
    """

    model_name: str
    architecture: str
    features: frozenset[str]


def read_cpu(root: Path = REAL_ROOT, *, system: str = sys.platform, sysctl: Sysctl = read_sysctl) -> Cpu:
    """Read the CPU's name and features; the arguments stand in for another machine in tests."""
    if system == "darwin":
        return _read_macos(sysctl)
    return _read_cpuinfo(root)


def compare(built: Iterable[str], cpu: Cpu) -> tuple[frozenset[str], frozenset[str]]:
    """(missing_on_cpu, unused_by_build) of the features that this module can tell for the CPU's architecture.

    missing_on_cpu    compiled in and not there: an illegal instruction is ahead
    unused_by_build   there and not compiled in: slower than it could be
    Both are empty where the CPU's features are not known.
    """
    known = frozenset(_TABLES.get(cpu.architecture, ()))
    compiled = frozenset(built) & known
    if not cpu.features:
        return frozenset(), frozenset()
    return compiled - cpu.features, (cpu.features & known) - compiled


def _read_cpuinfo(root: Path) -> Cpu:
    fields = colon_fields(read_text(root / "proc/cpuinfo"))
    architecture, flags = _flags(fields)
    if not flags:
        architecture = _machine()
    table = _TABLES.get(architecture, {})
    features = frozenset(name for name, kernel_names in table.items() if flags.intersection(kernel_names))
    return Cpu(_model_name(root, fields), architecture, features)


def _flags(fields: dict[str, str]) -> tuple[str, frozenset[str]]:
    """The architecture that the first CPU's fields speak of, and its flags in the kernel's names."""
    if "flags" in fields:
        flags = frozenset(fields["flags"].split())
        return ("x86_64" if "lm" in flags else "i686"), flags
    if "Features" in fields:
        flags = frozenset(fields["Features"].split())
        return ("aarch64" if "asimd" in flags else "arm"), flags
    if "features" in fields:
        return "s390x", frozenset(fields["features"].split())
    if "isa" in fields:  # rv64imafdcv_zicsr_…: one letter per extension up to the first underscore
        letters = fields["isa"].lower().partition("_")[0]
        return "riscv64", frozenset(letters[4:]) if letters.startswith("rv64") else frozenset()
    return "", frozenset()


def _model_name(root: Path, fields: dict[str, str]) -> str:
    for key in ("model name", "Model", "Hardware", "cpu model", "uarch"):
        if fields.get(key):
            return fields[key]
    if board := read_text(root / "proc/device-tree/model"):
        return board
    if "CPU implementer" in fields:
        return f"ARM implementer {fields['CPU implementer']} part {fields.get('CPU part', 'unknown')}"
    return "unknown"


def _machine() -> str:
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def _read_macos(sysctl: Sysctl) -> Cpu:
    values = sysctl(("machdep.cpu.brand_string", "hw.optional.arm64", *_APPLE_ARM, *_APPLE_X86))
    name = values.get("machdep.cpu.brand_string", "unknown")
    if values.get("hw.optional.arm64") == "1":
        features = [ours for theirs, ours in _APPLE_ARM.items() if values.get(theirs) == "1"]
        return Cpu(name, "aarch64", frozenset(feature for group in features for feature in group))
    words = " ".join(values.get(key, "") for key in _APPLE_X86).lower().split()
    flags = {_APPLE_X86_NAMES.get(word, word) for word in words}
    return Cpu(name, "x86_64", frozenset(ours for ours, theirs in _X86.items() if flags.intersection(theirs)))
