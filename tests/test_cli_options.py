"""Every flag of `llmcli run` reaches the place it is for, from the command line, the environment and config.toml."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmcli.cli import cmd_completion, cmd_doctor, cmd_run, cmd_tokenize
from llmcli.engine.lora import Lora
from llmcli.engine.prompt import PromptPart
from tests.fixtures.ask import REACHED, Ask

COMMANDS = [cmd_run.command, cmd_tokenize.command, cmd_doctor.command, cmd_completion.command]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option: its names, two values as text, and where the first of them has to arrive, and as what.

    place   attributes below the AnswerRequest; or "params.x": what the command does with it is tested elsewhere
    toml    the first value in config.toml, where that is not its text
    """

    names: str
    text: str
    other: str
    place: str
    arrives: Any
    toml: Any = None

    @property
    def long(self) -> str:
        return self.names.split()[-1]

    @property
    def is_switch(self) -> bool:
        return isinstance(self.arrives, bool)

    @property
    def variable(self) -> str:
        return "LLMCLI_" + self.key.upper()

    @property
    def key(self) -> str:
        return self.long[2:].replace("-", "_")

    def in_config(self, *, other: bool = False) -> str:
        value: Any = self.other if other else self.text if self.toml is None else self.toml
        return f"{self.key} = {json.dumps(value, ensure_ascii=False)}\n"


def switch(names: str, place: str, *, arrives: bool = True) -> Flag:
    return Flag(names, "1", "0", place, arrives, toml=True)


def number(names: str, text: str, other: str, place: str, arrives: Any = None) -> Flag:
    value = json.loads(text)
    return Flag(names, text, other, place, value if arrives is None else arrives, toml=value)


FLAGS = [
    Flag("-m --model", "a.gguf", "b.gguf", "reference", "a.gguf"),
    Flag("-p --prompt", "one", "two", "parts", (PromptPart("argument", "prompt", "one"),)),
    Flag("-f --file", "a b.txt", "c.txt", "parts", (PromptPart("file", "a b.txt", "A"),), toml=["a b.txt"]),
    Flag("-sys --system-prompt", "Be brief.", "x", "system", "Be brief."),
    Flag("-sysf --system-prompt-file", "a b.txt", "c.txt", "system", "A"),
    number("-n --predict", "7", "8", "max_tokens"),
    Flag("--stop", "a b", "c", "stops", ("a b",), toml=["a b"]),
    switch("--raw", "raw"),
    Flag("--chat-template", "gemma", "zephyr", "template", "gemma"),
    Flag("--reasoning", "hide", "only", "params.reasoning", "hide"),
    Flag("--on-overflow", "middle", "shift", "overflow", "middle"),
    switch("--fail-on-length", "params.fail_on_length"),
    switch("--no-stdin", "params.no_stdin"),
    switch("--no-stream", "params.no_stream"),
    switch("--json", "params.json"),
    switch("--stats", "params.stats"),
    switch("-q --quiet", "params.quiet"),
    switch("-v --verbose", "params.verbose"),
    Flag("--cache", "max", "off", "cache.mode", "max"),
    Flag("--cache-dir", "a b", "c", "cache.folder", Path("a b")),
    Flag("--cache-max", "2K", "1", "cache.policy.max_bytes", 2048),
    Flag("--cache-ttl", "7d", "1", "cache.policy.ttl_s", 604800.0),
    number("--cache-min-tokens", "7", "8", "cache.policy.min_tokens"),
    number("-c --ctx-size", "512", "1024", "plan.n_ctx"),
    number("-b --batch-size", "128", "64", "plan.n_batch"),
    number("-ub --ubatch-size", "32", "64", "plan.n_ubatch"),
    number("-t --threads", "1", "2", "plan.n_threads"),
    number("-tb --threads-batch", "3", "4", "plan.n_threads_batch"),
    number("-ngl --n-gpu-layers", "99", "0", "plan.n_gpu_layers"),
    Flag("-fa --flash-attn", "on", "off", "plan.flash_attn", "on"),
    Flag("-ctk --cache-type-k", "q8_0", "f32", "plan.type_k", "q8_0"),
    Flag("-ctv --cache-type-v", "bf16", "f32", "plan.type_v", "bf16"),
    switch("--no-mmap", "plan.use_mmap", arrives=False),
    switch("--mlock", "plan.use_mlock"),
    Flag("--lora", "a b.txt:0.5", "c.txt", "loras", (Lora(Path("a b.txt"), 0.5),), toml=["a b.txt:0.5"]),
    Flag("--rope-scaling", "yarn", "none", "rope.scaling", "yarn"),
    number("--rope-scale", "4.0", "2", "rope.freq_scale", 0.25),
    number("--rope-freq-base", "500000.0", "1", "rope.freq_base"),
    number("--rope-freq-scale", "0.5", "1", "rope.freq_scale"),
    number("--yarn-orig-ctx", "2048", "1", "rope.yarn_orig_ctx"),
    number("--yarn-ext-factor", "-1.5", "1", "rope.yarn_ext_factor"),
    number("--yarn-attn-factor", "1.25", "1", "rope.yarn_attn_factor"),
    number("--yarn-beta-fast", "31.5", "1", "rope.yarn_beta_fast"),
    number("--yarn-beta-slow", "0.5", "1", "rope.yarn_beta_slow"),
    number("-s --seed", "42", "43", "sampling.seed"),
    number("--temp", "0.25", "1", "sampling.temp"),
    number("--top-k", "7", "8", "sampling.top_k"),
    number("--top-p", "0.5", "1", "sampling.top_p"),
    number("--min-p", "0.125", "1", "sampling.min_p"),
    number("--top-nsigma", "1.5", "1", "sampling.top_n_sigma"),
    number("--typical", "0.5", "1", "sampling.typical_p"),
    number("--repeat-penalty", "1.25", "1", "sampling.repeat_penalty"),
    number("--repeat-last-n", "-1", "1", "sampling.repeat_last_n"),
    number("--presence-penalty", "-0.5", "1", "sampling.presence_penalty"),
    number("--frequency-penalty", "0.5", "1", "sampling.frequency_penalty"),
    number("--dry-multiplier", "0.5", "1", "sampling.dry_multiplier"),
    number("--dry-base", "2.5", "1", "sampling.dry_base"),
    number("--dry-allowed-length", "3", "1", "sampling.dry_allowed_length"),
    number("--dry-penalty-last-n", "99", "1", "sampling.dry_penalty_last_n"),
    number("--xtc-probability", "0.5", "1", "sampling.xtc_probability"),
    number("--xtc-threshold", "0.25", "1", "sampling.xtc_threshold"),
    number("--mirostat", "2", "1", "sampling.mirostat"),
    number("--mirostat-ent", "4.5", "1", "sampling.mirostat_tau"),
    number("--mirostat-lr", "0.25", "1", "sampling.mirostat_eta"),
    Flag("-l --logit-bias", "5-1.5", "6+1", "sampling.logit_bias", {5: -1.5}, toml=["5-1.5"]),
    switch("--ignore-eos", "sampling.ignore_eos"),
    Flag("--grammar", 'root ::= "x"', 'root ::= "y"', "sampling.grammar", 'root ::= "x"'),
    Flag("--grammar-file", "x.gbnf", "y.gbnf", "sampling.grammar", 'root ::= "x"\n'),
]
BY_LONG = {flag.long: flag for flag in FLAGS}
NUMBERS = [flag for flag in FLAGS if re.fullmatch(r"-?[\d.]+", flag.text) and not flag.is_switch]


@pytest.fixture(autouse=True)
def _files(llmcli_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = llmcli_home.parent / "home"
    for name, text in {"a b.txt": "A", "c.txt": "C", "x.gbnf": 'root ::= "x"\n', "y.gbnf": 'root ::= "y"'}.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    return Ask(monkeypatch, capfd)


@pytest.fixture
def configure(llmcli_home: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = llmcli_home / "config" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def arrived(asked: Any, flag: Flag) -> Any:
    assert asked.code == REACHED, asked.err
    if flag.place.startswith("params."):
        return asked.params[flag.place.partition(".")[2]]
    return attrgetter(flag.place)(asked.request)


def words(flag: Flag) -> list[str]:
    """A prompt, unless the flag gives one."""
    return [] if flag.place == "parts" else ["hi"]


def test_no_flag_is_left_out() -> None:
    options = [param for param in cmd_run.command.params if isinstance(param, click.Option)]
    assert sorted(" ".join(sorted(o.opts, key=len)) for o in options) == sorted(
        # --prefix needs something that was saved: tests/test_cli_cache_fill.py; --session: tests/test_cli_cmd_chat.py
        ["--prefix", "--session", *(flag.names for flag in FLAGS)]
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.callback.__module__)
def test_every_option_goes_by_its_long_name_everywhere(command: click.Command) -> None:
    for param in command.params:
        if isinstance(param, click.Option):
            key = max(param.opts, key=len)[2:].replace("-", "_")
            assert (param.name, param.envvar) == (key, f"LLMCLI_{key.upper()}")


@pytest.mark.parametrize("flag", FLAGS, ids=lambda f: f.long)
def test_flag(flag: Flag, ask: Ask) -> None:
    for name in flag.names.split():
        given = [name] if flag.is_switch else [name, flag.text]
        assert arrived(ask(*given, *words(flag)), flag) == flag.arrives
        assert arrived(ask(*words(flag), *given), flag) == flag.arrives
    assert arrived(ask("hi"), flag) != flag.arrives


@pytest.mark.parametrize("flag", FLAGS, ids=lambda f: f.long)
def test_precedence_is_flag_environment_config(
    flag: Flag, ask: Ask, monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]
) -> None:
    configure(flag.in_config())
    assert arrived(ask(*words(flag)), flag) == flag.arrives
    configure(flag.in_config(other=True))
    monkeypatch.setenv(flag.variable, flag.text)
    assert arrived(ask(*words(flag)), flag) == flag.arrives
    monkeypatch.setenv(flag.variable, flag.other)
    given = [flag.long] if flag.is_switch else [flag.long, flag.text]
    assert arrived(ask(*given, *words(flag)), flag) == flag.arrives
    monkeypatch.setenv(flag.variable, "")
    configure(flag.in_config())
    assert arrived(ask(*words(flag)), flag) == flag.arrives


@pytest.mark.parametrize("flag", [f for f in FLAGS if f.toml and isinstance(f.toml, list)], ids=lambda f: f.long)
def test_what_may_be_repeated(
    flag: Flag, ask: Ask, monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]
) -> None:
    both = arrived(ask(flag.long, flag.text, flag.long, flag.other, *words(flag)), flag)
    assert len(both) == 2
    monkeypatch.setenv(flag.variable, f"{flag.text}\n{flag.other}\n")
    assert arrived(ask(*words(flag)), flag) == both
    monkeypatch.delenv(flag.variable)
    configure(f"{flag.key} = {json.dumps([flag.text, flag.other])}")
    assert arrived(ask(*words(flag)), flag) == both
    configure(f"{flag.key} = {json.dumps(flag.text)}")
    assert arrived(ask(*words(flag)), flag) == flag.arrives


@pytest.mark.parametrize("form", [["-ngl", "99"], ["-ngl=99"], ["--n-gpu-layers=99"], ["--n-gpu-layers", "99"]])
def test_forms_of_a_flag(form: list[str], ask: Ask) -> None:
    assert ask(*form, "hi").wanted.plan.n_gpu_layers == 99
    assert ask("hi", *form).wanted.plan.n_gpu_layers == 99


def test_one_letter_flags_may_stick_to_their_value(ask: Ask) -> None:
    wanted = ask("-c512", "-t3", "-s7", "-n5", "hi").wanted
    assert (wanted.plan.n_ctx, wanted.plan.n_threads, wanted.sampling.seed, wanted.max_tokens) == (512, 3, 7, 5)


def test_a_prompt_that_begins_with_a_dash(ask: Ask) -> None:
    assert ask("-n", "3", "--", "-x", "y").wanted.parts == (PromptPart("argument", "prompt", "-x y"),)
    asked = ask("-xyz")
    assert (asked.code, asked.request) == (2, None)


def test_the_defaults(ask: Ask) -> None:
    wanted = ask("hi").wanted
    plan, sampling = wanted.plan, wanted.sampling
    assert (plan.n_ctx, plan.n_threads, plan.n_gpu_layers, plan.use_mmap, plan.rope_scaled) == (
        None,
        None,
        None,
        True,
        False,
    )
    assert (sampling.temp, sampling.top_k, sampling.top_p, sampling.min_p) == (0.8, 40, 0.95, 0.05)
    assert (wanted.max_tokens, wanted.overflow, wanted.reference, wanted.template) == (None, "error", None, None)
    assert 0 <= sampling.seed < 0xFFFFFFFF


def test_a_random_seed_is_another_one_each_time(ask: Ask) -> None:
    assert len({ask("-s", "-1", "hi").wanted.sampling.seed for _ in range(8)}) > 1


def test_minus_one_is_no_limit(ask: Ask) -> None:
    assert ask("-n", "-1", "hi").wanted.max_tokens is None
    assert ask("-n", "0", "hi").wanted.max_tokens == 0


@pytest.mark.parametrize("flag", [f for f in FLAGS if f.place.startswith("rope.")], ids=lambda f: f.long)
def test_scaled_positions_are_known_to_the_plan(flag: Flag, ask: Ask) -> None:
    assert ask(flag.long, flag.text, "hi").wanted.plan.rope_scaled is True


# ---- two that say the same -------------------------------------------------------------------------------------------

RIVALS = [
    (["--grammar", 'root ::= "x"', "--grammar-file", "x.gbnf"], "--grammar and --grammar-file both give a grammar"),
    (["--rope-scale", "2", "--rope-freq-scale", "2"], "--rope-scale and --rope-freq-scale are the same setting"),
    (["-sys", "a", "-sysf", "c.txt"], "the system prompt was given twice: with -sys and with -sysf"),
    (["-p", "a"], "the prompt was given twice: with -p and as an argument"),
    (["--raw", "--chat-template", "gemma"], "--raw uses no template, so --chat-template cannot go with it"),
]


@pytest.mark.parametrize(("given", "message"), RIVALS)
def test_two_that_say_the_same(given: list[str], message: str, ask: Ask) -> None:
    asked = ask(*given, "hi")
    assert (asked.code, asked.out) == (2, "")
    assert asked.err.startswith(f"error: {message}")
    assert asked.err.count("\n") == 1


def test_the_command_line_beats_a_rival_in_the_environment(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, configure: Callable[[str], Path]
) -> None:
    configure('chat_template = "gemma"\nprompt = "config"\nrope_scale = 4')
    for name, value in {
        "GRAMMAR": 'root ::= "env"',
        "PROMPT": "env",
        "SYSTEM_PROMPT_FILE": "c.txt",
        "ROPE_FREQ_SCALE": "0.5",
    }.items():
        monkeypatch.setenv(f"LLMCLI_{name}", value)
    wanted = ask("hi", "--grammar-file", "x.gbnf", "-sys", "flag", "--raw").wanted
    assert (wanted.parts[-1].text, wanted.sampling.grammar, wanted.system) == ("hi", 'root ::= "x"\n', "flag")
    assert (wanted.raw, wanted.template, wanted.rope.freq_scale) == (True, None, 0.5)
    monkeypatch.setenv("LLMCLI_RAW", "1")
    wanted = ask("--chat-template", "zephyr", "--rope-scale", "8").wanted
    assert (wanted.raw, wanted.template, wanted.rope.freq_scale) == (False, "zephyr", 0.125)
    assert wanted.parts[-1].text == "env"


def test_rivals_of_one_source_stay_a_mistake(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMCLI_GRAMMAR", 'root ::= "x"')
    monkeypatch.setenv("LLMCLI_GRAMMAR_FILE", "x.gbnf")
    assert ask("hi").code == 2


# ---- bad values ------------------------------------------------------------------------------------------------------


def refused(asked: Any) -> str:
    """The one line on stderr; nothing reached the engine or stdout."""
    assert (asked.code, asked.out, asked.request) == (2, "", None), asked.err
    assert asked.err.startswith("error: ")
    assert asked.err.count("\n") == 1
    return str(asked.err)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "x", "1e999", "9" * 5000])
@pytest.mark.parametrize("flag", NUMBERS, ids=lambda f: f.long)
def test_a_number_that_is_none(flag: Flag, text: str, ask: Ask) -> None:
    assert flag.long in refused(ask(flag.long, text, "hi"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(flag=st.sampled_from(NUMBERS), text=st.text(max_size=12) | st.floats().map(str) | st.integers().map(str))
@example(flag=BY_LONG["--top-k"], text="4294967296")
@example(flag=BY_LONG["--temp"], text="1e39")
@example(flag=BY_LONG["--threads"], text="0")
def test_any_value_of_a_number_is_taken_or_refused(flag: Flag, text: str, ask: Ask) -> None:
    asked = ask(f"{flag.long}={text}", "hi")
    if asked.code != REACHED:
        assert flag.long in refused(asked)


@pytest.mark.parametrize("flag", [f for f in FLAGS if f.long in {"--temp", "--threads", "--lora", "--reasoning"}])
def test_a_bad_value_names_the_variable_it_came_from(flag: Flag, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flag.variable, "nonsense")
    assert f", from {flag.variable} (see llmcli run --help)" in refused(ask("hi"))


@pytest.mark.parametrize("key", ["temp", "threads", "lora", "reasoning", "json", "grammar-file", "stop"])
@pytest.mark.parametrize("value", ["[[1]]", "{ a = 1 }", "1979-05-27T07:32:00Z"])
def test_a_bad_value_names_the_config_it_came_from(
    key: str, value: str, ask: Ask, configure: Callable[[str], Path]
) -> None:
    path = configure(f"{key} = {value}")
    assert f", from {path} (see llmcli run --help)" in refused(ask("hi"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(
    flag=st.sampled_from(FLAGS),
    value=st.recursive(
        st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=3,
    ),
)
@example(flag=BY_LONG["--file"], value=["a\0b"])
@example(flag=BY_LONG["--grammar-file"], value="a\0b")
@example(flag=BY_LONG["--system-prompt-file"], value="a\0b")
@example(flag=BY_LONG["--chat-template"], value="a\0b")
def test_any_config_value_is_taken_or_refused(
    flag: Flag, value: Any, ask: Ask, configure: Callable[[str], Path]
) -> None:
    configure(f"{flag.key} = {json.dumps(value, ensure_ascii=False)}")
    asked = ask("hi")
    if asked.code != REACHED:
        assert (asked.code, asked.out, asked.err.count("\n")) == (2, "", 1), asked.err


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)
@given(flag=st.sampled_from(FLAGS), value=st.text(st.characters(exclude_characters="\0"), max_size=8))
def test_any_environment_value_is_taken_or_refused(
    flag: Flag, value: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:  # no environment can hold this surrogate
        return
    monkeypatch.setenv(flag.variable, value)
    asked = ask("hi")
    monkeypatch.delenv(flag.variable)
    if asked.code != REACHED:
        assert (asked.code, asked.out, asked.err.count("\n")) == (2, "", 1), asked.err


def test_bytes_that_are_not_utf8(ask: Ask) -> None:
    assert "--grammar': not UTF-8 at byte 2" in refused(ask("--grammar", "ab\udcff", "hi"))
    assert "--stop': not UTF-8 at byte 0" in refused(ask("--stop", "\udcff", "hi"))
    asked = ask("-sys", "a\udcff", "\udcc3\udca9\udcff")
    assert (asked.wanted.system, asked.wanted.parts[0].text) == ("a\ufffd", "é\ufffd")
    assert asked.err.splitlines()[:2] == [
        "warning: the prompt is not UTF-8 at byte 2; wrong bytes were replaced",
        "warning: the system prompt is not UTF-8 at byte 1; wrong bytes were replaced",
    ]
