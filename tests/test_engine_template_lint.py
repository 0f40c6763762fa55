"""What is found out about a chat template by trying it."""

from __future__ import annotations

import pytest

from llmcli.engine.template_lint import TemplateLint, lint_template
from llmcli.engine.template_presets import PRESETS

CHATML = PRESETS["chatml"]
ALTERNATING = """\
{%- for m in messages %}
{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{{- '<' + m['role'] + '>' + m['content'] + '</>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""


def test_chatml() -> None:
    assert lint_template(CHATML) == TemplateLint(system_role=True, generation_prompt=True)
    assert lint_template(CHATML).warnings == ()


def test_alternation_and_no_system_role() -> None:
    found = lint_template(ALTERNATING)
    assert (found.error, found.needs_alternation, found.system_role) == (None, True, False)
    assert found.warnings == ("no system role: a system prompt is put into the first user message",)


def test_bos_in_the_template() -> None:
    assert lint_template("{{ bos_token }}" + CHATML, bos_text="<s>").adds_bos
    assert not lint_template("{{ bos_token }}" + CHATML, bos_text="").adds_bos
    assert not lint_template(CHATML, bos_text="<s>").adds_bos


def test_thinking() -> None:
    switched = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    found = lint_template(switched)
    assert (found.thinking, found.thinking_switch, found.thinking_opened) == (True, "enable_thinking", False)
    opened = lint_template(CHATML + "{% if add_generation_prompt %}<think>\n{% endif %}")
    assert (opened.thinking, opened.thinking_switch, opened.thinking_opened) == (True, None, True)
    assert opened.generation_prompt
    assert not lint_template(PRESETS["phi-3"]).thinking  # <|end|> alone closes turns, not thinking


def test_tools_have_to_reach_the_text() -> None:
    assert lint_template("{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML).tools
    assert not lint_template("{% set x = tools %}" + CHATML).tools


def test_a_template_with_the_date() -> None:
    found = lint_template("{{ strftime_now('%Y-%m-%d') }}" + CHATML)
    assert found.uses_date
    assert "stored prefixes stop matching" in found.warnings[0]


def test_a_prompt_that_does_not_open_the_answer() -> None:
    found = lint_template("{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}")
    assert not found.generation_prompt
    assert len(found.warnings) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "is not valid in line 1"),
        ("{{ nosuch.thing.deeper }}", "fails"),
        ("always the same", "drops what the user says"),
        ("{{ messages[0]['content'] }}", "fails on a conversation of three messages"),
        ("{% if messages | length > 1 %}{{ raise_exception('one') }}{% endif %}" + CHATML, "conversation of three"),
    ],
)
def test_templates_that_cannot_be_used(source: str, reason: str) -> None:
    found = lint_template(source)
    assert found.error is not None
    assert reason in found.error
    assert found.warnings == (found.error,)
    assert not found.system_role


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_usable(name: str) -> None:
    found = lint_template(PRESETS[name], bos_text="<s>", eos_text="</s>")
    assert (found.error, found.generation_prompt) == (None, True)


def test_a_template_that_never_ends_is_given_up_at_once() -> None:
    forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    for source in (forever, "{% if messages | length > 1 %}" + forever + "{% endif %}" + CHATML):
        found = lint_template(source)
        assert found.error is not None
        assert "takes longer than 1.0 s" in found.error
