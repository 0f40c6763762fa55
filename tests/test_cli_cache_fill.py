"""`llmcli cache save`, `restore`, `warm`, and `llmcli run --prefix`, which goes on from what was saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cache_cli_case import STORED_TOKENS, TEXT, TEXT_TOKENS, Cache, cache

__all__ = ["cache"]


def test_save_computes_and_names(cache: Cache) -> None:
    found = cache.save("fox")
    assert (found["name"], found["tokens"], found["stored_tokens"]) == ("fox", TEXT_TOKENS, STORED_TOKENS)
    assert (found["restored_tokens"], found["computed_tokens"]) == (0, TEXT_TOKENS)
    (entry,) = [e for e in cache.json("ls") if e["names"]]
    assert (entry["names"], entry["pinned"], entry["tokens"], entry["key"]) == (["fox"], True, 308, found["key"])
    assert entry["model"]["name"] == cache.model.stem


def test_save_takes_what_is_stored(cache: Cache) -> None:
    first = cache.save("fox")
    again = cache.save("fox")
    assert again["key"] == first["key"]
    assert (again["restored_tokens"], again["computed_tokens"], again["written_bytes"]) == (256, 52, 0)


def test_saved_text_line(cache: Cache) -> None:
    code, out, err = cache("save", "a b", "-t", "1", "--no-stdin", "-f", cache.file())
    assert (code, err) == (0, "")
    assert out.startswith("a b: 308 tokens, 0 restored, 308 computed in ")


@pytest.mark.parametrize(
    "saved", [["-sys", "Be brief.", "-f", "FILE"], ["-f", "FILE"], ["-sys", TEXT], ["--raw", "-f", "FILE"]]
)
def test_run_prefix_asks_what_the_whole_run_asks(cache: Cache, saved: list[str]) -> None:
    """Its tokens are those of the whole command line: each finds what the other stored, to the last block."""
    saved = [cache.file() if word == "FILE" else word for word in saved]
    tokens = cache.json("save", "fox", "-t", "1", "--no-stdin", *saved)["tokens"]
    raw = [word for word in saved if word == "--raw"]
    by_name = cache.ask("--prefix", "fox", "Who jumps, and over what? " * 9)
    assert by_name["usage"]["restored_tokens"] == tokens // 64 * 64
    # 64-token steps: what the first call stored, its question included, is found by the second
    whole = cache.ask(*saved, "Who jumps, and over what? " * 9)
    assert whole["usage"]["prompt_tokens"] == by_name["usage"]["prompt_tokens"]
    assert whole["usage"]["restored_tokens"] == (whole["usage"]["prompt_tokens"] - 1) // 64 * 64
    cold = cache.ask(*saved, "--cache", "off", "Who jumps, and over what? " * 9)
    assert whole["text"] == by_name["text"] == cold["text"]
    if not raw:
        assert cache.llmcli("run", "--raw", "--prefix", "fox", "x")[0] == 2


def test_run_prefix_tells_no_difference_before_what_was_restored(cache: Cache) -> None:
    cache.ask("-f", cache.file(TEXT[::-1], "other.txt"), "Who?")
    cache.save("fox")
    first = cache.ask("--prefix", "fox", "Who?")
    assert (first["usage"]["restored_tokens"], first["cache"]["first_difference"]) == (STORED_TOKENS, None)
    second = cache.ask("--prefix", "fox", "Why?")["cache"]["first_difference"]
    assert second["position_tokens"] == TEXT_TOKENS + len("Wh")
    assert (second["stored"][-8:-6], second["prompt"][-8:-6]) != ("", "")


def test_run_prefix_goes_on_without_the_file_and_the_model_option(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save("fox")
    Path(cache.file(name="fox.txt")).unlink()
    monkeypatch.delenv("LLMCLI_MODEL")
    found = cache.ask("--prefix", "fox", "-f", cache.file("More text.", "more.txt"), "Who?")
    assert found["model"]["path"] == str(cache.model)
    assert found["usage"]["restored_tokens"] == STORED_TOKENS


def test_max_restores_to_the_last_token_that_every_question_shares(cache: Cache) -> None:
    cache.save("fox")
    assert cache.ask("--prefix", "fox", "--cache", "max", "Who?")["usage"]["restored_tokens"] == TEXT_TOKENS


def test_a_prefix_that_cannot_be_restored_is_computed_and_that_is_said(cache: Cache) -> None:
    cache.save("fox")
    code, out, err = cache.llmcli(
        "run", "--prefix", "fox", "-ctk", "q8_0", "-ctv", "q8_0", "-t", "1", "--no-stdin", "Who?"
    )
    assert (code, out) == (0, "Hello world\n")
    assert err.startswith("the saved prefix is computed again: nothing restored (other kv type: ")
    assert err.count("\n") == 1


def test_a_damaged_block_costs_time_and_no_answer(cache: Cache) -> None:
    cache.save("fox")
    expected = cache.ask("--prefix", "fox", "--cache", "off", "Who?")
    first = cache.json("show", "fox")["block_list"][0]["key"]
    (block,) = Path(cache.ok("path").rstrip("\n")).rglob(f"*-{first}.kv")
    data = bytearray(block.read_bytes())
    data[-1] ^= 1
    block.write_bytes(data)
    found = cache.ask("--prefix", "fox", "Who?")
    assert (found["text"], found["usage"]["restored_tokens"]) == (expected["text"], 0)
    assert found["cache"]["miss_reason"] == "damaged"
    assert cache.ask("--prefix", "fox", "Who?")["usage"]["restored_tokens"] > 0


def test_options_that_the_prefix_settles(cache: Cache) -> None:
    cache.save("fox")
    for flag, value in (("-sys", "x"), ("--chat-template", "chatml")):
        code, out, err = cache.llmcli("run", "--no-stdin", "--prefix", "fox", flag, value, "Who?")
        assert (code, out) == (2, "")
        assert "the prefix 'fox' settles that already" in err


def test_no_such_prefix(cache: Cache) -> None:
    expected = (1, "", "error: no stored prefix is called 'x' (llmcli cache ls)\n")
    assert cache.llmcli("run", "--no-stdin", "--prefix", "x", "Who?") == expected
    assert cache("restore", "x") == expected


def test_a_prefix_without_a_recipe(cache: Cache) -> None:
    cache.ask(TEXT)
    (entry,) = cache.json("ls")
    assert cache.ok("save", "plain", "--key", entry["key"][:8]) == "plain: 256 tokens\n"
    code, out, err = cache.llmcli("run", "--no-stdin", "--prefix", "plain", "Who?")
    assert (code, out) == (1, "")
    assert "'plain' does not say how a prompt goes on behind it" in err
    assert cache("save", "x", "--key", "abcd", "-sys", "y")[0] == 2


def test_a_name_that_is_given_again(cache: Cache) -> None:
    cache.save("fox")
    code, _, err = cache("save", "fox", "-t", "1", "--no-stdin", "-f", cache.file(TEXT[::-1]))
    assert (code, err) == (0, "fox stood for another prefix, which is not pinned any more\n")


def test_bad_names_and_empty_prefixes(cache: Cache) -> None:
    assert cache("save", "", "-f", cache.file())[0] == 2
    assert cache("save", "a\nb", "-f", cache.file())[0] == 2
    assert cache("save", "x", "--no-stdin")[:2] == (2, "")
    code, out, err = cache("save", "x", "--no-stdin", "-t", "1", "-sys", "Short.")
    assert (code, out) == (2, "")
    assert "and the store keeps from 64 on (--cache-min-tokens " in err
    assert cache.ok("save", "x", "--no-stdin", "-t", "1", "-sys", "Short.", "--cache-min-tokens", "8")


def test_a_prefix_that_does_not_fit(cache: Cache) -> None:
    code, out, err = cache("save", "x", "--no-stdin", "-t", "1", "-c", "256", "-f", cache.file())
    assert (code, out) == (4, "")
    assert "tokens and the context 256" in err
    assert "--on-overflow" not in err  # which only run has
    cache.save("fox")
    told = f"error: the prefix has {TEXT_TOKENS} tokens and the context 256 (-c {TEXT_TOKENS})\n"
    assert cache("restore", "fox", "-t", "1", "-c", "256") == (4, "", told)
    assert cache("restore", "fox", "-t", "1", "-c", str(TEXT_TOKENS))[0] == 0


def test_a_store_without_room(cache: Cache) -> None:
    code, out, err = cache("save", "x", "--no-stdin", "-t", "1", "--cache-max", "1K", "-f", cache.file())
    assert (code, out) == (6, "")
    assert "the prefix could not be kept" in err


def test_restore(cache: Cache) -> None:
    cache.save("fox")
    found = cache.json("restore", "fox", "-t", "1")
    assert found["tokens"] == TEXT_TOKENS
    assert found["read_bytes"] > 0
    code, out, err = cache("restore", "fox", "-t", "1", "-ctk", "q8_0", "-ctv", "q8_0")
    assert (code, out) == (3, "")
    assert err.startswith("error: fox does not fit: other kv type (")


def test_warm(cache: Cache) -> None:
    one, two = cache.file(TEXT, "one.txt"), cache.file(TEXT[:150], "two.txt")
    code, out, err = cache("warm", "--json", "-t", "1", one, str(cache.folder / "none.txt"), two)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert [line["file"] for line in lines] == [one, str(cache.folder / "none.txt"), two]
    assert [line.get("tokens") for line in lines] == [308, None, 158]
    assert [line.get("stored_tokens") for line in lines] == [256, None, 128]
    assert lines[1]["error"] == f"cannot read {cache.folder / 'none.txt'}: No such file or directory"
    assert err.splitlines()[0] == f"1 of 3: {one}"
    assert cache.ask("-f", one, "Who?")["usage"]["restored_tokens"] == 256
    code, out, err = cache("warm", "-q", "-t", "1", one)
    assert (code, err) == (0, "")
    assert out.startswith(f"{one}: 308 tokens, 256 restored, 52 computed in ")
    assert not any(entry["pinned"] for entry in cache.json("ls"))


def test_what_the_store_has_no_room_for_is_exit_6(cache: Cache) -> None:
    code, out, err = cache("warm", "--json", "-t", "1", "--cache-max", "1K", cache.file(TEXT, "one.txt"))
    assert (code, out) == (6, "")
    assert err.splitlines()[-1] == (
        "error: the prefix could not be kept: 0 of its 308 tokens were kept"
        " (llmcli cache stats, or a larger --cache-max)"
    )
    exported = str(cache.folder / "fox.kv")
    cache.save("fox")
    cache.ok("export", "fox", exported)
    cache.ok("clear", "--yes")
    code, out, err = cache("import", "--cache-max", "1K", exported)
    assert (code, out) == (6, "")
    assert "0 tokens were stored, then no more: " in err


def test_a_real_model(cache: Cache, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary that merges: the ids of the whole run are those of the prefix, whatever the question starts with."""
    monkeypatch.setenv("LLMCLI_MODEL", str(smollm2_path))
    tokens = cache.json("save", "fox", "-t", "1", "--no-stdin", "-sys", "Be brief.", "-f", cache.file())["tokens"]
    for question in ("Who?", "1 fox?", " \n who"):
        whole = cache.ask("-sys", "Be brief.", "-f", cache.file(), "--cache", "off", question)
        named = cache.ask("--prefix", "fox", question)
        assert named["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
        assert named["usage"]["restored_tokens"] == (tokens - 1) // 64 * 64
        assert named["text"] == whole["text"]
    assert cache.ask("--prefix", "fox", "--cache", "max", "Who?")["usage"]["restored_tokens"] == tokens
