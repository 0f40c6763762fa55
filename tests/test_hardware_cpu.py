"""CPU names and features in llama.cpp's words, and the comparison with what a build has compiled in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcli.hardware.cpu import Cpu, compare, read_cpu


def cpu(root: Path, cpuinfo: str, **files: bytes) -> Cpu:
    (root / "proc/device-tree").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    if "model" in files:
        (root / "proc/device-tree/model").write_bytes(files["model"])
    return read_cpu(root, system="linux")


SKYLAKE_X = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8175M
flags\t\t: fpu lm pni ssse3 fma avx f16c avx2 bmi2 avx512f avx512bw avx512vl

processor\t: 1
model name\t: another
flags\t\t: fpu lm
"""


def test_x86(tmp_path: Path) -> None:
    assert cpu(tmp_path, SKYLAKE_X) == Cpu(
        "Intel(R) Xeon(R) Platinum 8175M",
        "x86_64",
        frozenset({"SSE3", "SSSE3", "FMA", "AVX", "F16C", "AVX2", "BMI2", "AVX512"}),
    )


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("avx_vnni", "AVX_VNNI"),
        ("avx512vbmi", "AVX512_VBMI"),
        ("avx512_vnni", "AVX512_VNNI"),
        ("avx512_bf16", "AVX512_BF16"),
        ("amx_int8", "AMX_INT8"),
    ],
)
def test_x86_newer_flags(tmp_path: Path, flag: str, name: str) -> None:
    assert cpu(tmp_path, f"flags : lm {flag}\n").features == {name}


def test_32_bit_x86(tmp_path: Path) -> None:
    assert cpu(tmp_path, "model name : Atom\nflags : fpu pni\n") == Cpu("Atom", "i686", frozenset({"SSE3"}))


def test_arm_server(tmp_path: Path) -> None:
    text = (
        "processor : 0\nFeatures : fp asimd asimdhp asimddp sve i8mm bf16\nCPU implementer : 0x41\nCPU part : 0xd40\n"
    )
    assert cpu(tmp_path, text) == Cpu(
        "ARM implementer 0x41 part 0xd40",
        "aarch64",
        frozenset({"NEON", "ARM_FMA", "FP16_VA", "DOTPROD", "SVE", "MATMUL_INT8"}),
    )


def test_arm_board_is_named_by_the_device_tree(tmp_path: Path) -> None:
    text = "Features : fp asimd\nCPU implementer : 0x41\n"
    assert cpu(tmp_path, text, model=b"Rock 5B\0").model_name == "Rock 5B"


def test_raspberry_pi_names_itself_at_the_end(tmp_path: Path) -> None:
    text = "processor : 0\nFeatures : fp asimd asimddp\n\nHardware : BCM2835\nModel : Raspberry Pi 5\n"
    assert cpu(tmp_path, text).model_name == "Raspberry Pi 5"


def test_32_bit_arm(tmp_path: Path) -> None:
    found = cpu(tmp_path, "Features : half thumb neon vfpv4\n")
    assert (found.architecture, found.features) == ("arm", frozenset({"NEON", "ARM_FMA"}))


def test_s390x_and_riscv(tmp_path: Path) -> None:
    assert cpu(tmp_path / "z", "features : esan3 zarch vx vxd vxe\n").features == {"VXE"}
    with_vector = cpu(tmp_path / "r", "isa : rv64imafdcv_zicsr\nuarch : spacemit,x60\n")
    assert with_vector == Cpu("spacemit,x60", "riscv64", frozenset({"RISCV_V"}))
    assert cpu(tmp_path / "q", "isa : rv64imafdc_zve32x\n").features == set()


APPLE_M3 = {
    "machdep.cpu.brand_string": "Apple M3",
    "hw.optional.arm64": "1",
    "hw.optional.AdvSIMD": "1",
    "hw.optional.arm.FEAT_FP16": "1",
    "hw.optional.arm.FEAT_I8MM": "1",
    "hw.optional.arm.FEAT_DotProd": "1",
    "hw.optional.arm.FEAT_SME": "0",
}


def test_apple_silicon() -> None:
    assert read_cpu(system="darwin", sysctl=lambda names: APPLE_M3) == Cpu(
        "Apple M3", "aarch64", frozenset({"NEON", "ARM_FMA", "FP16_VA", "MATMUL_INT8", "DOTPROD"})
    )


def test_intel_mac() -> None:
    values = {
        "machdep.cpu.brand_string": "Intel(R) Core(TM) i7",
        "machdep.cpu.features": "FPU SSE3 SSSE3 FMA AVX1.0 F16C",
        "machdep.cpu.leaf7_features": "AVX2 BMI2 AVX512F AVX512VBMI AVX512VNNI",
    }
    assert read_cpu(system="darwin", sysctl=lambda names: values) == Cpu(
        "Intel(R) Core(TM) i7",
        "x86_64",
        frozenset(
            {"SSE3", "SSSE3", "FMA", "AVX", "F16C", "AVX2", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI"},
        ),
    )


def test_nothing_known(tmp_path: Path) -> None:
    found = read_cpu(tmp_path, system="linux")
    assert (found.model_name, found.features) == ("unknown", frozenset())
    assert found.architecture


X86 = Cpu("x", "x86_64", frozenset({"AVX", "AVX2", "FMA", "AVX512"}))


@pytest.mark.parametrize(
    ("built", "missing", "unused"),
    [
        ({"AVX", "AVX2", "FMA", "AVX512"}, set(), set()),
        ({"AVX", "AVX2", "FMA", "AVX512", "AMX_INT8"}, {"AMX_INT8"}, set()),
        ({"AVX", "F16C"}, {"F16C"}, {"AVX2", "FMA", "AVX512"}),
        ({"AVX", "AVX2", "FMA", "AVX512", "LLAMAFILE", "OPENMP", "REPACK", "NEON"}, set(), set()),
        (set(), set(), {"AVX", "AVX2", "FMA", "AVX512"}),
    ],
)
def test_compare(built: set[str], missing: set[str], unused: set[str]) -> None:
    assert compare(built, X86) == (frozenset(missing), frozenset(unused))


def test_compare_takes_the_parsed_system_info() -> None:
    assert compare({"AVX": "1", "BMI2": "1"}, X86) == (frozenset({"BMI2"}), frozenset({"AVX2", "FMA", "AVX512"}))


def test_compare_says_nothing_of_an_unknown_cpu() -> None:
    assert compare({"AVX"}, Cpu("unknown", "x86_64", frozenset())) == (frozenset(), frozenset())
    assert compare({"VSX"}, Cpu("POWER9", "ppc64le", frozenset({"VSX"}))) == (frozenset(), frozenset())


@pytest.mark.skipif(sys.platform != "linux", reason="the real /proc")
def test_this_machine() -> None:
    found = read_cpu()
    assert found.features
    assert found.architecture in {"x86_64", "aarch64", "arm", "riscv64", "s390x", "i686"}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.one_of(st.binary(max_size=80), st.sampled_from([b"isa : rv", b"isa :", b"flags :", b"Features : x"])))
def test_nonsense_never_raises(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/cpuinfo").write_bytes(data)
    found = read_cpu(tmp_path, system="linux")
    assert compare(found.features, found)[0] == frozenset()
