"""The options of the prefix store: from command line, environment and config.toml to what the engine is told."""

from __future__ import annotations

import math
from pathlib import Path

import click
import pytest

from llmcli.cache_store.policy import DEFAULT_TTL_S
from llmcli.cli.cache_view import report_lines
from llmcli.cli.params import Duration, Size
from llmcli.engine.prefix_report import CacheReport
from tests.fixtures.ask import Ask


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    return Ask(monkeypatch, capfd)


def test_defaults(ask: Ask) -> None:
    cache = ask("hi", "--no-stdin").wanted.cache
    assert (cache.mode, cache.folder, cache.salt) == ("auto", None, "")
    assert (cache.policy.max_bytes, cache.policy.ttl_s, cache.policy.min_tokens) == (None, DEFAULT_TTL_S, 64)


def test_all_of_them(ask: Ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMCLI_CACHE_SALT", "tenant")
    args = ("--cache", "max", "--cache-dir", str(tmp_path), "--cache-max", "1.5G", "--cache-ttl", "7d")
    cache = ask("hi", "--no-stdin", *args, "--cache-min-tokens", "1").wanted.cache
    assert (cache.mode, cache.folder, cache.salt) == ("max", tmp_path, "tenant")
    assert (cache.policy.max_bytes, cache.policy.ttl_s, cache.policy.min_tokens) == (3 << 29, 7 * 86400.0, 1)
    assert ask("hi", "--no-stdin", "--cache-ttl", "never").wanted.cache.policy.ttl_s is None
    assert ask("hi", "--no-stdin", "--cache-max", "0").wanted.cache.policy.max_bytes == 0


def test_environment_and_config(ask: Ask, monkeypatch: pytest.MonkeyPatch, llmcli_home: Path) -> None:
    config = llmcli_home / "config" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('cache = "readonly"\ncache-max = 1024\ncache-ttl = "never"\ncache-dir = "~/kv"\n')
    cache = ask("hi", "--no-stdin").wanted.cache
    assert (cache.mode, cache.policy.max_bytes, cache.policy.ttl_s) == ("readonly", 1024, None)
    assert cache.folder == llmcli_home.parent / "home" / "kv"
    monkeypatch.setenv("LLMCLI_CACHE", "off")
    monkeypatch.setenv("LLMCLI_CACHE_MIN_TOKENS", "7")
    cache = ask("hi", "--no-stdin").wanted.cache
    assert (cache.mode, cache.policy.min_tokens) == ("off", 7)
    assert ask("hi", "--no-stdin", "--cache", "auto").wanted.cache.mode == "auto"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--cache", "some"), "'some' is not one of"),
        (("--cache-max", "4X"), "'4X' is not a size; write it like 512M, 4G or 1.5GiB"),
        (("--cache-max", "-1"), "'-1' is not a size"),
        (("--cache-ttl", "soon"), "'soon' is not a duration; write it like 30m, 12h or 7d"),
        (("--cache-min-tokens", "0"), "0 is not at least 1"),
        (("--cache-dir", ""), "--cache-dir: '' is not a folder's name"),
        (("--cache-dir", "~nobody-of-this-name/x"), "is not a folder's name"),
    ],
)
def test_values_that_are_refused(ask: Ask, args: tuple[str, ...], told: str) -> None:
    asked = ask("hi", "--no-stdin", *args)
    assert (asked.code, asked.out) == (2, "")
    assert told in asked.err


@pytest.mark.parametrize("value", [True, [1], None, "x", -1])
def test_types_refuse_what_is_no_number(value: object) -> None:
    for kind in (Size(), Duration()):
        with pytest.raises(click.BadParameter):
            kind.convert(value, None, None)


def test_types() -> None:
    assert Size().convert("2K", None, None) == 2048
    assert Size().convert(512, None, None) == 512
    assert Duration().convert(1.5, None, None) == 1.5
    assert Duration(or_never=True).convert(" Never", None, None) == math.inf
    assert Duration(or_never=True).convert(math.inf, None, None) == math.inf
    with pytest.raises(click.BadParameter):
        Duration().convert("never", None, None)


def test_lines_of_verbose() -> None:
    report = CacheReport("auto", read_bytes=2048, written_bytes=0, miss_reason="other_kv_type", miss_detail="a; b")
    report.first_difference = {"position_tokens": 1234, "stored": "one\ntwo", "prompt": "one \x1b"}
    assert report_lines(report) == [
        "cache: miss reason: other_kv_type (a; b)",
        "cache: 2.0 KiB read, 0 B written",
        "cache: first difference at token 1,234:",
        r'cache:   stored       "one\ntwo"',
        r'cache:   this prompt  "one \u001b"',
    ]
    assert report_lines(CacheReport("auto")) == ["cache: 0 B read, 0 B written"]
