"""Timing whole processes, with stand-ins for llmcli."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.bench.process import run_process

ANSWER = {
    "timings": {
        **dict.fromkeys(("tokenize_s", "restore_s", "prefill_s", "ttft_s"), 0.0),
        "load_s": 0.01,
        "total_s": 0.02,
    },
    "usage": {"restored_tokens": 64, "prompt_tokens": 96},
}
CODE = f"""
import sys, time
prompt = sys.stdin.read()
assert prompt == "a prompt"
if "--json" in sys.argv:
    print({json.dumps(json.dumps(ANSWER))})
else:
    sys.stdout.write("x"); sys.stdout.flush(); time.sleep(0.3); print("yz")
"""


def test_phases() -> None:
    found = run_process([sys.executable, "-c", CODE], "a prompt")
    assert (found.load_s, found.restored_tokens, found.prompt_tokens) == (0.01, 64, 96)
    assert found.start_s == pytest.approx(found.whole_s - 0.03)
    assert found.first_byte_s > 0


@pytest.mark.parametrize("code", ["print('error: no such model', file=sys.stderr); sys.exit(3)", "sys.exit(3)"])
def test_a_process_that_fails(code: str) -> None:
    with pytest.raises(LlmcliError, match=r"llmcli run: (no such model|exit code 3)$"):
        run_process([sys.executable, "-c", f"import sys; {code}"], "")


def test_a_process_that_was_interrupted() -> None:
    with pytest.raises(UserInterruptError):
        run_process([sys.executable, "-c", "import sys; sys.exit(130)"], "")


def test_a_ctrl_c_for_us_alone_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"import os, time; open({str(note)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)"

    def read(_descriptor: int, _count: int) -> bytes:
        while not note.exists() or not note.read_text().endswith("\n"):
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr("llmcli.bench.process.os", SimpleNamespace(read=read))  # subprocess reads, too
    with pytest.raises(KeyboardInterrupt):
        run_process([sys.executable, "-c", code], "hi")
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)
