"""A conversation becomes a prompt in which only the template writes control tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.engine.chat_template import (
    PRESETS,
    ChatTemplate,
    Fragment,
    Message,
    RenderedPrompt,
    fold_system,
    prepare,
    warm_up,
)

SPECIALS = ("<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<|eot_id|>", "<start_of_turn>")

# Thinking opened by the template, and cut out of earlier answers: DeepSeek R1, QwQ.
THINKING = """\
{%- for m in messages -%}
{%- set text = m.content.split('</think>')[-1].lstrip() if m.role == 'assistant' else m.content -%}
{{ '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\\n<think>\\n' if add_generation_prompt }}"""

# No role for a system prompt, as Gemma's.
NO_SYSTEM = """\
{%- for m in messages -%}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif -%}
{{ '<start_of_turn>' + m.role + '\\n' + m.content | trim + '\\n' }}
{%- endfor -%}"""

# The system prompt goes with the last user message: Mistral.
SYSTEM_LAST = """\
{%- for m in messages if m.role != 'system' -%}
{%- set system = messages[0].content + '\\n\\n' if loop.last and messages[0].role == 'system' else '' -%}
{{ '[INST]' + system + m.content + '[/INST]' if m.role == 'user' else m.content + '</s>' }}
{%- endfor -%}"""


def made(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>", name="t")


def chat(*contents: str, system: str | None = None) -> list[Message]:
    roles = ("user", "assistant")
    turns = [Message(roles[number % 2], content) for number, content in enumerate(contents)]
    return turns if system is None else [Message("system", system), *turns]


def ends(prompt: RenderedPrompt) -> list[str | None]:
    """What of the text stands before the end of each message."""
    return [None if end is None else prompt.text[:end] for end in prompt.message_ends]


def test_an_ordinary_prompt_is_one_fragment() -> None:
    prompt = prepare(made(PRESETS["chatml"]), chat("a <b>", system="s"), SPECIALS)
    text = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na <b><|im_end|>\n<|im_start|>assistant\n"
    assert prompt.fragments == (Fragment(text, parse_special=True),)
    assert (prompt.text, prompt.system_merged, prompt.reasoning_opened) == (text, False, False)


def test_a_control_token_in_a_message_is_cut_out() -> None:
    prompt = prepare(made(PRESETS["chatml"]), chat("a<|im_end|>b"), SPECIALS)
    assert prompt.fragments == (
        Fragment("<|im_start|>user\na", parse_special=True),
        Fragment("<|im_end|>", parse_special=False),
        Fragment("b<|im_end|>\n<|im_start|>assistant\n", parse_special=True),
    )


def test_an_upper_casing_template() -> None:
    template = made("{% for m in messages %}[INST]{{ m.content | upper }}[/INST]{% endfor %}")
    prompt = prepare(template, chat("x [inst] y"), SPECIALS)
    assert [f.text for f in prompt.fragments if not f.parse_special] == ["[INST]"]
    assert prompt.text == "[INST]X [INST] Y[/INST]"


pieces = st.sampled_from(["<|", "im_end", "|>", "<|im_start|>", "<|im_end|>", "</s>", "[INST]", " ", "\n", "hi", "é🚀"])
contents = st.lists(pieces, max_size=5).map("".join)


@given(
    st.sampled_from([*PRESETS.values(), THINKING, NO_SYSTEM, SYSTEM_LAST]), st.lists(contents, min_size=1, max_size=4)
)
def test_fragments_are_the_rendered_text(source: str, texts: list[str]) -> None:
    template = made(source)
    prompt = prepare(template, chat(*texts), SPECIALS)
    assert prompt.text == template.render(chat(*texts))
    assert all(fragment.text for fragment in prompt.fragments)
    forged = [fragment for fragment in prompt.fragments if not fragment.parse_special]
    if not any(special in text for special in SPECIALS for text in texts) and not any("<|" in text for text in texts):
        assert forged == []


@given(st.lists(contents, min_size=1, max_size=3))
def test_control_tokens_are_as_many_as_the_template_writes(texts: list[str]) -> None:
    prompt = prepare(made(PRESETS["chatml"]), chat(*texts), SPECIALS)
    parsed = [fragment.text for fragment in prompt.fragments if fragment.parse_special]
    assert sum(text.count("<|im_start|>") for text in parsed) == len(texts) + 1
    assert sum(text.count("<|im_end|>") for text in parsed) == len(texts)
    assert sum(text.count("</s>") + text.count("[INST]") for text in parsed) == 0


def test_a_system_prompt_without_a_role_goes_into_the_first_user_message() -> None:
    prompt = prepare(made(NO_SYSTEM), chat("q", "a", "r", system="be brief"), SPECIALS)
    assert prompt.system_merged
    assert prompt.messages == tuple(chat("be brief\n\nq", "a", "r"))
    assert prompt.text.startswith("<start_of_turn>user\nbe brief\n\nq\n")


def test_a_system_prompt_that_the_template_would_drop_is_merged_too() -> None:
    template = made("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}")
    prompt = prepare(template, chat("q", system="s"), SPECIALS)
    assert (prompt.system_merged, prompt.text) == (True, "s\n\nq")


@pytest.mark.parametrize(
    ("messages", "folded"),
    [
        (chat("q", system="s"), chat("s\n\nq")),
        (chat("q"), chat("q")),
        (chat(system="s"), chat("s")),
        (chat("q", system=""), chat("q")),
        ([Message("system", "s"), *chat("q", system="t")], chat("s\n\nt\n\nq")),
        (
            [Message("system", "s"), Message("assistant", "hi"), Message("user", "q")],
            [Message("assistant", "hi"), Message("user", "s\n\nq")],
        ),
        ([], []),
    ],
)
def test_fold_system(messages: list[Message], folded: list[Message]) -> None:
    assert fold_system(messages) == folded


def test_thinking_opened_by_the_template() -> None:
    prompt = prepare(made(THINKING), chat("q", "hm</think>a", "r"), (*SPECIALS, "<think>", "</think>"))
    assert prompt.reasoning_opened
    assert prompt.text.endswith(
        "<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert len(prompt.fragments) == 1


def test_thinking_is_not_opened_by_a_users_last_word() -> None:
    template = made("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert not prepare(template, chat("what is <think>"), SPECIALS).reasoning_opened
    assert not prepare(made(THINKING), chat("q"), SPECIALS, add_generation_prompt=False).reasoning_opened


def test_variables_reach_the_template() -> None:
    template = made("{{ messages[0].content }}{{ '<think>' if enable_thinking }}")
    assert prepare(template, chat("q"), SPECIALS, extra={"enable_thinking": True}).text == "q<think>"


def test_where_messages_end() -> None:
    prompt = prepare(made(PRESETS["chatml"]), chat("q", "a", system="s"), SPECIALS)
    system = "<|im_start|>system\ns<|im_end|>\n"
    user = system + "<|im_start|>user\nq<|im_end|>\n"
    assert ends(prompt) == [system, user, user + "<|im_start|>assistant\na<|im_end|>\n"]


def test_a_system_prompt_that_cannot_stand_alone_ends_where_the_next_words_begin() -> None:
    source = "{% if messages[-1].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PRESETS["chatml"]
    prompt = prepare(made(source), chat("q", system="s"), SPECIALS)
    assert ends(prompt)[0] == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n"


def test_a_prefix_that_does_not_last_has_no_end() -> None:
    prompt = prepare(made(SYSTEM_LAST), chat("q", "a", "r", system="s"), SPECIALS)
    assert prompt.text == "[INST]q[/INST]a</s>[INST]s\n\nr[/INST]"
    # With the first user message alone, the system prompt would stand in front of it.
    assert ends(prompt)[:2] == [None, "[INST]"]


def test_ends_do_not_cost_a_rendering_per_message_in_long_conversations() -> None:
    prompt = prepare(made(PRESETS["chatml"]), chat(*map(str, range(100))), SPECIALS)
    known = [number for number, end in enumerate(prompt.message_ends) if end is not None]
    assert known == [0, 1, *range(86, 100)]


def test_failures_are_the_templates() -> None:
    with pytest.raises(ModelError, match="division by zero"):
        prepare(made("{{ 1 / 0 }}"), chat("q", system="s"), SPECIALS)
    with pytest.raises(ModelError, match="is not valid"):
        prepare(made("{% if %}"), chat("q", system="s"), SPECIALS)


def test_no_messages() -> None:
    prompt = prepare(made(PRESETS["chatml"]), [], SPECIALS)
    assert (prompt.text, prompt.message_ends) == ("<|im_start|>assistant\n", ())


def test_warm_up_imports() -> None:
    warm_up()
