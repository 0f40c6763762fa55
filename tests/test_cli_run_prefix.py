"""`llmcli run` with the prefix store: the answer of a run without it, whatever happens to the store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli_run_case import Answer, engine_memo, in_process, known_engine  # noqa: F401  # fixtures
from tests.conftest import RunCli
from tests.fixtures.cli_process import SCRIPT, Completed, run_process
from tests.fixtures.lora import write_lora
from tests.fixtures.scripted_gguf import base_vocabulary

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs what Linux has alone")
# 40 bytes a line, each a token of a scripted model but for its spaces, which are three.
TEXT = "".join(f"{number:03} the-quick-brown-fox-jumps-over.....\n" for number in range(20))
STORY = " ".join(f"In the year {1800 + i} the town of Elm had {i * 7 + 3} houses and {i + 2} wells." for i in range(5))


def store_of(home: Path) -> Path:
    return home / "cache" / "prefixes"


def blocks_in(store: Path) -> list[Path]:
    return sorted(store.rglob("*.kv"))


def account(done: Completed) -> dict[str, Any]:
    """The object of a run that ended well with at most one line on stderr."""
    assert (done.code, done.err.count("\n") <= 1) == (0, True), done.err
    found = json.loads(done.out)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def hello(scripted_model: Callable[..., Path]) -> Path:
    return scripted_model(["Hello", " world"], n_ctx=2048)


@pytest.fixture
def ask(answer: Answer, hello: Path, text: Path) -> Callable[..., dict[str, Any]]:
    """One question about TEXT, in this process; the answer must be right, with at most one line on stderr."""

    def run(*args: str | Path, model: Path = hello, says: str = "Hello world") -> dict[str, Any]:
        found = account(answer(model, "--json", "--temp", "0", "-f", text, "What?", *args))
        assert found["text"] == says
        return found

    return run


def restored(found: dict[str, Any]) -> int:
    count = found["usage"]["restored_tokens"]
    assert isinstance(count, int)
    return count


# ---- the same answers ------------------------------------------------------------------------------------------------


def test_four_prompts_answer_as_without_the_store(
    run_cli: RunCli, answer: Answer, smollm2_path: Path, tmp_path: Path
) -> None:
    """P1, P2 with the same text and another question, P3 with half of the text, P4 the same as P1."""
    story, half = tmp_path / "story.txt", tmp_path / "half.txt"
    story.write_text(STORY)
    half.write_text(STORY[: len(STORY) // 2])
    prompts = [(story, "How many wells?"), (story, "Which year, and why?"), (half, "How many wells?")]
    common = ("--json", "--temp", "0", "-n", "5")
    off = [account(answer(smollm2_path, *common, "--cache", "off", "-f", *prompt)) for prompt in prompts]
    on = [
        account(run_cli("run", "-t", "1", "-m", smollm2_path, *common, "-f", *prompt))
        for prompt in (*prompts, prompts[0])
    ]
    assert [found["text"] for found in on] == [found["text"] for found in (*off, off[0])]
    assert len({found["text"] for found in off}) > 1
    assert [found["cache"]["mode"] for found in (*off, *on)] == ["off"] * 3 + ["auto"] * 4
    assert [restored(found) for found in (*off, *on)] == [0] * 3 + [0, 128, 64, 128]
    assert [found["cache"]["source"] for found in on] == [None, "disk", "disk", "disk"]


def test_a_second_question_is_answered_from_the_store(ask: Callable[..., dict[str, Any]]) -> None:
    first, second, off = ask(), ask(), ask("--cache", "off")
    assert first["cache"]["written_bytes"] > 0
    assert [restored(found) for found in (first, off)] == [0, 0]
    assert restored(second) == (second["usage"]["prompt_tokens"] - 1) // 64 * 64
    assert second["cache"]["written_bytes"] == 0


def test_a_prompt_that_is_too_short_says_so_with_its_length(answer: Answer, hello: Path) -> None:
    done = answer(hello, "--json", "--temp", "0", "--stats", "Hi")
    found = json.loads(done.out)
    count = found["usage"]["prompt_tokens"]
    assert (found["cache"]["miss_reason"], found["cache"]["miss_detail"]) == (
        "too_short",
        f"{count} tokens, the minimum is 64",
    )
    assert done.err.endswith(f"; nothing restored (too short: {count} tokens, the minimum is 64)\n")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (("-ctk", "q8_0", "-ctv", "q8_0"), "other_kv_type"),
        (("--rope-freq-base", "5000"), "other_settings"),
        (("-fa", "off"), "other_settings"),
    ],
    ids=["kv-type", "rope", "flash-attention"],
)
def test_other_settings(args: tuple[str, ...], reason: str, ask: Callable[..., dict[str, Any]]) -> None:
    ask()
    other = ask(*args)
    assert (restored(other), other["cache"]["miss_reason"]) == (0, reason)
    assert restored(ask()) > 0


def test_a_lora(ask: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """It makes the model say one word for ever; what was stored without it is not used, nor the other way round."""
    vocabulary = base_vocabulary()
    world, width = vocabulary.id_of("Hello") + 1, 288
    lora = write_lora(tmp_path / "l.gguf", width=width, n_vocab=world + 1, token=world)
    ask()
    for args in (("--lora", str(lora)), ("--lora", f"{lora}:0.5")):
        other = ask(*args, "-n", "2", says=" world world")
        assert (restored(other), other["cache"]["miss_reason"]) == (0, "other_settings")
    assert restored(ask()) > 0


def test_a_variable_of_llama_cpp(ask: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knows what it does; of one it is known that it does nothing to the state."""
    ask()
    monkeypatch.setenv("GGML_NO_BACKTRACE", "1")
    assert restored(ask()) > 0
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    other = ask()
    assert (restored(other), other["cache"]["miss_reason"]) == (0, "other_settings")


def test_another_build(ask: Callable[..., dict[str, Any]], llmcli_home: Path) -> None:
    ask()
    (memo,) = (llmcli_home / "cache" / "engine").glob("*.json")
    memo.write_text(json.dumps({"digest": "0" * 64}))
    other = ask()
    assert (restored(other), other["cache"]["miss_reason"]) == (0, "other_build")


def test_another_model_under_the_same_name(
    ask: Callable[..., dict[str, Any]], scripted_model: Callable[..., Path], tmp_path: Path, hello: Path
) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(hello, path)
    ask(model=path)
    assert restored(ask(model=path)) > 0
    path.unlink()
    shutil.copy(scripted_model(["Howdy", " there"], n_ctx=2048), path)
    other = ask(model=path, says="Howdy there")
    assert (restored(other), other["cache"]["miss_reason"]) == (0, "other_model")


def test_a_model_changed_in_place(ask: Callable[..., dict[str, Any]], tmp_path: Path, hello: Path) -> None:
    """Other bytes in the same file, of the same size, with the time put back: only the time of the change tells."""
    path = tmp_path / "m.gguf"
    shutil.copy(hello, path)
    ask(model=path)
    facts, data = path.stat(), path.read_bytes()
    assert data.count(b"Hello") == 1
    with open(path, "r+b") as file:
        file.write(data.replace(b"Hello", b"Howdy"))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    other = ask(model=path, says="Howdy world")
    assert (restored(other), other["cache"]["miss_reason"]) == (0, "other_model")


# ---- what the system refuses -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_mounts() -> Iterator[list[str]]:
    """The words in front of a shell script that may mount; the test is left out where that is not allowed."""
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    probe = [*words, "sh", "-c", 'mount -t tmpfs none "$1"', "sh", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this system allows no mounts of one's own")
    yield words


def run_in(words: list[str], script: str, folder: Path, *args: str | Path) -> Completed:
    """`script` with the folder as $1, then `llmcli run --json …`."""
    whole = script + '; shift; exec "$@"'
    return run_process(
        [*words, "sh", "-c", whole, "sh", folder, SCRIPT, "run", "-t", "1", "--json", "--temp", "0", *args],
        env=dict(os.environ),
    )


@linux
@pytest.mark.parametrize("size", ["16k", "600k"])
def test_a_full_disk(size: str, hello: Path, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with own_mounts() as words:
        script = f'mount -t tmpfs -o size={size},mode=700 none "$1"'
        done = run_in(words, script, folder, "-m", hello, "--cache-dir", folder, "-f", text, "What?")
    assert account(done)["text"] == "Hello world"
    assert done.err.startswith("the prefix store"), done.err


@linux
def test_files_that_may_not_grow(hello: Path, text: Path, tmp_path: Path) -> None:
    args = ("-m", hello, "--cache-dir", tmp_path / "s", "-f", text, "What?")
    done = run_in([], "ulimit -f 64", tmp_path, *args)  # 32 KiB
    assert account(done)["text"] == "Hello world"
    assert done.err.startswith("the prefix store"), done.err
    assert list((tmp_path / "s").rglob(".tmp-*")) == []


@linux
@pytest.mark.parametrize("filled", [True, False], ids=["filled", "empty"])
def test_a_read_only_disk(filled: bool, hello: Path, text: Path, tmp_path: Path, answer: Answer) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    args = ("-m", hello, "--cache-dir", folder, "-f", text, "What?")
    if filled:
        answer(*args[1:])
    with own_mounts() as words:
        script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
        found = account(done := run_in(words, script, folder, *args))
    assert (found["text"], restored(found) > 0) == ("Hello world", filled)
    assert done.err.startswith("the prefix store"), done.err


@pytest.mark.parametrize("place", ["root", "v1", "blocks", "index.sqlite", "fingerprints", "writers"])
@pytest.mark.parametrize("what", ["file", "folder", "broken-link"])
def test_something_else_in_the_place_of(
    place: str, what: str, ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    store = tmp_path / "s"
    path = {"root": store, "v1": store / "v1"}.get(place, store / "v1" / place)
    path.parent.mkdir(parents=True, exist_ok=True)
    if what == "file":
        path.write_text("not yours")
    elif what == "folder":
        (path / "inside").mkdir(parents=True)
    else:
        path.symlink_to(tmp_path / "nowhere")
    ask("--cache-dir", store)
    ask("--cache-dir", store)
    if what == "file" and place != "index.sqlite":
        assert path.read_text() == "not yours"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("umask", ["000", "077", "277"])
def test_permissions_whatever_the_umask(umask: str, hello: Path, text: Path, llmcli_home: Path) -> None:
    done = run_in([], f"umask {umask}", llmcli_home, "-m", hello, "-f", text, "What?")
    assert account(done)["text"] == "Hello world"
    store = store_of(llmcli_home)
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [store, *store.rglob("*")]}
    assert modes == {(True, 0o700), (False, 0o600)}


# ---- ended in the middle ---------------------------------------------------------------------------------------------


def start(*args: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [SCRIPT, "run", "-t", "1", "--temp", "0", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_blocks(store: Path, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(blocks_in(store)) < count:
        assert time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.01)


def test_ctrl_c_in_a_long_prefill_keeps_what_was_computed(
    run_cli: RunCli, scripted_model: Callable[..., Path], llmcli_home: Path, tmp_path: Path
) -> None:
    model = scripted_model(["Hello", " world"], n_ctx=16384)
    long = tmp_path / "long.txt"
    long.write_text("".join(f"{number:05}-the-quick-brown-fox-jumps-over...\n" for number in range(400)))
    child = start("-m", model, "-c", "16384", "-f", long, "What?")
    wait_for_blocks(store_of(llmcli_home), 4)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (130, b"\n", b"error: interrupted\n")
    kept = blocks_in(store_of(llmcli_home))
    assert 4 <= len(kept) < 50
    long.write_text(long.read_text()[:1000])
    # The interrupted run ended before its self-test: the next one makes up for it, then restores.
    found = account(run_cli("run", "-t", "1", "--temp", "0", "--json", "-m", model, "-f", long, "What?"))
    assert (found["text"], restored(found)) == ("Hello world", 960), found["cache"]
    assert list(store_of(llmcli_home).rglob(".tmp-*")) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_ended_by_a_signal(
    number: signal.Signals, run_cli: RunCli, scripted_model: Callable[..., Path], llmcli_home: Path, tmp_path: Path
) -> None:
    model = scripted_model(["tick", " tock"], loop=True, n_ctx=8192)
    long = tmp_path / "long.txt"
    long.write_text("".join(f"{number:05}-the-quick-brown-fox-jumps-over...\n" for number in range(40)))
    args = ("-m", model, "-c", "8192", "-f", long, "What?")
    child = start(*args)
    wait_for_blocks(store_of(llmcli_home), 2)
    child.send_signal(number)
    child.communicate(timeout=30)
    found = account(run_cli("run", "-t", "1", "--temp", "0", "-n", "3", "--json", *args))
    assert found["text"] == "tick tock tick".replace(" tick", "tick")
    assert list(store_of(llmcli_home).rglob(".tmp-*")) == []


def test_a_reader_that_goes_away(
    hello: Path, text: Path, llmcli_home: Path, ask: Callable[..., dict[str, Any]]
) -> None:
    script = '"$@" | true; echo done >&2'
    done = run_process(
        ["sh", "-c", script, "sh", SCRIPT, "run", "-t", "1", "--temp", "0", "-m", hello, "-f", text, "What?"],
        env=dict(os.environ),
    )
    assert (done.code, done.err) == (0, "done\n")
    store = store_of(llmcli_home)
    assert (list(store.rglob(".tmp-*")), list((store / "v1" / "writers").iterdir())) == ([], [])
    ask()
    assert restored(ask()) > 0


def test_a_shifted_context_is_no_prefix(answer: Answer, smollm2_path: Path, tmp_path: Path, llmcli_home: Path) -> None:
    """The answer overflows the context: what is stored is the prompt alone, and the next run starts from it."""
    story = tmp_path / "story.txt"
    story.write_text(STORY)
    args = ("-c", "192", "-n", "50", "--on-overflow", "shift", "--temp", "0", "-f", story, "Go on.")

    def run(*more: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(answer(smollm2_path, "--json", *args, *more).out)
        return found

    off, first, second = run("--cache", "off"), run(), run()
    assert off["usage"]["prompt_tokens"] + off["usage"]["completion_tokens"] > 192
    assert (first["text"], second["text"]) == (off["text"], off["text"])
    assert [restored(found) for found in (first, second)] == [0, 128]
    tokens = off["usage"]["prompt_tokens"] // 64 * 64
    assert len(blocks_in(store_of(llmcli_home))) == -(-tokens // 256)


# ---- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False], ids=["same", "different"])
def test_eight_at_once(same: bool, hello: Path, text: Path, tmp_path: Path, llmcli_home: Path) -> None:
    files = []
    for number in range(8):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(TEXT if same else f"{number}{TEXT}")
    children = [start("-m", hello, "-f", file, "What?") for file in files]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (0, b"Hello world\n", b"")
    store = store_of(llmcli_home)
    assert (list(store.rglob(".tmp-*")), list((store / "v1" / "writers").iterdir())) == ([], [])
    assert len(blocks_in(store)) == (4 if same else 32)
    check = run_process([SCRIPT, "cache", "verify"], env=dict(os.environ))
    assert check.code == 0, check.err


def test_the_store_is_cleared_while_runs_go_on(hello: Path, text: Path, ask: Callable[..., dict[str, Any]]) -> None:
    for turn in range(2):
        child = start("-m", hello, "-f", text, "What?")
        done = run_process(
            [SCRIPT, "cache", *(["clear", "--yes"] if turn % 2 else ["prune", "--yes"])], env=dict(os.environ)
        )
        out, err = child.communicate(timeout=60)
        assert (done.code, child.returncode, out, err) == (0, 0, b"Hello world\n", b"")
    ask()
    assert restored(ask()) > 0
