"""What a user feels of a whole process: from the start of the command to the first byte of the answer and the end."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmcli.base.errors import LlmcliError, UserInterruptError
from llmcli.base.text import printable


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """Seconds. start_s: everything that is neither loading nor answering: Python, imports, finding the model, the end.

    first_byte_s is of a process of its own, which writes its answer as it comes; the rest is of one that gives an
    account (--json).
    """

    start_s: float
    load_s: float
    tokenize_s: float
    restore_s: float
    prefill_s: float
    ttft_s: float
    first_byte_s: float
    whole_s: float
    restored_tokens: int
    prompt_tokens: int


def run_process(command: Sequence[str], prompt: str) -> ProcessTimes:
    """Two processes of a `llmcli run` that reads its prompt from stdin: one that streams, one with --json.

    Raises LlmcliError with its own last line where one fails.
    """
    first_byte_s = _stream(command, prompt)
    begun = time.perf_counter()
    done = subprocess.run([*command, "--json"], input=prompt.encode(), capture_output=True, check=False)
    whole_s = time.perf_counter() - begun
    _require_success(done.returncode, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    timings, usage = answer["timings"], answer["usage"]
    return ProcessTimes(
        start_s=whole_s - timings["load_s"] - timings["total_s"],
        load_s=timings["load_s"],
        tokenize_s=timings["tokenize_s"],
        restore_s=timings["restore_s"],
        prefill_s=timings["prefill_s"],
        ttft_s=timings["ttft_s"] or 0.0,
        first_byte_s=first_byte_s,
        whole_s=whole_s,
        restored_tokens=usage["restored_tokens"],
        prompt_tokens=usage["prompt_tokens"],
    )


def _stream(command: Sequence[str], prompt: str) -> float:
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as errors:
        source.write(prompt.encode())
        source.seek(0)
        begun, first_byte_s = time.perf_counter(), 0.0
        with subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=errors) as child:
            try:
                if child.stdout:  # always: a pipe was asked for
                    os.read(child.stdout.fileno(), 1)
                    first_byte_s = time.perf_counter() - begun
                    child.stdout.read()
            except BaseException:  # a Ctrl-C may have been sent to us alone
                child.kill()
                raise
        errors.seek(0)
        _require_success(child.returncode, errors.read())
    return first_byte_s


def _require_success(code: int, stderr: bytes) -> None:
    if code in (130, -2):
        raise UserInterruptError
    if code:
        lines = stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"]
        raise LlmcliError(f"llmcli run: {printable(lines[-1].removeprefix('error: '))}")
