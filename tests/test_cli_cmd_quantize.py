"""`llmcli quantize` as a person meets it: words, output, refusals, Ctrl-C and worse."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from llmcli.cli.main import call
from llmcli.models.gguf_header import read_header
from llmcli.quant.place import WORK_PREFIX
from tests.cli_run_case import engine_memo, known_engine, refused  # noqa: F401  # fixtures
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.cli_process import SCRIPT, Completed
from tests.fixtures.terminal import CTRL_C
from tests.fixtures.wide_model import write_wide, write_wide_imatrix
from tests.quantize_case import REFERENCE, tensor_digest, type_of

Quantize = Callable[..., Completed]


@pytest.fixture(scope="module")
def wide_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide(tmp_path_factory.mktemp("wide") / "wide-F32.gguf")


@pytest.fixture
def wide(wide_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(wide_file, tmp_path / "wide-F32.gguf"))


@pytest.fixture
def quantize(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quantize:
    """Calls `llmcli quantize -t 1 …` in this process, in the folder of the test."""

    def run(*args: str | Path) -> Completed:
        monkeypatch.chdir(tmp_path)
        code = call(["quantize", "-t", "1", *map(str, args)])
        out, err = capfdbinary.readouterr()
        return Completed(code, out, err, 0.0, 0)

    return run


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_report_on_stdout_and_the_file_beside_the_model(quantize: Quantize, wide: Path) -> None:
    done = quantize(wide, "Q8_0")
    assert done.code == 0, done.err
    out = wide.with_name("wide-Q8_0.gguf")
    assert tensor_digest(out) == REFERENCE["wide"]["Q8_0"]["tensor_data_sha256"]
    lines = done.out.splitlines()
    assert lines[0] == f"{wide} as Q8_0"
    assert lines[1].split() == ["type", "tensors", "weights", "before", "after", "bpw"]
    assert lines[2].split() == ["Q8_0", "9", "1,315,840", "5.0", "MiB", "1.3", "MiB", "8.50"]
    assert lines[4].split()[0] == "all"
    assert lines[5].startswith(f"{out}: 1.3 MiB in ")
    assert done.err == ""


def test_json(quantize: Quantize, wide: Path) -> None:
    done = quantize(wide, "out.gguf", "15", "--tensor-type", "attn_v=q8_0", "--json")
    told = json.loads(done.out)
    assert told["model"] == {"name": str(wide), "path": str(wide)}
    (row,) = told["outputs"]
    assert (row["type"], row["written"], told["dry_run"]) == ("Q4_K_M", True, False)
    assert row["path"] == str(wide.with_name("out.gguf"))
    assert row["file_bytes"] == wide.with_name("out.gguf").stat().st_size
    assert row["rules"] == [{"name": "blk.0.attn_v.weight", "rule": "attn_v=q8_0", "type": "Q8_0"}]
    assert sum(group["tensors"] for group in row["groups"]) == 12
    assert sum(group["bytes"] for group in row["groups"]) == row["tensor_bytes"]
    assert row["bpw"] == row["tensor_bytes"] * 8 / row["weights"]
    assert row["fallback"] == {"tensors": 0, "weights_share": 0.0, "list": []}


def test_several_types_into_a_folder(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = quantize(wide, "out", "Q8_0,q4_0", "-q")
    assert (done.code, done.err) == (0, "")
    assert names(tmp_path / "out") == ["wide-Q4_0.gguf", "wide-Q8_0.gguf"]
    assert quantize(wide, "x-{type}.gguf", "Q8_0,Q4_0").code == 0
    assert names(tmp_path) == ["out", "wide-F32.gguf", "x-Q4_0.gguf", "x-Q8_0.gguf"]


def test_a_name_with_a_slash_at_its_end_is_a_folder_to_make(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    """As the examples have it. Its own parent has to be there, and a run that fails leaves no folder."""
    assert quantize(wide, "out/", "Q8_0,Q4_0", "--dry-run").code == 0
    assert "no tensor" in refused(quantize(wide, "out/", "IQ4_NL", "--tensor-type", "nowhere=q8_0", "-q"), 2)
    assert names(tmp_path) == ["wide-F32.gguf"]
    done = quantize(wide, "out/", "Q8_0,q4_0", "-q")
    assert (done.code, done.err) == (0, "")
    assert names(tmp_path / "out") == ["wide-Q4_0.gguf", "wide-Q8_0.gguf"]
    assert "a/b does not exist (mkdir -p " in refused(quantize(wide, "a/b/c/", "Q8_0"), 1)
    assert "wide-F32.gguf is no folder" in refused(quantize(wide, "wide-F32.gguf/", "Q8_0"), 1)
    assert names(tmp_path) == ["out", "wide-F32.gguf"]


def test_several_types_into_one_file(quantize: Quantize, wide: Path) -> None:
    assert "{type}" in refused(quantize(wide, "x.gguf", "Q8_0,Q4_0"), 2)


def test_dry_run_writes_nothing_and_needs_no_place(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    done = quantize(wide, "no/folder/x.gguf", "Q4_0", "--dry-run", "-v")
    assert done.code == 0
    assert "would write" in done.out
    assert "blk.0.attn_q.weight  [512, 512, 1, 1]  F32 -> Q4_0" in done.err
    assert names(tmp_path) == ["wide-F32.gguf"]


def test_a_dry_run_tells_that_a_matrix_is_needed(quantize: Quantize, wide: Path) -> None:
    assert "without an importance matrix" in refused(quantize(wide, "IQ2_XXS", "--dry-run"), 1)


def test_a_matrix(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    write_wide_imatrix(tmp_path / "im.gguf")
    assert quantize(wide, "out.gguf", "IQ2_S", "--imatrix", "im.gguf").code == 0
    header = read_header(tmp_path / "out.gguf")
    assert header.metadata["quantize.imatrix.file"] == "im.gguf"
    assert tensor_digest(tmp_path / "out.gguf") == REFERENCE["wide"]["imatrix-IQ2_S"]["tensor_data_sha256"]


def test_rules_from_a_file_come_after_those_of_the_line(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "types").write_text("attn_v=q5_0\nattn_k=q5_0\n", encoding="utf-8")
    done = quantize(wide, "out.gguf", "Q4_0", "--tensor-type", "attn_v=q6_k", "--tensor-type-file", "types")
    assert "--tensor-type attn_v=q6_k: 1 tensor as Q6_K" in done.out
    assert "attn_v=q5_0 decides nothing" in done.err
    header = read_header(tmp_path / "out.gguf")
    assert [type_of(header, f"blk.0.attn_{part}.weight") for part in "vkq"] == ["Q6_K", "Q5_0", "Q4_0"]


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        ([], 2, "expected IN [OUT] TYPE"),
        (["in.gguf"], 2, "expected IN [OUT] TYPE"),
        (["a", "b", "Q4_0", "2"], 2, "expected IN [OUT] TYPE"),
        (["IN", "Q4_X"], 2, "is no type"),
        (["missing.gguf", "Q4_0"], 3, "no such file"),
        (["IN", "Q4_0", "--tensor-type", "x"], 2, "REGEX=TYPE"),
        (["IN", "Q4_0", "--output-tensor-type", "q9"], 2, "no type of a tensor"),
        (["IN", "Q4_0", "--override-kv", "a=b"], 2, "KEY=TYPE:VALUE"),
        (["IN", "Q4_0", "--prune-layers", "x"], 2, "no list of layers"),
        (["IN", "Q4_0", "--prune-layers", "0"], 2, "leave no layer"),
        (["IN", "Q4_0", "--include-weights", "a", "--exclude-weights", "b", "--imatrix", "x"], 2, "together"),
        (["IN", "Q4_0", "--include-weights", "a"], 2, "add --imatrix"),
        (["IN", "Q4_0", "--imatrix", "missing.gguf"], 3, "missing.gguf does not exist"),
        (["IN", "Q4_0", "--imatrix", "IN"], 3, "no importance matrix"),
        (["IN", "no/x.gguf", "Q4_0"], 1, "does not exist"),
        (["IN", "IN", "Q4_0", "--force"], 1, "same file"),
        (["IN", "x-00001-of-00002.gguf", "Q4_0"], 2, "name of one part"),
        (["IN", "Q4_0", "--tensor-type", "nomatch.*=q8_0"], 2, "fits no tensor"),
        (["IN", "Q4_0", "-t", "0"], 2, "threads"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    quantize: Quantize, wide: Path, tmp_path: Path, args: list[str], code: int, why: str
) -> None:
    before = wide.read_bytes()
    assert why in refused(quantize(*(str(wide) if arg == "IN" else arg for arg in args)), code)
    assert names(tmp_path) == ["wide-F32.gguf"]
    assert wide.read_bytes() == before


def test_an_output_that_is_there(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"old")
    assert "--force" in refused(quantize(wide, "out.gguf", "Q8_0"), 1)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"
    assert quantize(wide, "out.gguf", "Q8_0", "--force").code == 0
    assert tensor_digest(tmp_path / "out.gguf") == REFERENCE["wide"]["Q8_0"]["tensor_data_sha256"]


def test_an_output_survives_an_input_that_is_cut_off(quantize: Quantize, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(wide.read_bytes()[:-1000])
    (tmp_path / "out.gguf").write_bytes(b"old")
    assert "cut off" in refused(quantize("cut.gguf", "out.gguf", "Q8_0", "--force"), 3)
    assert (tmp_path / "out.gguf").read_bytes() == b"old"


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_a_link_to_the_input_is_refused(quantize: Quantize, wide: Path, tmp_path: Path, link: str) -> None:
    before = wide.read_bytes()
    (os.symlink if link == "symbolic" else os.link)(wide, tmp_path / "out.gguf")
    assert "same file" in refused(quantize(wide, "out.gguf", "Q8_0", "--force"), 1)
    assert wide.read_bytes() == before


@pytest.mark.parametrize("kind", ["imatrix", "page", "empty", "text"])
def test_what_is_no_language_model(quantize: Quantize, tmp_path: Path, kind: str) -> None:
    data = {"page": b"<!DOCTYPE html><html></html>", "empty": b"", "text": b"hello"}
    if kind == "imatrix":
        write_wide_imatrix(tmp_path / "in.gguf")
    else:
        (tmp_path / "in.gguf").write_bytes(data[kind])
    refused(quantize("in.gguf", "out.gguf", "Q8_0"), 3)
    assert names(tmp_path) == ["in.gguf"]


def test_a_split_model_by_any_part(quantize: Quantize, tmp_path: Path) -> None:
    write_wide(tmp_path / "m-F32.gguf", parts=3)
    assert quantize("m-F32-00002-of-00003.gguf", "Q4_0").code == 0
    assert tensor_digest(tmp_path / "m-Q4_0.gguf") == REFERENCE["wide"]["Q4_0"]["tensor_data_sha256"]
    assert quantize("m-F32-00001-of-00003.gguf", "Q8_0", "--keep-split").code == 0
    assert [name for name in names(tmp_path) if "Q8_0" in name] == [f"m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def test_a_model_of_the_hubs_cache_is_not_joined_by_ours(
    quantize: Quantize, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--me--wide" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    wide.rename(snapshot / "wide-F32.gguf")
    (tmp_path / "hub" / "models--me--wide" / "refs").mkdir()
    (tmp_path / "hub" / "models--me--wide" / "refs" / "main").write_text("a" * 40, encoding="utf-8")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert quantize("me/wide", "Q8_0").code == 0
    assert names(tmp_path) == ["hub", "wide-Q8_0.gguf"]
    assert names(snapshot) == ["wide-F32.gguf"]


# ---- as a process of its own -----------------------------------------------------------------------------------------


def test_in_a_process(run_cli: RunCli, wide: Path, tmp_path: Path) -> None:
    done = run_cli("quantize", wide, "Q4_0", "-t", "1", cwd=tmp_path)
    assert done.code == 0
    assert done.err == "Q4_0 is clearly better with an importance matrix: --imatrix auto\n"
    assert names(tmp_path) == ["wide-F32.gguf", "wide-Q4_0.gguf"]


def test_limits_on_the_size_of_files_are_told(wide: Path, tmp_path: Path) -> None:
    command = f"ulimit -f 500; exec {SCRIPT} quantize -q {wide} out.gguf Q8_0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode in (1, 6)
    assert done.stderr.startswith(b"error: ")
    assert names(tmp_path) == ["wide-F32.gguf"]


def _can_mount() -> bool:
    try:
        probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _can_mount(), reason="needs the right to mount")
@pytest.mark.parametrize(
    ("options", "patch", "code", "why"),
    [
        ("size=500k", "", 6, b"free"),
        ("size=500k", "import llmcli.quant.run as r; r.check_space = lambda *a: None", 6, b"No space left on device"),
        ("size=90m,ro", "", 1, b"Read-only file system"),
    ],
)
def test_disks_that_are_full_or_read_only(
    wide: Path, tmp_path: Path, options: str, patch: str, code: int, why: bytes
) -> None:
    (tmp_path / "disk").mkdir()
    python = (
        f"{patch}\nfrom llmcli.cli.main import call\nraise SystemExit(call(['quantize','-q','{wide}','disk','Q8_0']))"
    )
    script = f'mount -t tmpfs -o {options} none disk && {sys.executable} -c "$1"; code=$?; ls -A disk; exit $code'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", python], capture_output=True, cwd=tmp_path, check=False
    )
    assert done.returncode == code, done.stderr
    assert why in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def started(smollm2: Path, folder: Path, env: Mapping[str, str], *, group: bool = False) -> tuple[Any, int]:
    """A long run in its middle, and the process it quantizes in."""
    words = ["quantize", "-t", "1", "-q", str(smollm2), str(folder / "out.gguf"), "IQ4_NL", "--allow-requantize"]
    command = [str(SCRIPT), *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=dict(env), start_new_session=group)
    deadline = time.monotonic() + 60
    while not list(folder.glob(f"{WORK_PREFIX}*/out.gguf")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    return process, _child_of(process.pid)


def _child_of(pid: int) -> int:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGKILL, -9)],
    ids=lambda value: str(value),
)
def test_a_signal_leaves_no_half_file_and_no_process(
    smollm2_path: Path, tmp_path: Path, number: int, code: int
) -> None:
    (tmp_path / "out").mkdir()
    process, child = started(smollm2_path, tmp_path / "out", os.environ)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err == (b"error: interrupted\n" if code == 130 else b"")
    assert gone(child)
    assert names(tmp_path / "out") == []


def test_its_child_killed(smollm2_path: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    process, child = started(smollm2_path, tmp_path / "out", os.environ)
    os.kill(child, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 6
    assert b"was killed" in err
    assert names(tmp_path / "out") == []


def test_all_killed_at_once_is_cleared_away_by_the_next_run(smollm2_path: Path, wide: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    process, _ = started(smollm2_path, tmp_path / "out", os.environ, group=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert "out.gguf" not in names(tmp_path / "out")
    assert call(["quantize", "-q", str(wide), str(tmp_path / "out"), "Q8_0"]) == 0
    assert names(tmp_path / "out") == ["wide-Q8_0.gguf"]


def test_ctrl_c_at_a_terminal(open_terminal: OpenTerminal, smollm2_path: Path, tmp_path: Path) -> None:
    """The bar names the tensor, the share and the time left; Ctrl-C reaches the child too, and ends all."""
    out = tmp_path / "out.gguf"
    with open_terminal(
        "quantize", "-t", "1", smollm2_path, out, "IQ4_NL", "--allow-requantize", columns=120
    ) as terminal:
        shown = terminal.read_until(b"blk.")
        assert b"IQ4_NL" in shown
        terminal.read_until(b"%")
        terminal.send(CTRL_C)
        assert terminal.wait() == 130
    assert b"interrupted" in terminal.screen
    assert names(tmp_path) == []


def test_a_size_that_can_never_be_is_refused_before_anything_is_measured(
    quantize: Quantize, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmcli.cli.quantize_fit.with_weights", lambda *_: pytest.fail("it measures"))
    line = refused(quantize(wide, "out.gguf", "--fit", "1K"), 2)
    assert "1.0 KiB is too small: the least that this model takes is " in line
    assert names(wide.parent) == [wide.name]


def test_a_plan_speaks_of_what_would_be_and_a_report_of_what_was(
    quantize: Quantize, scripted_model: Callable[..., Path]
) -> None:
    """Rows that hold no whole block of 256 weights become another type than Q4_K."""
    model = scripted_model(["hi"])
    assert ") would become another type because of their shape: " in quantize(model, "Q4_K_M", "--dry-run").out
    assert ") became another type because of their shape: " in quantize(model, "out.gguf", "Q4_K_M").out
