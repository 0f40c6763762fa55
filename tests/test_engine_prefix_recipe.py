"""What a saved prefix was made of: bytes and back, and what prompts with that beginning have in common."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.engine.chat_template import PRESETS, ChatTemplate
from llmcli.engine.model import Model
from llmcli.engine.prefix_recipe import Recipe, common_length, stable_prefix, text_of
from llmcli.engine.prompt import BuiltPrompt, PromptPart, PromptRequest, fit_prompt
from llmcli.engine.tokenizer import Tokenizer

WHEN = datetime(2024, 5, 1, 12, 30)  # noqa: DTZ001  naive, as templates get it
PARTS = (PromptPart("file", "a.txt", "One.\n"), PromptPart("stdin", "stdin", "Two é \ud800"))
RECIPE = Recipe(PARTS, "Be brief.", raw=False, template=("name", "source"), made_at=WHEN, text="all")


@pytest.mark.parametrize("recipe", [RECIPE, Recipe((), None, raw=True, template=None, made_at=WHEN)])
def test_bytes_and_back(recipe: Recipe) -> None:
    assert Recipe.from_bytes(recipe.to_bytes()) == recipe


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"parts": [["file", "x"]]}, {"parts": [["exe", "x", "y"]]}, {"parts": 3}, {"system": 3},
     {"template": ["x"]}, {"made_at": "now"}, {"text": None}, {"parts": [["file", "x", None]]}],
)  # fmt: skip
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    fields = {**json.loads(RECIPE.to_bytes()), **change}
    with pytest.raises(LlmcliError, match="does not say what it was made of"):
        Recipe.from_bytes(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_no_recipe_at_all(data: bytes) -> None:
    with pytest.raises(LlmcliError):
        Recipe.from_bytes(data)


def test_the_day_of_saving_makes_no_difference_and_the_parts_do() -> None:
    assert RECIPE.makes_the_same(replace(RECIPE, made_at=datetime(2025, 1, 1)))  # noqa: DTZ001
    assert not RECIPE.makes_the_same(replace(RECIPE, system=None))


def test_common_length() -> None:
    assert [common_length(*pair) for pair in ([(1, 2), (1, 3)], [(1,), (1, 2)], [(), (1,)], [(2,), (1,)])] == [
        1,
        1,
        0,
        0,
    ]


def builder(tokenizer: Tokenizer) -> Callable[[PromptRequest], BuiltPrompt]:
    def build(request: PromptRequest) -> BuiltPrompt:
        return fit_prompt(
            request, tokenizer, n_ctx=4096, n_ctx_train=4096, max_tokens=None, policy="error", longest_token_bytes=64
        )

    return build


@pytest.mark.parametrize("raw", [False, True])
def test_every_question_goes_on_behind_it(raw: bool, smollm2_path: Path) -> None:
    """Blank lines before a word, a digit or another line are different tokens: the prefix ends before those."""
    recipe = Recipe((PromptPart("file", "a.txt", "A text that ends here.\n"),), "Be brief.", raw, None, WHEN)
    with Model.load_vocabulary(smollm2_path) as model:
        tokenizer = model.tokenizer
        template = None if raw else ChatTemplate(PRESETS["chatml"], bos_text="", eos_text="", name="chatml")
        stable = stable_prefix(recipe, template, tokenizer, builder(tokenizer))
        assert stable.text.startswith("Be brief." if raw else "<|im_start|>system\nBe brief.")
        assert "A text that ends here." in stable.text
        assert text_of(stable.ids, tokenizer) == stable.text
        assert list(stable.boundaries) == sorted(stable.boundaries) and stable.boundaries[-1] <= len(stable.ids)
        for question in ("Why?", "1+1", "\n\nx", "  x", "(a)", "*", "# T", "é", "\U0001f680"):
            request = PromptRequest((*recipe.parts, PromptPart("argument", "prompt", question)), "Be brief.", template)
            whole = builder(tokenizer)(request)
            assert whole.ids[: len(stable.ids)] == stable.ids


def test_a_template_prints_the_day_of_saving() -> None:
    source = "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.content }}{% endfor %}"
    template = ChatTemplate(source, bos_text="", eos_text="", name="dated")
    RECIPE.pin_clock(template)
    assert template.render([]) == "2024-05-01"
