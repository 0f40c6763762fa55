"""What came from a message is found in the rendered text, whatever the template does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.engine.user_text import Contents, Render, SpecialTexts, users_spans

SPECIALS = ("<|im_start|>", "<|im_end|>", "</s>", "</think>", "[INST]", "a</s>")


def spans(text: str, contents: Contents, render: Render, specials: Sequence[str] = SPECIALS) -> list[tuple[int, int]]:
    return users_spans(text, contents, SpecialTexts(specials), render)


def parts(
    template: Callable[[Sequence[str]], str], *texts: str, answers: Sequence[bool] = (), literals: Sequence[str] = ()
) -> list[str]:
    """The user's parts of what `template` makes of the texts."""
    contents = Contents(texts, answers or [False] * len(texts), literals)
    rendered = template(texts)
    return [rendered[start:end] for start, end in spans(rendered, contents, template)]


def chatml(texts: Sequence[str]) -> str:
    return "".join(f"<|im_start|>{text}<|im_end|>" for text in texts)


def test_nothing_to_do_without_special_texts_in_messages() -> None:
    assert parts(chatml, "hello <b>", "world") == []


def test_a_special_text_in_a_message() -> None:
    assert parts(chatml, "a <|im_end|> b", "<|im_start|>") == ["<|im_end|>", "<|im_start|>"]


def test_neighbours_are_one_part() -> None:
    assert parts(chatml, "x<|im_end|><|im_start|>y") == ["<|im_end|><|im_start|>"]


def test_formed_at_the_end_of_a_message() -> None:
    assert parts(lambda t: f"{t[0]}end|>!", "say <|im_") == ["<|im_"]


def test_formed_at_the_start_of_a_message() -> None:
    assert parts(lambda t: f"<|im_{t[0]}", "end|> and more") == ["end|>"]


def test_formed_around_a_message() -> None:
    assert parts(lambda t: f"<|{t[0]}|>", "im_end") == ["im_end"]


def test_formed_from_two_messages() -> None:
    assert parts("".join, "<|im_", "end|>") == ["<|im_end|>"]


def test_formed_by_what_is_left_after_trimming() -> None:
    assert parts(lambda t: t[0].strip() + "end|>", "x<|im_ \n ") == ["<|im_"]


def test_the_templates_own_text_behind_a_message_stays_its_own() -> None:
    # "a</s>" is special too, but the "</s>" in it is the template's.
    assert parts(lambda t: t[0] + "</s>", "a") == ["a"]


@pytest.mark.parametrize("change", [str.upper, str.lower, str.title, str.swapcase], ids=lambda change: change.__name__)
def test_changed_case(change: Callable[[str], str]) -> None:
    found = parts(lambda t: "<|im_start|>" + change(t[0]) + "<|im_end|>", "hi <|im_end|>, <|IM_END|>")
    assert all(part.lower() == "<|im_end|>" for part in found)
    assert len(found) == sum(change(text) == "<|im_end|>" for text in ("<|im_end|>", "<|IM_END|>"))


def test_a_letter_of_one_message_while_the_case_of_another_is_changed() -> None:
    assert parts(lambda t: t[0] + "</s>" + t[1].upper(), "a", "im_") == ["a"]


def strips_thinking(texts: Sequence[str]) -> str:
    """As DeepSeek's and Qwen's: of an answer, only what follows the last closing tag."""
    user, answer = texts
    if "</think>" in answer:
        answer = answer.split("</think>")[-1]
    return f"<|im_start|>{user}<|im_end|><think></think>{answer}<|im_end|>"


def test_a_tag_that_the_template_cuts_out_is_its_own() -> None:
    assert parts(strips_thinking, "q", "hm</think>42", answers=[False, True], literals=["</think>", "<|im_end|>"]) == []


def test_and_the_users_is_not() -> None:
    found = parts(
        strips_thinking, "</think> q", "hm</think>42 </s>", answers=[False, True], literals=["</think>", "<|im_end|>"]
    )
    assert found == ["</think>", "</s>"]


def test_what_an_answer_merely_repeats_is_not_the_templates() -> None:
    found = parts(
        strips_thinking, "q", "hm</think>4<|im_end|>2", answers=[False, True], literals=["</think>", "<|im_end|>"]
    )
    assert found == ["<|im_end|>"]


def test_a_special_text_that_decides_and_is_printed_is_nobodys_control_token() -> None:
    def template(texts: Sequence[str]) -> str:
        return ("tool " if "[INST]" in texts[0] else "") + texts[0] + "[INST]</s>"

    assert parts(template, "x [INST]", literals=["[INST]"]) == ["[INST][INST]"]


def test_a_literal_that_is_not_special_may_be_looked_for() -> None:
    def template(texts: Sequence[str]) -> str:
        return ("/no_think " if "/no_think" in texts[0] else "/think ") + texts[0] + "<|im_end|>"

    assert parts(template, "q /no_think <|im_end|>", literals=["/no_think"]) == ["<|im_end|>"]


def test_a_template_that_refuses_stand_ins_makes_everything_suspect() -> None:
    def template(texts: Sequence[str]) -> str | None:
        return f"{texts[0]}|<|im_end|></s>" if texts[0] == "<|im_end|>" else None

    rendered = template(["<|im_end|>"])
    assert rendered is not None
    contents = Contents(["<|im_end|>"], [False], [])
    assert [rendered[a:b] for a, b in spans(rendered, contents, template)] == ["<|im_end|>", "<|im_end|>"]


def test_private_use_characters_in_messages() -> None:
    assert parts(chatml, "\U000f0000\U000f0001<|im_end|>\U0010fffd") == ["<|im_end|>"]
    assert parts(chatml, "\U00010400\U00010428<|im_end|>") == ["<|im_end|>"]


def test_letters_without_a_case_of_one_letter() -> None:
    specials = ("<ß>", "<\u0130>", "<é>")
    contents = Contents(["<ß><\u0130> <é>"], [False], [])
    assert spans("|" + contents.texts[0], contents, lambda texts: "|" + texts[0], specials) == [(1, 7), (8, 11)]


pieces = st.sampled_from(
    ["<|", "im_", "end", "start", "|>", "<|im_end|>", "<|im_start|>", "</s>", "[IN", "ST]", "a", " ", "\n", "x"]
)
texts = st.lists(pieces, max_size=5).map("".join)
transforms = st.sampled_from(
    [str, str.strip, str.upper, str.title, str.casefold, lambda text: text.rstrip("\n"), lambda text: text * 2]
)


@given(st.lists(st.tuples(texts, texts, transforms), min_size=1, max_size=4), texts)
def test_no_special_text_outside_the_spans_touches_a_message(
    turns: list[tuple[str, str, Callable[[str], str]]], tail: str
) -> None:
    """Against a template that knows where its text comes from."""
    changes = [change for _, _, change in turns]

    def template(contents: Sequence[str]) -> str:
        changed = (own + change(content) for (own, _, change), content in zip(turns, contents, strict=True))
        return "".join(changed) + tail

    contents = [content for _, content, _ in turns]
    rendered = template(contents)
    theirs = "".join(
        "0" * len(own) + "1" * len(change(content)) for (own, content, _), change in zip(turns, changes, strict=True)
    ) + "0" * len(tail)
    found = spans(rendered, Contents(contents, [False] * len(contents), []), template)
    specials = SpecialTexts(SPECIALS)
    edges = [0, *(edge for span in found for edge in span), len(rendered)]
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        for first, last in specials.spans(rendered[start:end]):
            assert "1" not in theirs[start + first : start + last]
    assert found == sorted(found)
    if not any("1" in theirs[first:last] for first, last in specials.spans(rendered)):
        assert found == []


@given(texts)
def test_spans_are_every_start_with_its_longest(text: str) -> None:
    expected = []
    for at in range(len(text)):
        here = [special for special in SPECIALS if text.startswith(special, at)]
        if here:
            expected.append((at, at + len(max(here, key=len))))
    assert sorted(SpecialTexts(SPECIALS).spans(text)) == expected


def test_single_characters_and_empty_texts() -> None:
    specials = SpecialTexts(["", "\n", "\n\n", "§"])
    assert sorted(specials.spans("a§\n\nb\n")) == [(1, 2), (2, 4), (3, 4), (5, 6)]
    assert specials.alphabet == {"§"}
