"""The native library tried in a child process: every way it can end is a value."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine import probe
from llmcli.engine.plan import Device
from llmcli.engine.probe import Build, parse_system_info, probe_build


def child(code: str) -> Build:
    return probe_build([sys.executable, "-c", code])


def test_the_real_library() -> None:
    found = probe_build()
    assert found.error is None
    assert found.version
    assert found.version.startswith("llama-cpp-python 0.")
    assert "CPU" in found.features
    assert found.system_info


def test_a_module_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert probe_build().error is None


@pytest.mark.parametrize(
    ("code", "error", "illegal"),
    [
        ("import os; os.kill(os.getpid(), 4)", "loading it ends in an illegal instruction", True),
        ("import os; os.kill(os.getpid(), 9)", "loading it ends in SIGKILL", False),
        ("import sys; sys.exit('libllama.so: cannot open')", "libllama.so: cannot open", False),
        ("raise SystemExit(7)", "the child process ended with exit code 7", False),
        ("1 / 0", "ZeroDivisionError: division by zero", False),
        ('print(\'{"error": "the library is missing"}\')', "the library is missing", False),
        ("pass", "the child process gave no answer (JSONDecodeError)", False),
        ("print('[1]')", "the child process gave no answer (TypeError)", False),
        ("print('{}')", "the child process gave no answer (KeyError)", False),
        ("print(7)", "the child process gave no answer (TypeError)", False),
    ],
)
def test_how_it_can_end(code: str, error: str, illegal: bool) -> None:
    assert child(code) == Build(error=error, illegal_instruction=illegal)


def test_illegal_instruction_on_windows() -> None:
    assert probe._ended_badly(0xC000001D, "").illegal_instruction


def test_a_library_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.3)
    assert child("import time; time.sleep(30)").error == "loading it did not end within 0.3 s"


def test_no_child_process() -> None:
    assert probe_build(["/nonexistent/python"]).error == "no child process to try it in: No such file or directory"


def test_an_answer_after_chatter() -> None:
    answer = (
        '{"system_info": "CPU : AVX2 = 1 | CUDA : ARCHS = 900 | ", "build": "b 1", "gpu_offload": true, "devices": '
        '[{"name": "CUDA0", "description": "H200", "free_bytes": 5, "total_bytes": 9}]}'
    )
    assert child(f"print('ggml_cuda_init: found 1 device')\nprint({answer!r})") == Build(
        version="b 1",
        system_info="CPU : AVX2 = 1 | CUDA : ARCHS = 900 | ",
        features={"CPU": {"AVX2": "1"}, "CUDA": {"ARCHS": "900"}},
        gpu_offload=True,
        devices=(Device("CUDA0", "H200", 5, 9),),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("CPU : SSE3 = 1 | AVX = 1 | ", {"CPU": {"SSE3": "1", "AVX": "1"}}),
        (
            "CUDA : ARCHS = 750,900 | USE_GRAPHS = 1 | CPU : NEON = 1 | SVE_CNT = 16 | ",
            {"CUDA": {"ARCHS": "750,900", "USE_GRAPHS": "1"}, "CPU": {"NEON": "1", "SVE_CNT": "16"}},
        ),
        ("Metal : EMBED_LIBRARY = 1 | CPU : ", {"Metal": {"EMBED_LIBRARY": "1"}, "CPU": {}}),
        ("rubbish", {}),
    ],
)
def test_system_info(text: str, expected: dict[str, dict[str, str]]) -> None:
    assert parse_system_info(text) == expected


@given(st.text(alphabet=" |:=A1", max_size=40))
def test_system_info_takes_any_text(text: str) -> None:
    for values in parse_system_info(text).values():
        assert all(name for name in values)
