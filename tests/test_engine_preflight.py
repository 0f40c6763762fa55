from __future__ import annotations

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import load
from llmcli.engine import native
from llmcli.engine.preflight import EngineBuild, check_build
from llmcli.engine.probe import Build
from llmcli.hardware.cpu import Cpu

OLD_CPU = Cpu("Old CPU", "x86_64", frozenset({"SSE3", "SSSE3"}))
NEW_CPU = Cpu("New CPU", "x86_64", frozenset({"SSE3", "SSSE3", "AVX", "AVX2", "F16C", "FMA", "BMI2"}))
AVX2_BUILD = Build(version="x", system_info="x", features={"CPU": {"SSE3": "1", "AVX2": "1", "FMA": "1"}})


def test_the_child_is_asked_once_per_library_and_cpu() -> None:
    asked = []

    def probe() -> Build:
        asked.append(True)
        return AVX2_BUILD

    first = check_build(load(), cpu=lambda: NEW_CPU, probe=probe)
    assert check_build(load(), cpu=lambda: NEW_CPU, probe=probe) == first
    assert len(asked) == 1
    assert len(first.digest) == 64
    other = Cpu("Newer CPU", "x86_64", NEW_CPU.features | {"AVX512"})
    assert check_build(load(), cpu=lambda: other, probe=probe) == first
    assert len(asked) == 2


def test_a_build_for_another_cpu_is_refused_by_the_names_of_what_is_missing() -> None:
    with pytest.raises(LlmcliError) as caught:
        check_build(load(), cpu=lambda: OLD_CPU, probe=lambda: AVX2_BUILD)
    assert caught.value.message == "llama.cpp was built with AVX2, FMA, which this CPU (Old CPU) lacks"
    assert "make install" in (caught.value.hint or "")
    # Nothing was remembered: the next start says it again.
    with pytest.raises(LlmcliError):
        check_build(load(), cpu=lambda: OLD_CPU, probe=lambda: AVX2_BUILD)


def test_a_library_that_does_not_load_is_told() -> None:
    broken = Build(error="loading it ends in an illegal instruction", illegal_instruction=True)
    with pytest.raises(LlmcliError, match="does not load: loading it ends in an illegal instruction"):
        check_build(load(), cpu=lambda: NEW_CPU, probe=lambda: broken)


def test_the_installed_library_runs_here() -> None:
    assert isinstance(check_build(load()), EngineBuild)
    assert any("llama" in path.name for path in native.library_files())


def test_a_damaged_memo_is_made_anew() -> None:
    settings = load()
    good = check_build(settings, cpu=lambda: NEW_CPU, probe=lambda: AVX2_BUILD)
    (memo,) = (settings.cache_dir / "engine").iterdir()
    memo.write_text('{"digest": 5}')
    assert check_build(settings, cpu=lambda: NEW_CPU, probe=lambda: AVX2_BUILD) == good
