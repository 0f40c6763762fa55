"""Chat templates of every kind are rendered as their makers meant, and their failures are one line."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import ModelError, UsageError
from llmcli.engine.template import ChatTemplate, Message

GREEDY = json.loads((Path(__file__).parent / "data" / "greedy.json").read_text("utf-8"))["cases"]

# SmolLM2's, in our words: ChatML that brings a system prompt of its own where none is given.
CHATML_WITH_DEFAULT = """\
{%- if messages[0].role != 'system' -%}
{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""

# Mistral's first: strict alternation, no system role.
ALTERNATING = """\
{{ bos_token }}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
{{ '[INST] ' + message['content'] + ' [/INST]' if message['role'] == 'user' else message['content'] + eos_token + ' ' }}
{%- endfor %}"""

# Llama 3: a date, and trimmed contents.
DATED = """\
{{- bos_token -}}<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ strftime_now('%d %b %Y') }}\n
{%- if messages[0].role == 'system' %}\n\n{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif -%}
<|eot_id|>
{%- for message in messages -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>
{%- endfor -%}"""

# Multimodal models: the content is a list of parts and nothing else.
IN_PARTS = """\
{%- for m in messages -%}
{{ m.role }}:{% for part in m.content %}{{ part.text if part.type == 'text' }}{% endfor %};
{%- endfor %}"""


def made(source: str, **options: object) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>", name="t", **options)  # type: ignore[arg-type]


def chat(*contents: str, system: str | None = None) -> list[Message]:
    roles = ("user", "assistant")
    turns = [Message(roles[number % 2], content) for number, content in enumerate(contents)]
    return turns if system is None else [Message("system", system), *turns]


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        ("chat_capital", chat("What is the capital of France?", system="You are a helpful assistant.")),
        ("chat_sky", chat("Why is the sky blue? Answer in one sentence.", system="You are a helpful assistant.")),
        ("chat_list", chat("Name three colours.", system="You answer briefly.")),
    ],
)
def test_chatml_texts_of_the_reference(case: str, messages: list[Message]) -> None:
    assert made(CHATML_WITH_DEFAULT).render(messages) == GREEDY[case]["prompt"]


def test_chatml_with_a_default_system_prompt() -> None:
    text = made(CHATML_WITH_DEFAULT).render(chat("Say hello in Spanish."))
    default = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert text == f"<|im_start|>system\n{default}<|im_end|>\n" + GREEDY["chat_no_system"]["prompt"]


def test_without_the_prompt_for_an_answer() -> None:
    text = made(CHATML_WITH_DEFAULT).render(chat("a", system="s"), add_generation_prompt=False)
    assert text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n"


def test_bos_and_eos_stand_where_the_template_prints_them() -> None:
    assert made(ALTERNATING).render(chat("a", "b", "c")) == "<s>[INST] a [/INST]b</s> [INST] c [/INST]"


def test_what_raise_exception_says_is_passed_on() -> None:
    with pytest.raises(ModelError) as caught:
        made(ALTERNATING).render([*chat("a"), *chat("b")])
    assert caught.value.exit_code == 3
    expected = "refuses the messages: Conversation roles must alternate user/assistant/user/assistant/..."
    assert caught.value.message == f"the chat template (t) {expected}"
    assert "--chat-template" in (caught.value.hint or "")


def test_the_date_is_that_of_the_clock() -> None:
    clock = lambda: datetime.datetime(2026, 7, 26)  # noqa: E731, DTZ001 (local time, as the template's clock)
    text = made(DATED, clock=clock).render(chat("  hi\n", system=" s "))
    head = "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 26 Jul 2026"
    tail = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
    assert text.replace("\n", "") == (head + "s" + tail).replace("\n", "")


def test_content_in_parts_for_templates_that_read_nothing_else() -> None:
    assert made(IN_PARTS).render(chat("a", "b", system="s")) == "system:s;user:a;assistant:b;"
    assert made("{{ messages[0].content is string }}").render(chat("a")) == "True"


@pytest.mark.parametrize(
    ("source", "supported"),
    [
        (CHATML_WITH_DEFAULT, True),
        (ALTERNATING, False),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", False),
        ("{{ 1 / 0 }}", False),
    ],
)
def test_whether_a_system_prompt_reaches_the_text(source: str, supported: bool) -> None:
    assert made(source).supports_system() is supported


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "is not valid in line 1: "),
        ("\n\n{{ 'a' | frob }}", "is not valid in line 3: No filter named 'frob'."),
        ("{% frob %}", "is not valid in line 1: Encountered unknown tag 'frob'."),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{{ missing.x }}", "fails: 'missing' is undefined"),
        ("{{ messages[0].content + 1 }}", 'fails: can only concatenate str (not "int") to str'),
        ("{% for a, b in [1] %}{% endfor %}", "fails: cannot unpack non-iterable int object"),
        ("{{ raise_exception('a\nb\x1b[31m') }}", "refuses the messages: a b\\x1b[31m"),
        ("{{ 1() }}", "fails: int is not for templates to call"),
    ],
)
def test_a_failure_is_one_line(source: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        made(source).render(chat("a"))
    assert caught.value.message.startswith(f"the chat template (t) {message}")
    assert "\n" not in caught.value.message


def test_a_broken_template_harms_nobody_until_it_is_used() -> None:
    template = made("{% if %}")
    assert template.literals() == ()


def test_a_hostile_name_is_shown_harmlessly() -> None:
    template = ChatTemplate("{{ 1 / 0 }}", bos_text="", eos_text="", name="a\x1b]0;b\n")
    with pytest.raises(ModelError) as caught:
        template.render(chat("a"))
    assert caught.value.message.startswith(r"the chat template (a\x1b]0;b\n) fails")


def test_a_slow_template_is_not_tried_over_and_over() -> None:
    ticks = []

    class Template(ChatTemplate):
        def _rendered(self, variables: Mapping[str, Any], now: datetime.datetime) -> str:
            ticks.append(1)
            return super()._rendered(variables, now)

    source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ModelError, match="takes longer"):
        Template(source, bos_text="", eos_text="", name="t", time_s=0.1).render(chat("a"))
    assert len(ticks) == 1


@pytest.mark.parametrize("role", ["", "a b", "<|im_end|>", "user\n"])
def test_a_role_is_a_word(role: str) -> None:
    with pytest.raises(UsageError, match="is not a role"):
        Message(role, "a")


def test_jinja_is_imported_when_a_template_is_rendered_and_not_before() -> None:
    code = (
        "import sys; from llmcli.engine.chat_template import ChatTemplate, Message\n"
        "t = ChatTemplate('{{ 1 }}', bos_text='', eos_text='', name='t'); before = 'jinja2' in sys.modules\n"
        "print(before, t.render([Message('user', 'a')]), 'jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "1", "True"]
