"""Jinja as chat templates need it; hostile templates end in one error, soon and without filling the memory."""

from __future__ import annotations

import datetime
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import ModelError
from llmcli.engine.template import ChatTemplate, Message
from tests.fixtures.hostile_templates import TEMPLATES, TIME_S

ROOT = Path(__file__).parents[1]
NOON = datetime.datetime(2026, 2, 3, 12, 0)  # noqa: DTZ001 (local time, as the template's clock)


def render(source: str, *contents: str, **extra: Any) -> str:
    template = ChatTemplate(source, bos_text="<s>", eos_text="</s>", name="t", clock=lambda: NOON)
    return template.render([Message("user", content) for content in contents], extra=extra)


@pytest.fixture(scope="module")
def hostile() -> dict[str, dict[str, Any]]:
    """What became of every hostile template, in a process of its own."""
    command = [sys.executable, "-m", "tests.fixtures.hostile_templates"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=240, check=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", TEMPLATES)
def test_hostile_template(name: str, hostile: dict[str, dict[str, Any]]) -> None:
    found = hostile[name]
    assert found["message"].startswith("the chat template (hostile) ")
    assert re.search(TEMPLATES[name][1], found["message"])
    assert "\n" not in found["message"]
    assert len(found["message"]) < 400
    # A single operation or the compilation of a part may go over the limit a little.
    assert found["time_s"] < TIME_S + 0.6
    # Of all templates up to this one together.
    assert found["grown_bytes"] < 300e6


def test_default_time_limit() -> None:
    with pytest.raises(ModelError, match=r"takes longer than 2\.0 s"):
        render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "a")


def test_limits_hold_in_another_thread_and_leave_nothing_behind() -> None:
    handler, trace, threads = signal.getsignal(signal.SIGALRM), sys.gettrace(), threading.active_count()
    failures: list[str] = []

    def run() -> None:
        template = ChatTemplate(TEMPLATES["nested loops"][0], bos_text="", eos_text="", name="t", time_s=0.2)
        with pytest.raises(ModelError) as caught:
            template.render([Message("user", "a")])
        failures.append(caught.value.message)
        assert sys.gettrace() is trace

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert len(failures) == 1
    assert "takes longer" in failures[0]
    assert (signal.getsignal(signal.SIGALRM), sys.gettrace(), threading.active_count()) == (handler, trace, threads)


def test_two_threads_share_one_template() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }};{% endfor %}", bos_text="", eos_text="", name="t")
    wrong: list[str] = []

    def run(mark: str) -> None:
        for _ in range(50):
            text = template.render([Message("user", mark)] * 20)
            if text != f"{mark};" * 20:
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(mark,)) for mark in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_large_message_gets_the_room_it_needs() -> None:
    content = "word " * 400_000
    assert render("{{ messages[0].content | trim | upper }}", content) == content.strip().upper()


def test_a_growing_text_does_not_count_what_is_gone() -> None:
    # A thousand copies of up to a megabyte each: half a gigabyte, one megabyte at a time.
    source = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.t }}"
    )
    assert len(render(source, *["x" * 1000] * 1000)) == 1_000_000


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
        ("{% for i in range(9) if i != 1 %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for x in range(6) if x is even %}{{ loop.length }}{{ x }} {% else %}none{% endfor %}", "30 32 34 "),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "123"),
        ("{% for x in 'abc' %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% endfor %}", "1a,2b,3c"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}", "a2b1"),
        ("{% generation %}{{ 1 }}{% endgeneration %}", "1"),
        ("{% for i in [1] %}{% generation %}{% continue %}{% endgeneration %}x{% endfor %}", ""),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2026"),
        ("{{ bos_token ~ 1 ~ none ~ eos_token }}{{ 7 // 2 ** 1 - 1.5 }}", "<s>1None</s>1.5"),
        ("{{ tools is none and documents is none }}{{ undefined_thing is defined }}", "TrueFalse"),
        ("{{ messages[0]['content'] }}{{ messages[0].content }}", "hh"),
        ("{{ messages[0].get('x', 'y') }}{{ messages[0].x }}", "y"),
        ("{{ messages[0].items() | list }}", "[('role', 'user'), ('content', 'h')]"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x * 2 }}", "a1a1"),
        ("{% macro m(x, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ m(1) }}{{ m(1, y=m(3)) }}", "[12][1[32]]"),
        ("{% macro m(x) %}[{{ x }}{{ caller() }}]{% endmacro %}{% call m(2) %}!{% endcall %}", "[2!]"),
        ("{% block b %}{{ 1 }}{% endblock %}{{ self.b() }}", "11"),
        ("{{ (1, 2)[1:] }}{{ [1, 2][::-1] }}{{ {'a': none} }}", "(2,)[2, 1]{'a': None}"),
        ("{{ namespace(a=1).a }}{{ dict(a=1).items() | list }}{{ 'Ab'.lower().startswith('a') }}", "1[('a', 1)]True"),
        ("{% set ns = namespace(_x=1) %}{{ ns._x is defined }}", "False"),
        ("{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}", "xy"),
        ("{% set j = joiner(';') %}{{ j() }}{{ j() }}", ";"),
    ],
)
def test_the_language(source: str, text: str) -> None:
    assert render(source, "h") == text


def test_variables_of_the_caller() -> None:
    assert render("{{ enable_thinking }}{{ tools | length }}", "h", enable_thinking=False, tools=[1]) == "False1"


def test_namespaces_that_hold_each_other_are_printed_by_name() -> None:
    assert render("{% set a = namespace() %}{% set a.a = a %}{{ a }}{{ [a] }}", "h") == "<Namespace>[<Namespace>]"
