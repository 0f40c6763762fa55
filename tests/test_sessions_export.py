"""Conversations as Markdown and JSON, and back."""

from __future__ import annotations

import json

import pytest

from llmcli.base.errors import LlmcliError
from llmcli.sessions.events import Header, ModelNote
from llmcli.sessions.export import as_json, as_markdown, exported, from_json
from llmcli.sessions.turns import History, Turn

HEADER = Header(ModelNote("tiny", "a" * 64, "/models/tiny.gguf"), None, None, "2026-11-30T10:15:00+00:00")


@pytest.fixture(name="history")
def one_history() -> History:
    history = History(system="Be brief.")
    history.add(Turn("one", text="yes\n", content="yes\n", prompt_ids=(1, 2), completion_ids=(3,)))
    history.add(Turn("two", text="no", reasoning="hm", content="<think>hm</think>no", finish_reason="interrupted"))
    return history


def test_markdown(history: History) -> None:
    assert as_markdown("talk", HEADER, history) == (
        "# talk\n\nModel: tiny  \nBegun: 2026-11-30T10:15:00+00:00\n\n## System\n\nBe brief.\n\n"
        "## You\n\none\n\n## Assistant\n\nyes\n\n"
        "## You\n\ntwo\n\n## Assistant\n\n<details><summary>Thinking</summary>\n\nhm\n\n</details>\n\n"
        "no\n\n*(interrupted)*\n"
    )


def test_json_and_back(history: History) -> None:
    value = as_json("talk", HEADER, history)
    assert value["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "yes\n"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "no"},
    ]
    assert value["turns"][0] == {
        "user": "one",
        "text": "yes\n",
        "reasoning": "",
        "finish_reason": "stop",
        "at": "",
        "prompt_tokens": 2,
        "completion_tokens": 1,
    }
    back = from_json(exported(".json", "talk", HEADER, history).decode())
    assert [(turn.user, turn.text) for turn in back.turns] == [("one", "yes\n"), ("two", "no")]
    assert back.system == "Be brief."


def test_messages_of_other_programs() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "stray"},
        {"role": "user", "content": "unanswered"},
    ]
    history = from_json(json.dumps(messages))
    assert [(turn.user, turn.text) for turn in history.turns] == [("a\n\nb", "c")]
    assert history.unanswered == "unanswered"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"role": "user", "content": [1]}]', "[" * 100_000])
def test_what_is_no_conversation(text: str) -> None:
    with pytest.raises(LlmcliError, match="not an exported conversation"):
        from_json(text)


def test_a_session_file_keeps_the_tokens(history: History) -> None:
    lines = exported(".jsonl", "talk", HEADER, history).splitlines()
    assert json.loads(lines[1])["completion_ids"] == [3]
