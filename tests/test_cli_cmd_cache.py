"""`llmcli cache`: its table, its help, and looking at, moving, checking and removing what is stored."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

from llmcli.base.units import format_bytes
from llmcli.cli.cmd_cache import COMMANDS
from tests.cache_cli_case import TEXT, TEXT_TOKENS, Cache, cache
from tests.conftest import OpenTerminal
from tests.fixtures.cli_process import run_process

__all__ = ["cache"]


# ---- the group -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_tells_the_truth(name: str) -> None:
    module, attribute, summary = COMMANDS[name]
    command = getattr(import_module(f"llmcli.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    assert (command.name, summary[-1]) == (name, ".")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_is_ascii_and_fits_80_columns(name: str, cache: Cache) -> None:
    out = cache.ok(name, "--help")
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith(f"Usage: llmcli cache {name} [OPTIONS]")


@pytest.mark.parametrize(
    ("args", "heavy"),
    [
        (["--help"], ("llama_cpp", "numpy", "rich", "jinja2", "llmcli.engine", "llmcli.models", "llmcli.cache_store")),
        (["ls", "-q"], ("llama_cpp", "numpy", "rich", "jinja2", "huggingface_hub")),
    ],
)
def test_what_needs_no_model_imports_no_engine(args: list[str], heavy: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom llmcli.cli.main import call\n"
        f"assert call(['cache', *{args!r}]) == 0\n"
        f"print([n for n in sys.modules if n.startswith({heavy!r})], file=sys.stderr)"
    )
    done = run_process([sys.executable, "-c", code])
    assert (done.code, done.err) == (0, "[]\n")


def test_an_unknown_command_suggests(cache: Cache) -> None:
    assert cache("lss") == (
        2,
        "",
        "error: there is no command 'lss'; did you mean: llmcli cache ls (see llmcli cache --help)\n",
    )
    assert "did you mean: llmcli cache --help" in cache("xyzzy")[2]


def test_config_reaches_the_commands(cache: Cache, llmcli_home: Path) -> None:
    config = llmcli_home / "config" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('cache-dir = "/elsewhere"\n')
    assert cache.ok("path") == "/elsewhere\n"
    assert cache.ok("path", "--cache-dir", "/here") == "/here\n"


# ---- ls, show, stats, path -------------------------------------------------------------------------------------------


def test_an_empty_store(cache: Cache, llmcli_home: Path) -> None:
    told = "llmcli run keeps prompts of 64 tokens and more; llmcli cache save NAME -f FILE keeps one by name\n"
    assert cache("ls") == (0, "", f"nothing is stored yet: {told}")
    assert cache("ls", "-m", str(cache.model)) == (0, "", f"nothing is stored for this model yet: {told}")
    assert cache.json("ls") == []
    assert cache.json("stats")["blocks"] == 0
    assert cache.ok("path") == f"{llmcli_home / 'cache' / 'prefixes'}\n"
    assert cache.json("verify")["problems"] == []


def test_ls(cache: Cache) -> None:
    cache.save("a b", "\x1b[31m\u202e" + TEXT)
    cache.ask("-f", cache.file(), "Who?")
    out = cache.ok("ls")
    title, header, *rows = out.splitlines()
    assert title.startswith(f"{cache.model.stem} (")
    assert title.endswith("), KV f16/f16")
    assert header.split() == ["KEY", "TOKENS", "BYTES", "OWN", "AGE", "USED", "HITS", "NAME", "TEXT"]
    assert len(rows) == len(cache.json("ls"))
    (named,) = [row for row in rows if "  a b  " in row]
    assert named.split("  a b  ")[1].lstrip().startswith(r"\x1b[31m\u202eThe-quick-brown-fox-")
    tokens = [entry["tokens"] for entry in cache.json("ls", "--sort", "tokens")]
    assert tokens == sorted(tokens, reverse=True)


def test_hits_count_the_uses_of_a_named_prefix(cache: Cache) -> None:
    """Its last tokens lie off the grid, so `auto` restores none of them; asking goes on from it all the same."""
    cache.save("fox")
    cache.save("dog", TEXT[::-1])
    for question in ("Who?", "Why?"):
        assert cache.ask("--prefix", "fox", question)["usage"]["restored_tokens"] > 0
    by_name = {entry["names"][0]: entry for entry in cache.json("ls", "--sort", "hits") if entry["names"]}
    assert [(name, entry["hits"]) for name, entry in by_name.items()] == [("fox", 2), ("dog", 0)]
    assert by_name["fox"]["unused_s"] < by_name["dog"]["unused_s"]
    assert cache.json("show", "fox")["hits"] == 2
    assert "hits     2\n" in cache.ok("show", "fox")


def test_looking_at_the_store_lets_nothing_expire(cache: Cache, llmcli_home: Path) -> None:
    """A run may be told to keep for ever; a command that has no such option must not know better."""
    cache.ask(TEXT)
    store = Path(cache.ok("path").rstrip("\n"))
    for block in store.rglob("*.kv"):
        os.utime(block, (1, 1))
    (store / "v1" / "index.sqlite").unlink()
    for command in (["ls"], ["stats"], ["verify", "-q"]):
        cache.ok(*command)
    assert len(cache.json("ls")) == 1
    assert cache.json("prune", "--cache-ttl", "never", "--yes")["plan"] == []
    assert [block["reason"] for block in cache.json("prune", "--yes", "-q")["plan"]] in ([], ["unused for long"])


@pytest.mark.parametrize(
    ("command", "has"),
    [
        ("ls", ()), ("show", ()), ("rm", ()), ("clear", ()), ("export", ()), ("restore", ()), ("verify", ()),
        ("stats", ("--cache-max",)),
        ("prune", ("--cache-max", "--cache-ttl")),
        ("import", ("--cache-max", "--cache-ttl")),
        ("save", ("--cache-max", "--cache-ttl", "--cache-min-tokens")),
        ("warm", ("--cache-max", "--cache-ttl", "--cache-min-tokens")),
    ],
)  # fmt: skip
def test_each_command_has_the_options_that_decide_something_in_it(
    cache: Cache, command: str, has: tuple[str, ...]
) -> None:
    out = cache.ok(command, "--help")
    every = ("--cache-max", "--cache-ttl", "--cache-min-tokens")
    assert tuple(name for name in every if f"  {name} " in out) == has
    assert "  --cache-dir " in out


def test_ls_of_one_model(cache: Cache, scripted_model: Callable[..., Path]) -> None:
    cache.save("fox")
    other = scripted_model(["Other"], n_ctx=2048)
    assert len(cache.json("ls", "-m", str(cache.model))) == len(cache.json("ls"))
    assert cache.json("ls", "-m", str(other)) == []
    assert cache("ls", "-m", "/none.gguf")[0] == 3


def test_show(cache: Cache) -> None:
    key = cache.save("fox", TEXT, "-sys", "Be\x1bbrief.")["key"]
    found = cache.json("show", "fox")
    assert (found["key"], found["names"], found["tokens"]) == (key, ["fox"], found["tokens"])
    assert found["text"].startswith("<|im_start|>system\nBe\x1bbrief.<|im_end|>\n<|im_start|>user\nThe-quick")
    assert found["text"].endswith(TEXT.rstrip("\n") + "\n\n")
    assert sum(block["tokens"] for block in found["block_list"]) == found["tokens"]
    assert sum(block["file_bytes"] for block in found["block_list"]) == found["chain_bytes"]
    assert [part["name"] for part in found["recipe"]["parts"]] == [str(cache.folder / "fox.txt")]
    assert cache.ok("show", key[:8], "--text") == found["text"] + "\n"
    lines = cache.ok("show", key[:8]).splitlines()
    assert lines[:2] == [f"key      {key}", "name     fox (pinned)"]
    assert f"made of  the system prompt, {cache.folder / 'fox.txt'}; as a chat" in lines


def test_show_what_a_run_stored(cache: Cache, scripted_model: Callable[..., Path]) -> None:
    cache.ask(TEXT)
    (entry,) = cache.json("ls")
    key = entry["key"]
    assert cache.json("show", key)["text"] is None
    assert "beginnings of the blocks\n" in cache.ok("show", key)
    code, out, err = cache("show", key, "--text")
    assert (code, out, err) == (1, "", "error: the text is not stored, only its tokens are (-m MODEL reads them)\n")
    whole = cache.ok("show", key, "--text", "-m", str(cache.model))
    assert whole == "<|im_start|>user\n" + TEXT[:250] + "\n"
    other = str(scripted_model(["Other"], n_ctx=2048))
    assert cache("show", key, "-m", other)[0] == 3
    assert cache("show", "zz")[:2] == (1, "")
    assert cache("show", "00000000")[:2] == (1, "")


def test_stats(cache: Cache) -> None:
    cache.save("fox")
    cache.ask("--prefix", "fox", "Who?")
    found = cache.json("stats")
    prompt = TEXT_TOKENS + len("Who?") + len("<|im_end|>\n<|im_start|>assistant\n") - len("<|im_end|><|im_start|>") + 2
    assert found["billing"]["hit_tokens"] == 256
    assert found["billing"]["miss_tokens"] == TEXT_TOKENS + prompt - 256
    assert (found["prompts"], found["prompts_with_hits"], found["pinned"]) == (2, 1, 1)
    assert found["billing"]["hit_rate"] == pytest.approx(256 / (TEXT_TOKENS + prompt))
    assert found["dedupe_ratio"] >= 1
    text = cache.ok("stats")
    assert f"tokens   256 hit, {TEXT_TOKENS + prompt - 256} missed: " in text


# ---- export, import --------------------------------------------------------------------------------------------------


def test_export_and_import(cache: Cache, tmp_path: Path) -> None:
    saved = cache.save("fox")
    target = tmp_path / "fox.kv"
    done = cache.json("export", "fox", str(target))
    assert (done["key"], done["tokens"], done["file_bytes"]) == (saved["key"], 308, target.stat().st_size)
    assert target.stat().st_mode & 0o777 == 0o600
    code, out, err = cache("export", "fox", str(target))
    assert (code, out, err) == (1, "", f"error: {target} is there already (--force replaces it)\n")
    assert cache("export", "fox", str(target), "--force")[0] == 0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, tmp_path):
        assert cache("export", "fox", str(place), "--force") == (
            2,
            "",
            f"error: {place} is a directory or a device; export writes a file\n",
        )
    assert pipe.is_fifo()
    gone = tmp_path / "gone" / "fox.kv"
    assert cache("export", "fox", str(gone)) == (1, "", f"error: {gone}: No such file or directory\n")
    cache.ok("clear", "--yes", "-q")
    code, out, err = cache("import", str(target), "--name", "copy")
    assert (code, err) == (0, "")
    assert out.startswith("copy: 308 tokens for the model ")
    assert ", which is not known here, " in out
    named = cache("import", str(target), "-t", "1", "-m", str(cache.model))[1]
    assert f": 308 tokens for {cache.model.stem} (" in named
    assert cache.json("import", str(target))["model"]["name"] == cache.model.stem  # from now on it is known
    assert cache.json("ls")[0]["key"] == saved["key"]
    # The self-test's result stayed behind: the first run on this machine makes its own.
    cache.ask("--prefix", "copy", "Who?")
    assert cache.ask("--prefix", "copy", "Who?")["usage"]["restored_tokens"] == 320 // 64 * 64


def test_import_refuses_what_does_not_fit(
    cache: Cache, tmp_path: Path, scripted_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save("fox")
    target = tmp_path / "fox.kv"
    cache.ok("export", "fox", str(target))
    cache.ok("clear", "--yes", "-q")
    assert cache("import", str(target), "-t", "1", "-m", str(cache.model))[0] == 0
    other = str(scripted_model(["Other"], n_ctx=2048))
    code, out, err = cache("import", str(target), "-t", "1", "-m", other)
    assert (code, out) == (3, "")
    assert f"{target} does not fit: other model (model: stored " in err
    assert "other kv type" in cache("import", str(target), "-t", "1", "-m", str(cache.model), "-ctk", "f32")[2]
    from llmcli.engine import preflight

    monkeypatch.setattr(preflight, "check_build", lambda settings: preflight.EngineBuild("0" * 64))
    code, out, err = cache("import", str(target))
    told = f"error: {target} does not fit: another build of llama.cpp computed it (llmcli doctor)\n"
    assert (code, out, err) == (3, "", told)


def test_import_of_something_else(cache: Cache, tmp_path: Path) -> None:
    assert cache("import", str(tmp_path / "none"))[:2] == (2, "")
    assert cache("import", str(tmp_path))[:2] == (2, "")
    assert cache("import", cache.file())[:2] == (1, "")
    cache.save("fox")
    target = tmp_path / "fox.kv"
    cache.ok("export", "fox", str(target))
    data = bytearray(target.read_bytes())
    data[-1] ^= 1
    target.write_bytes(data)
    assert cache("import", str(target))[:2] == (1, "")
    assert cache("import", str(target), "--name", "")[0] == 2


# ---- rm, prune, clear ------------------------------------------------------------------------------------------------


def test_rm(cache: Cache) -> None:
    cache.save("fox")
    cache.save("dog", TEXT[::-1])
    before = {entry["names"][0]: entry for entry in cache.json("ls") if entry["names"]}
    code, out, err = cache("rm", "fox", "--dry-run")
    assert (code, err) == (0, "")
    fox = before["fox"]["private_bytes"]
    assert out.splitlines() == [
        f"  to remove: {before['fox']['blocks']} blocks, {format_bytes(fox)}",
        "  to remove: the name fox",
        f"  {format_bytes(fox)} would be freed, {format_bytes(before['dog']['chain_bytes'])} would stay",
    ]
    code, out, err = cache("rm", "fox")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "error: nothing was removed: this asks first, and there is no terminal (--yes, or --dry-run)"
    )
    assert "fox" in str(cache.json("ls"))
    done = cache.json("rm", "fox", "--yes", "-q")
    assert (done["removed_bytes"], done["planned_bytes"]) == (before["fox"]["private_bytes"],) * 2
    assert [e["names"] for e in cache.json("ls") if e["names"]] == [["dog"]]
    assert cache("rm", "fox", "--yes")[:2] == (1, "")


def test_rm_leaves_what_others_need(cache: Cache) -> None:
    cache.save("long", TEXT + "x" * 300)
    cache.save("short", TEXT)
    cache.ok("rm", "short", "-y", "-q")
    assert cache.json("verify")["problems"] == []
    assert cache.ask("--prefix", "long", "Who?")["usage"]["restored_tokens"] >= 576


def test_rm_of_several_frees_what_only_they_share(cache: Cache) -> None:
    cache.save("one", TEXT + "x" * 100)
    cache.save("two", TEXT + "y" * 100)
    keys = [entry["key"] for entry in cache.json("ls")]
    cache.ok("rm", "-y", "-q", *keys)
    assert cache.json("stats")["blocks"] == 0


def test_unpin(cache: Cache) -> None:
    key = cache.save("fox")["key"]
    assert cache.ok("rm", "--unpin", "fox", "-y", "-q") == "the name fox is taken away\n"
    assert [e["key"] for e in cache.json("ls") if e["pinned"]] == []
    assert key in [e["key"] for e in cache.json("ls")]
    assert cache("rm", "--unpin", key, "-y")[:2] == (1, "")


def test_prune(cache: Cache) -> None:
    cache.save("fox")
    cache.ask(TEXT[::-1])
    assert cache("prune", "--yes") == (0, "there is nothing to remove\n", "")
    assert cache("prune", "--dry-run") == (0, "there is nothing to remove\n", "")
    plan = cache.json("prune", "--max", "0", "--dry-run")
    assert (plan["dry_run"], plan["removed_blocks"]) == (True, 0)
    assert {block["reason"] for block in plan["plan"]} == {"over the budget"}
    done = cache.json("prune", "--max", "0", "--yes", "-q")
    assert done["removed_bytes"] == plan["planned_bytes"] > 0
    assert [entry["names"] for entry in cache.json("ls")] == [["fox"]]
    assert cache.json("prune", "--unused", "1d", "--dry-run")["plan"] == []
    assert cache.json("prune", "--ttl", "0", "--dry-run")["plan"] == []  # pinned


def test_prune_of_one_model_and_of_old_builds(
    cache: Cache, scripted_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.ask(TEXT)
    other = str(scripted_model(["Other"], n_ctx=2048))
    assert cache.json("prune", "--dry-run", "-m", other)["plan"] == []
    assert cache.json("prune", "--dry-run", "--old-builds")["plan"] == []
    assert len(cache.json("prune", "--dry-run", "-m", str(cache.model))["plan"]) == 1
    from llmcli.engine import preflight

    monkeypatch.setattr(preflight, "check_build", lambda settings: preflight.EngineBuild("0" * 64))
    assert len(cache.json("prune", "--dry-run", "--old-builds")["plan"]) == 1


def test_clear(cache: Cache) -> None:
    cache.save("fox")
    code, out, err = cache("clear", "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("  to remove: all 2 blocks, ")
    assert out.endswith("; 1 pinned with them\n")
    assert cache("clear")[0] == 2
    assert cache("clear", "--yes", "-q")[0] == 0
    assert cache.json("ls") == []


@pytest.mark.parametrize(("answer", "left"), [("y", 0), ("n", 1), ("", 1)])
def test_the_question_at_a_terminal(cache: Cache, open_terminal: OpenTerminal, answer: str, left: int) -> None:
    cache.save("fox")
    with open_terminal("cache", "clear") as terminal:
        terminal.read_until("remove everything? [y/N] ")
        terminal.send(answer + "\n")
        terminal.read_until(" removed")
        assert terminal.wait() == 0
    assert len([entry for entry in cache.json("ls") if entry["names"]]) == left


# ---- verify ----------------------------------------------------------------------------------------------------------


def test_verify(cache: Cache) -> None:
    cache.save("fox")
    assert cache.ok("verify").endswith(": sound\n")
    found = cache.json("verify", "--logits", "-t", "1", "-q")
    assert all(one["equal"] and one["largest_logit_difference"] == 0 for one in found["logits"])
    assert len(found["logits"]) >= 1
    path = Path(cache.ok("path").rstrip("\n"))
    block = max(path.rglob("*.kv"), key=lambda file: file.stat().st_size)
    data = bytearray(block.read_bytes())
    data[-1] ^= 1
    block.write_bytes(data)
    code, out, _ = cache("verify", "--json")
    (problem, *_) = json.loads(out)["problems"]
    assert (code, problem["removed"], os.path.basename(problem["path"])) == (1, False, block.name)
    assert cache("verify", "--repair")[0] == 0
    assert cache("verify")[0] == 0
    assert not block.exists()


# ---- why -------------------------------------------------------------------------------------------------------------


def test_why(cache: Cache) -> None:
    one = cache.file("Today-is 2024-05-01. " + TEXT, "one.txt")
    other = cache.file("Today-is 2024-05-02. " + TEXT, "two.txt")
    found = cache.json("why", one, other)
    assert found["shared_tokens"] == 6 + len("Today-is") + 3 + len("2024-05-0")
    assert found["restored_tokens"] == 0
    assert found["first_difference"]["position_tokens"] == found["shared_tokens"]
    assert found["if_changes_came_last"]["shared_tokens"] > 300
    lines = cache.ok("why", one, other).splitlines()
    assert lines[-2] == (
        "advice: a date or a time changes (2024-05-01 / 2024-05-02): put it behind what stays the same, or leave it out"
    )
    assert lines[-1].startswith("if what changes came last: ")
    assert lines[1].startswith(f"shared: {found['shared_tokens']} tokens, of which a run restores none: fewer than 64 ")
    assert lines[1].endswith(": " + found["nothing_restored_because"])
    raw = cache.json("why", "--raw", "abc", "abd")
    assert (raw["a_tokens"], raw["shared_tokens"]) == (3, 2)
    assert cache.ok("why", "abc", "abc").splitlines()[-1] == "the prompts are the same"
    assert cache("why", "--raw", "--chat-template", "chatml", "a", "b")[0] == 2


def test_why_with_a_real_model(cache: Cache, smollm2_path: Path) -> None:
    found = cache.json("why", "-m", str(smollm2_path), "-sys", "Be brief.", "It is May 1. Hello", "It is May 2. Hello")
    assert found["first_difference"]["a"].endswith("user\nIt is May 1. Hello<|im_end|>\n<|im_start|>assistant")
    assert found["advice"] == ["a number changes (1 / 2): put it behind what stays the same, or leave it out"]


def test_a_store_that_cannot_be_used(cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    line = f"error: the prefix store at {tmp_path / 'file'} cannot be used (Not a directory)\n"
    assert cache("ls", "--cache-dir", str(tmp_path / "file")) == (1, "", line)
