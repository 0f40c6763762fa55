"""`llmcli pull` as a process: output and exit codes, killed and again, two at once, a full disk, a terminal."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llmcli.base import settings as settings_module
from llmcli.engine.fit import run_need
from llmcli.models.default_model import SMOLLM2
from llmcli.models.library import own_folder
from tests.cli_run_case import refused
from tests.conftest import OpenTerminal, RunCli
from tests.fixtures.cli_process import SCRIPT
from tests.fixtures.hub_stub import COMMIT, HubStub
from tests.fixtures.odd_server import send, serving
from tests.fixtures.terminal import CTRL_C
from tests.pull_case import REPO, cache, gguf, halves, hub, named, online

__all__ = ["hub", "online"]

CONTENT = gguf()
BIG = gguf(3 << 20)
FILE = "Tiny-Q4_K_M.gguf"


def test_the_path_goes_to_stdout_and_the_rest_to_stderr(hub: HubStub, run_cli: RunCli) -> None:
    done = run_cli("pull", f"{REPO}:q4_k_m")
    path = cache() / "models--Own--Tiny-GGUF" / "snapshots" / COMMIT / FILE
    assert (done.code, done.out) == (0, f"{path}\n")
    first, last = done.err.splitlines()[0], done.err.splitlines()[-1]
    assert first == f"{REPO} at aaaaaaa: {FILE}, 4.0 KiB"
    assert last.startswith(f"{FILE}: 4.0 KiB in ")
    assert last.endswith(", checked")
    assert "\x1b" not in done.err
    again = run_cli("pull", "-q", REPO)
    assert (again.code, again.out, again.err) == (0, f"{path}\n", "")


def test_json(hub: HubStub, run_cli: RunCli) -> None:
    value = json.loads(run_cli("pull", "--json", REPO).out)
    assert value["files"] == [
        {
            "name": FILE,
            "path": value["path"],
            "size_bytes": len(CONTENT),
            "digest": hashlib.sha256(CONTENT).hexdigest(),
            "received": True,
        }
    ]
    assert (value["reference"], value["source"], value["commit"]) == (REPO, REPO, COMMIT)
    assert value["memory"]["fits"] is True


def test_a_dry_run_fetches_nothing(hub: HubStub, run_cli: RunCli) -> None:
    done = run_cli("pull", "--dry-run", REPO)
    assert done.code == 0
    for words in (FILE, "to be fetched", "free", "memory", "it fits"):
        assert words in done.out
    assert named() == halves() == []
    value = json.loads(run_cli("pull", "--dry-run", "--json", REPO).out)
    assert (value["missing_bytes"], value["files"][0]["state"]) == (len(CONTENT), "new")
    assert value["free_bytes"] > 0


@pytest.mark.parametrize("arguments", [["pull", REPO], ["show", f"{REPO}:Q4_K_M"]])
def test_nothing_is_asked_that_the_user_did_not_ask_for(hub: HubStub, run_cli: RunCli, arguments: list[str]) -> None:
    env = {"HF_HUB_DISABLE_TELEMETRY": None, "AI_AGENT": "some-agent"}
    assert run_cli(*arguments, env=env).code == 0
    strangers = [r.path for r in hub.requests if REPO not in r.path]
    assert (strangers, all("some-agent" not in r.agent for r in hub.requests)) == ([], True)
    assert not list(cache().parent.glob(".agent*"))


def test_what_the_hub_wants_said_is_not_said(run_cli: RunCli) -> None:
    with serving(lambda handler: send(handler, 404, b"", ("X-HF-Warning", "topic; \x1b[31mbuy"))) as url:
        done = run_cli("pull", REPO, env={"HF_ENDPOINT": url, "HF_HUB_OFFLINE": None})
    assert refused(done, 3) == f"error: the hub answers 404 for {REPO} (check the name at {url}/{REPO})"


def test_several_at_once_and_one_that_fails(hub: HubStub, run_cli: RunCli) -> None:
    hub.add("o/two", "two-Q8_0.gguf", gguf(seed=2))
    done = run_cli("pull", REPO, "o/none", "o/two")
    assert done.code == 3
    assert [Path(line).name for line in done.out.splitlines()] == [FILE, "two-Q8_0.gguf"]
    assert "error: the hub has no repository o/none, or it is private" in done.err


def test_the_choice_is_said_with_its_reason(hub: HubStub, run_cli: RunCli) -> None:
    hub.add(REPO, "Tiny-Q8_0.gguf", gguf(8000))
    hub.add(REPO, "Tiny-F16.gguf", gguf(16000))
    done = run_cli("pull", REPO)
    assert "Q8_0 is the largest of 2 quantizations, and it fits: " in done.err
    assert "--quant" in done.err
    assert done.out.endswith("Tiny-Q8_0.gguf\n")
    assert run_cli("pull", REPO, "--quant", "f16").out.endswith("Tiny-F16.gguf\n")


def test_no_match_ends_with_the_table(hub: HubStub, run_cli: RunCli, random_model: Callable[[str], Path]) -> None:
    hub.add("o/real", "Real-F32.gguf", random_model("plain").read_bytes())
    for repo, row in ((REPO, rf"{FILE} +4\.0 KiB +\? bpw"), ("o/real", r"Real-F32\.gguf +\d+\.\d KiB +3\d\.\d\d bpw")):
        done = run_cli("pull", f"{repo}:Q5_K_M")
        assert (done.code, done.out) == (3, "")
        first, second = done.err.splitlines()
        assert first == f"error: {repo} has no Q5_K_M; add :QUANT or :FILE, one of:"
        assert re.fullmatch(rf"  {row}", second)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["pull"], 2, "REF"),
        (["pull", "--sha256", "xyz", "https://example.org/m.gguf"], 2, "is not a sha256"),
        (["pull", "--sha256", "0" * 64, REPO], 2, "the hub states the digest"),
        (["pull", "http://example.org/m.gguf"], 2, "plain http"),
        (["pull", "qwen3-4c"], 3, "did you mean qwen3-4b"),
        (["pull", "--revision", "x", "https://example.org/m.gguf"], 2, "--revision is for repositories"),
    ],
)
def test_usage(hub: HubStub, run_cli: RunCli, arguments: list[str], code: int, words: str) -> None:
    done = run_cli(*arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_offline_and_a_proxy_that_refuses(hub: HubStub, run_cli: RunCli) -> None:
    assert "the network is switched off" in refused(run_cli("pull", REPO, env={"HF_HUB_OFFLINE": "1"}), 3)
    env = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": "http://me:secret@127.0.0.1:1"}
    error = refused(run_cli("pull", REPO, env=env), 3)
    assert "cannot reach hub.invalid through the proxy http://127.0.0.1:1: Connection refused" in error
    assert "secret" not in error


@pytest.mark.parametrize("fault", [{"gated": True}, {"status": 403}, {"status": 401}, {"flip": 100}, {"html": True}])
def test_a_token_is_in_no_output_and_no_file(hub: HubStub, run_cli: RunCli, fault: dict[str, object]) -> None:
    hub.set_fault(REPO, **fault)
    done = run_cli("pull", "-v", REPO, env={"HF_TOKEN": "hf_verysecret"})
    assert b"verysecret" not in done.stdout + done.stderr
    assert all(b"verysecret" not in p.read_bytes() for p in cache().rglob("*") if p.is_file())
    assert done.code == (0 if "gated" in fault else 3)


def test_hostile_names_are_shown_escaped(hub: HubStub, run_cli: RunCli) -> None:
    hub.set_fault(REPO, names=["../../evil.gguf", "x\x1b[31m.gguf", "y\n.gguf"])
    done = run_cli("pull", REPO)
    assert done.code == 0
    assert "\x1b" not in done.err
    assert "x\\x1b[31m.gguf" in done.err


@pytest.fixture
def start(llmcli_home: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `llmcli` in the background."""
    children: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([SCRIPT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        children.append(child)
        return child

    yield begin
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


def half_of(size: int) -> Path:
    """Wait for a half file of at least `size` bytes."""
    for _ in range(400):
        if (found := halves()) and found[0].stat().st_size >= size:
            return found[0]
        time.sleep(0.025)
    raise AssertionError("no half file came")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_midway_and_again(
    hub: HubStub, run_cli: RunCli, start: Callable[..., subprocess.Popen[bytes]], how: signal.Signals
) -> None:
    hub.add(REPO, FILE, BIG)
    hub.set_fault(REPO, slow=1 << 20)
    child = start("pull", REPO)
    half = half_of(200_000)
    child.send_signal(how)
    assert child.wait(10) == (-signal.SIGKILL if how is signal.SIGKILL else 130)
    assert named() == []
    kept = half.read_bytes()
    assert kept == BIG[: len(kept)]
    assert f"the download of {REPO} did not finish" in refused(run_cli("run", "-m", REPO, "hi"), 3)
    hub.set_fault(REPO)
    done = run_cli("pull", REPO)
    assert done.code == 0
    assert Path(done.out.strip()).read_bytes() == BIG
    assert hub.requests[-1].byte_range == f"bytes={len(kept)}-"
    assert "of it from an earlier try" in done.err
    assert halves() == []


def test_two_at_once(hub: HubStub, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    hub.add(REPO, FILE, BIG)
    hub.set_fault(REPO, slow=3 << 18)
    first = start("pull", REPO)
    half_of(1)
    second = start("pull", REPO)
    out, err = second.communicate(timeout=20)
    assert (first.wait(20), second.returncode) == (0, 0)
    assert f"waiting for another process that fetches {FILE}" in err.decode()
    assert Path(out.decode().strip()).read_bytes() == BIG
    whole = [r for r in hub.requests if "/resolve/" in r.path and r.byte_range is None]
    assert len(whole) == 1
    assert len(named()) == 2


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="a small file system takes root")
def test_a_full_disk(hub: HubStub, run_cli: RunCli, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no mount here")
    try:
        hub.add(REPO, FILE, BIG)
        env = {"HF_HUB_CACHE": str(disk / "hub")}
        error = refused(run_cli("pull", "-q", REPO, env=env), 6)
        assert "not enough disk space" in error
        assert "3.0 MiB" in error or "4.0 MiB" in error
        assert not list(disk.rglob("*.incomplete"))
        error = refused(run_cli("pull", "-q", "--no-space-check", REPO, env=env), 6)
        assert "the disk is full at " in error
        assert " of 3.0 MiB are kept" in error
        (half,) = disk.rglob("*.incomplete")
        kept = half.stat().st_size
        assert half.read_bytes() == BIG[:kept]
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        done = run_cli("pull", "-q", REPO, env=env)
        assert Path(done.out.strip()).read_bytes() == BIG
        assert hub.requests[-1].byte_range == f"bytes={kept}-"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_bar_on_a_terminal_and_a_line_when_done(hub: HubStub, open_terminal: OpenTerminal) -> None:
    hub.add(REPO, FILE, BIG)
    hub.set_fault(REPO, slow=2 << 20)
    with open_terminal("pull", REPO, columns=120) as terminal:
        terminal.read_until("MiB/s")
        terminal.read_until(", checked")
        assert terminal.wait() == 0
        # On its own line: behind what takes the bars off, and before nothing.
        assert re.search(rb"\x1b\[\?25h\r/\S+" + FILE.encode() + rb"\r\n\Z", terminal.screen)


def test_ctrl_c_at_a_terminal(hub: HubStub, open_terminal: OpenTerminal) -> None:
    hub.add(REPO, FILE, BIG)
    hub.set_fault(REPO, slow=1 << 20)
    with open_terminal("pull", REPO) as terminal:
        half_of(100_000)
        terminal.send(CTRL_C)
        terminal.read_until("error: interrupted; what came is kept (the same command goes on from there)")
        assert terminal.wait() == 130
    assert named() == []
    assert halves()


def test_a_pulled_model_runs_with_the_network_gone(
    hub: HubStub, run_cli: RunCli, scripted_model: Callable[..., Path]
) -> None:
    hub.add("o/hello", "hello-F32.gguf", scripted_model(["Hello", " world"]).read_bytes())
    assert run_cli("pull", "o/hello").code == 0
    env = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": None}
    assert run_cli("run", "-m", "o/hello", "hi", env=env).out == "Hello world\n"
    done = run_cli("run", "-m", "o/hello:Q4_K_M", "hi", env=env)
    assert done.code == 3
    assert "llmcli pull o/hello:Q4_K_M" in done.err
    assert "llmcli pull o/other:Q4_0" in refused(run_cli("run", "-m", "o/other:Q4_0", "hi", env=env), 3)


def test_the_default_model_needs_no_network_for_its_plan(run_cli: RunCli, llmcli_home: Path) -> None:
    """The folder that is named is the one where the file is, and the memory is what every command says."""
    value = json.loads(run_cli("pull", "--dry-run", "--json", "smollm2").out)
    assert value["memory"]["needed_bytes"] == run_need(SMOLLM2.facts, 4096).total_bytes
    own = own_folder(settings_module.load())
    own.mkdir(parents=True)
    with open(own / SMOLLM2.file, "wb") as file:
        file.write(b"GGUF")
        file.truncate(SMOLLM2.size_bytes)
    shown = run_cli("pull", "--dry-run", "smollm2").out
    assert "is here already" in shown
    assert f"to      {own}\n" in shown


@pytest.mark.parametrize("reference", ["qwen3-4b", "o/m", "http://127.0.0.1:1/m.gguf"])
def test_a_hub_that_is_not_there_is_told_with_what_was_asked_for(run_cli: RunCli, reference: str) -> None:
    """The advice is about the network: a path is nothing that can be pulled."""
    env = {"HF_HUB_OFFLINE": None, "HF_ENDPOINT": "http://127.0.0.1:1", "NO_PROXY": "*"}
    digest = ["--sha256", "0" * 64] if "://" in reference else []
    told = refused(run_cli("pull", *digest, reference, env=env), 3)
    assert reference in told
    assert "cannot reach 127.0.0.1" in told
    assert "(check the network" in told
    assert "path" not in told


def test_no_network_wanted_is_told_with_what_was_asked_for(run_cli: RunCli) -> None:
    assert "qwen3-4b: the network is switched off" in refused(run_cli("pull", "qwen3-4b"), 3)
