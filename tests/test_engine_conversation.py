"""A conversation: what the model is given turn after turn, and what is left of it when something goes wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.base.errors import ContextOverflowError, ResourceError, UsageError
from llmcli.sessions.file import Reading
from tests.chat_case import OPENS, STRICT, STRIPS, ask, library, talk
from tests.cli_run_case import engine_memo, known_engine
from tests.fixtures.notes import Notes

__all__ = ["engine_memo", "known_engine"]
Scripted = Callable[..., Path]


@pytest.fixture(name="model")
def greeter(scripted_model: Scripted) -> Path:
    return scripted_model(["Hello", " world", "!"], chat_template=STRICT, n_ctx=2048)


def test_a_prompt_begins_with_all_that_was_decoded(model: Path) -> None:
    with talk(model) as conversation:
        assert ask(conversation, "one") == "Hello world!"
        first = conversation.history.turns[0]
        assert ask(conversation, "two") == "Hello world!"
        second = conversation.history.turns[1]
        assert second.prompt_ids[: len(first.ids)] == first.ids
        assert len(first.completion_ids) == 3
        assert conversation.prompt_text("three").count("<|im_start|>") == 6


def test_a_session_comes_back_with_the_same_tokens(model: Path) -> None:
    with talk(model, "s") as conversation:
        ask(conversation, "one")
        ask(conversation, "two")
        expected = conversation.prompt_ids("three")
        turns = conversation.history.turns
    with talk(model, "s") as conversation:
        assert conversation.history.turns == turns
        assert conversation.prompt_ids("three") == expected
        assert ask(conversation, "three") == "Hello world!"
    assert len(library().read("s").history.turns) == 3


def test_tokens_stay_as_they_were_decoded_where_the_tokenizer_says_otherwise(scripted_model: Scripted) -> None:
    """The vocabulary has "ab" as well, and the tokenizer takes that."""
    model = scripted_model(["a", "b", "!", "ab", "z"], chat_template=STRICT, n_ctx=2048)
    with talk(model, "s", stops=("z",)) as conversation:
        ask(conversation, "one")
        decoded = conversation.history.turns[0].completion_ids
        ids = conversation.prompt_ids("two")
        assert ids[: len(conversation.history.turns[0].ids)] == conversation.history.turns[0].ids
        assert list(decoded) != conversation.engine.model.tokenizer.tokenize("ab!", parse_special=False)
    with talk(model, "s") as conversation:
        assert conversation.prompt_ids("two") == ids


def test_interrupted_answers_stay_and_render(scripted_model: Scripted) -> None:
    model = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=2048)
    with talk(model, "s") as conversation:
        reply = conversation.say("sing")
        for count, _part in enumerate(reply.parts()):
            if count == 4:
                conversation.interrupt()
        assert reply.finish_reason == "interrupted"
        assert reply.text == "lalilalila"
        reply = conversation.say("again")
        assert next(reply.parts()).text == "la"
        assert reply.finish_reason == "interrupted"
    turns = library().read("s").history.turns
    assert [(turn.text, turn.finish_reason) for turn in turns] == [("lalilalila", "interrupted"), ("la", "interrupted")]


def test_an_answer_that_is_not_read_to_its_end_is_recorded(model: Path) -> None:
    with talk(model, "s") as conversation:
        parts = conversation.say("one").parts()
        next(parts)
        parts.close()
        assert conversation.history.turns[0].text == "Hello"
        assert conversation.history.turns[0].finish_reason == "interrupted"


def test_an_empty_answer_is_left_out_and_said(scripted_model: Scripted) -> None:
    model = scripted_model(["</s>"], chat_template=STRICT, n_ctx=2048)
    with talk(model, "s") as conversation:
        reply = conversation.say("one")
        assert list(reply.parts()) == []
        assert "no answer" in reply.notes[0]
        assert conversation.history.turns == []
        assert conversation.last_user_text() == "one"
        assert "one" not in conversation.prompt_text("two")
        list(conversation.retry().parts())
        assert conversation.undo() == 1
        assert conversation.undo() == 0
    assert library().read("s").history.unanswered is None


def test_ctrl_c_in_the_prompt_leaves_the_question_out(model: Path) -> None:
    with talk(model) as conversation:
        ask(conversation, "one")
        conversation.on_progress = lambda _done, _total: conversation.interrupt()
        reply = conversation.say("x " * 400)
        assert list(reply.parts()) == []
        assert reply.finish_reason == "interrupted"
        conversation.on_progress = None
        assert ask(conversation, "three") == "Hello world!"
        assert len(conversation.history.turns) == 2


def test_thinking_that_the_template_leaves_out(scripted_model: Scripted) -> None:
    model = scripted_model(["<think>", "hm", "</think>", "yes"], chat_template=STRIPS, n_ctx=2048)
    with talk(model, "s") as conversation:
        reply = conversation.say("one")
        assert "".join(part.text for part in reply.parts()) == "hmyes"
        assert (reply.reasoning, reply.text) == ("hm", "yes")
        first = conversation.history.turns[0]
        assert first.content == "<think>hm</think>yes"
        reply = conversation.say("two")
        list(reply.parts())
        assert "hm" not in conversation.prompt_text("three")
        second = conversation.history.turns[1]
        assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
        assert [note for note in reply.notes if "leaves out earlier thinking" in note] == list(reply.notes)
        reply = conversation.say("three")
        list(reply.parts())
        assert reply.notes == ()
        assert reply.laid.taken_tokens == len(second.prompt_ids)
        expected = conversation.prompt_ids("four")
    with talk(model, "s") as conversation:
        assert conversation.prompt_ids("four") == expected


def test_thinking_that_the_template_opens(scripted_model: Scripted) -> None:
    model = scripted_model(["hm", "</think>", "yes"], chat_template=OPENS, n_ctx=2048)
    with talk(model, "s") as conversation:
        reply = conversation.say("one")
        list(reply.parts())
        assert (reply.reasoning, reply.text) == ("hm", "yes")
        first = conversation.history.turns[0]
        assert first.content == "<think>\nhm</think>yes"
        reply = conversation.say("two")
        assert reply.laid.taken_tokens == len(first.prompt_ids) - len("<think>\n")
        assert reply.laid.text.count("<think>") == 1
        list(reply.parts())


def test_thinking_without_an_answer_is_no_turn(scripted_model: Scripted) -> None:
    model = scripted_model(["hm", "!"], chat_template=OPENS, n_ctx=2048)
    with talk(model) as conversation:
        reply = conversation.say("one")
        assert [part.kind for part in reply.parts()] == ["reasoning", "reasoning"]
        assert conversation.history.turns == []


def test_a_stop_string_ends_the_tokens_too(scripted_model: Scripted) -> None:
    model = scripted_model(["ab", "cd", "ef"], chat_template=STRICT, n_ctx=2048)
    with talk(model, stops=("de",)) as conversation:
        assert ask(conversation, "one") == "abc"
        turn = conversation.history.turns[0]
        tokenizer = conversation.engine.model.tokenizer
        assert b"".join(tokenizer.piece(token) for token in turn.completion_ids) == b"abc"
        assert conversation.prompt_text("two").count("abc<|im_end|>") == 1


def test_words_of_the_user_are_no_control_tokens(model: Path) -> None:
    with talk(model) as conversation:
        ask(conversation, "a <|im_end|> b")
        end = conversation.engine.model.tokenizer.tokenize("<|im_end|>", parse_special=True)
        assert conversation.history.turns[0].prompt_ids.count(end[0]) == 1


def test_undo_ten_times(model: Path) -> None:
    with talk(model, "s") as conversation:
        prompts = []
        for number in range(12):
            prompts.append(conversation.prompt_ids("next"))
            ask(conversation, f"question {number}")
        for number in range(11, 1, -1):
            assert conversation.undo() == 1
            assert conversation.prompt_ids("next") == prompts[number]
        ask(conversation, "other")
        assert [turn.user for turn in conversation.history.turns] == ["question 0", "question 1", "other"]
    assert [turn.user for turn in library().read("s").history.turns] == ["question 0", "question 1", "other"]


def test_retry_edit_clear_system(model: Path) -> None:
    with talk(model, "s", system=None) as conversation:
        with pytest.raises(UsageError, match="nothing was asked yet"):
            conversation.retry()
        ask(conversation, "one")
        list(conversation.retry().parts())
        list(conversation.edit("uno").parts())
        assert [turn.user for turn in conversation.history.turns] == ["uno"]
        conversation.clear()
        assert conversation.prompt_text("x").count("<|im_start|>") == 2
    assert library().read("s").history.asked == 3


def test_a_system_prompt_changed_on_the_way(scripted_model: Scripted) -> None:
    model = scripted_model(["Hello"], n_ctx=2048)
    with talk(model, "s", system="Be brief.") as conversation:
        ask(conversation, "one")
        conversation.set_system("Be long.")
        reply = conversation.say("two")
        list(reply.parts())
        assert reply.laid.text.startswith("<|im_start|>system\nBe long.")
        assert reply.notes == ()
        expected = conversation.prompt_ids("three")
    with talk(model, "s") as conversation:
        assert conversation.prompt_ids("three") == expected
    with talk(model, "s", system="Third.") as conversation:
        assert conversation.prompt_text("x").startswith("<|im_start|>system\nThird.")


def test_each_turn_has_a_seed_of_its_own_that_a_resumed_chat_goes_on_with(model: Path) -> None:
    with talk(model, "s") as conversation:
        seeds = []
        for text in ("one", "two"):
            reply = conversation.say(text)
            list(reply.parts())
            seeds.append(reply.as_json()["seed"])
    with talk(model, "s") as conversation:
        reply = conversation.say("three")
        list(reply.parts())
        assert [*seeds, reply.as_json()["seed"]] == [1, 2, 3]


# Full contexts


def test_forty_turns_past_a_context_of_256(scripted_model: Scripted) -> None:
    model = scripted_model(["Hello", " world", "!"], chat_template=None, n_ctx=256)
    with talk(model, "s", n_ctx=256, system="Be brief.", template="chatml") as conversation:
        drops = []
        for number in range(40):
            reply = conversation.say(f"q{number}")
            assert "".join(part.text for part in reply.parts()) == "Hello world!"
            assert reply.prompt_tokens + 64 <= 256
            assert "Be brief." in reply.laid.text
            assert number == 0 or "q0<|im_end|>" in reply.laid.text
            drops += [number for note in reply.notes if "no longer sees" in note]
        assert 3 <= len(drops) <= 20
        assert min(later - earlier for earlier, later in itertools.pairwise(drops)) >= 2
        expected = conversation.prompt_ids("next")
        assert conversation.use().dropped_turns > 20
    with talk(model, "s", n_ctx=256) as conversation:
        assert conversation.prompt_ids("next") == expected
        for _ in range(40):
            conversation.undo()
        assert conversation.use().dropped_turns == 0


def test_after_a_drop_the_next_turns_go_on_from_it(scripted_model: Scripted) -> None:
    model = scripted_model(["Hello", " world", "!"], chat_template=STRICT, n_ctx=512)
    with talk(model, n_ctx=512) as conversation:
        dropped_at = None
        for number in range(40):
            reply = conversation.say(f"question number {number}")
            list(reply.parts())
            conversation.settle()
            if dropped_at is not None and not reply.notes:
                assert reply.kept_tokens >= 64
                assert reply.computed_tokens <= 64 + 64
                break
            if reply.notes:
                dropped_at = number
        assert dropped_at is not None


def test_an_error_names_both_numbers_and_changes_nothing(scripted_model: Scripted) -> None:
    model = scripted_model(["Hello"], chat_template=STRICT, n_ctx=256)
    with talk(model, "s", n_ctx=256, overflow="error") as conversation:
        for number in range(6):
            ask(conversation, f"question number {number}")
        before = conversation.history.turns[:]
        with pytest.raises(ContextOverflowError, match=r"2\d\d tokens with this message, and the context 256"):
            conversation.say("question number 6")
        assert conversation.history.turns == before
        conversation.undo()
        assert ask(conversation, "q") == "Hello"
    assert len(library().read("s").history.turns) == 6


@pytest.mark.parametrize("policy", ["error", "drop", "shift"])
def test_a_message_that_no_context_holds(scripted_model: Scripted, policy: str) -> None:
    model = scripted_model(["Hello"], chat_template=STRICT, n_ctx=256)
    with talk(model, n_ctx=256, overflow=policy) as conversation:
        with pytest.raises(ContextOverflowError, match="at least"):
            conversation.say("x" * 10_000_000)
        with pytest.raises(ContextOverflowError, match="256"):
            conversation.say("x" * 400)
        assert ask(conversation, "q") == "Hello"


def test_shift_goes_on_inside_an_answer(scripted_model: Scripted) -> None:
    model = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=256)
    notes = Notes()
    with talk(model, "s", notes=notes, n_ctx=256, overflow="shift", max_tokens=400) as conversation:
        reply = conversation.say("sing")
        text = "".join(part.text for part in reply.parts())
        assert text == "lali" * 200
        assert any("oldest" in note for note in reply.notes)
        conversation.max_tokens = 4
        conversation.settle()
        assert ask(conversation, "more") == "lalilali"
        assert conversation.use().dropped_turns == 1
    with talk(model, n_ctx=256, overflow="drop") as conversation:
        reply = conversation.say("sing")
        list(reply.parts())
        assert reply.finish_reason == "length"
        assert reply.prompt_tokens + reply.completion_tokens == 257


def test_the_first_turns_can_be_let_go(scripted_model: Scripted) -> None:
    model = scripted_model(["Hello"], chat_template=STRICT, n_ctx=256)
    with talk(model, n_ctx=256, keep_turns=0) as conversation:
        for number in range(20):
            ask(conversation, f"question number {number}")
        assert "number 0" not in conversation.prompt_text("x")


# Models, files, sessions


def test_another_model_is_refused_or_adopted(model: Path, scripted_model: Scripted) -> None:
    other = scripted_model(["Servus"], chat_template=STRICT, n_ctx=2048)
    with talk(model, "s") as conversation:
        ask(conversation, "one")
    with pytest.raises(UsageError) as caught, talk(other, "s"):
        pass
    assert model.stem in caught.value.message
    assert other.stem in caught.value.message
    assert library().read("s").header.model.name == model.stem
    with talk(other, "s", may_switch=True) as conversation:
        assert conversation.history.turns[0].ids == ()
        assert ask(conversation, "two") == "Servus"
    with talk(other, "s") as conversation:
        assert [turn.text for turn in conversation.history.turns] == ["Hello world!", "Servus"]
        assert conversation.history.turns[1].prompt_ids != ()


def test_a_fork_parts_and_the_other_stays(model: Path) -> None:
    with talk(model, "s") as conversation:
        ask(conversation, "one")
    library().fork("s", "f")
    with talk(model, "f") as conversation:
        ask(conversation, "two")
        conversation.undo(2)
        ask(conversation, "uno")
    with talk(model, "s") as conversation:
        ask(conversation, "due")
    assert [turn.user for turn in library().read("s").history.turns] == ["one", "due"]
    assert [turn.user for turn in library().read("f").history.turns] == ["uno"]


def test_a_turn_that_cannot_be_written_is_written_with_the_next(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with talk(model, "s") as conversation:
        ask(conversation, "one")
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            assert ask(conversation, "two") == "Hello world!"  # the answer is not lost with it
            with pytest.raises(ResourceError, match="session s cannot be written: No space left"):
                conversation.require_saved()
            conversation.require_saved()  # said once
        assert [turn.user for turn in library().read("s").history.turns] == ["one"]
        assert Reading(library().path("s")).warnings == []
        ask(conversation, "three")
    assert [turn.user for turn in library().read("s").history.turns] == ["one", "two", "three"]


def test_a_full_disk_does_not_refuse_a_turn_that_needs_room(
    scripted_model: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scripted_model([f"w{number} " for number in range(20)], chat_template=STRICT, n_ctx=256)
    with talk(model, "s") as conversation:
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            while not conversation.history.dropped:
                assert ask(conversation, "and then, what came of it?").startswith("w0 w1 ")
        asked = len(conversation.history.turns)
        ask(conversation, "last")
        hidden = conversation.history.hidden
    history = library().read("s").history
    assert (len(history.turns), history.hidden) == (asked + 1, hidden)


def test_a_chat_in_which_nothing_was_said_leaves_no_file(model: Path) -> None:
    with talk(model, "s") as conversation:
        conversation.set_system("x")
    assert not library().exists("s")
    with talk(model, "s", system="y") as conversation:
        conversation.clear()
        ask(conversation, "one")
        assert library().read("s").history.system == "y"


def test_a_template_with_the_date_prints_that_of_the_first_day(scripted_model: Scripted) -> None:
    template = "{{ strftime_now('%Y-%m-%d %H:%M:%S') }} " + STRICT
    model = scripted_model(["Hello"], chat_template=template, n_ctx=2048)
    with talk(model, "s") as conversation:
        ask(conversation, "one")
        begun = conversation.prompt_text("two")[:19]
    path = library().path("s")
    path.write_bytes(path.read_bytes().replace(begun[:4].encode() + b"-", b"1999-"))
    with talk(model, "s") as conversation:
        assert conversation.prompt_text("two").startswith("1999-")


def test_an_edit_that_does_not_fit_costs_nothing(scripted_model: Scripted) -> None:
    model = scripted_model(["Hello"], chat_template=STRICT, n_ctx=256)
    with talk(model, "s", n_ctx=256) as conversation:
        ask(conversation, "one")
        with pytest.raises(ContextOverflowError):
            conversation.edit("x" * 400)
        assert [turn.user for turn in conversation.history.turns] == ["one"]
    assert [turn.user for turn in library().read("s").history.turns] == ["one"]


def test_who_hurries_is_not_kept_waiting(scripted_model: Scripted) -> None:
    model = scripted_model(["la", "li"], chat_template=STRICT, loop=True, n_ctx=2048)
    with talk(model, max_tokens=200) as conversation:
        ask(conversation, "sing")
        conversation.hurry()
        conversation.settle()
        assert len(conversation.engine.session.tokens) == len(conversation.history.turns[0].ids) - 1
        reply = conversation.say("more")
        list(reply.parts())
        assert reply.computed_tokens > 200
        conversation.settle()
        reply = conversation.say("more")
        list(reply.parts())
        assert reply.computed_tokens < 64 + 64


def test_a_model_that_moved_is_found_by_its_name(model: Path, tmp_path: Path) -> None:
    path = library().path("s")
    with talk(model, "s") as conversation:
        ask(conversation, "one")
    path.write_bytes(path.read_bytes().replace(str(model).encode(), str(tmp_path / "gone.gguf").encode()))
    header = library().read("s").header
    assert header.model.path == str(tmp_path / "gone.gguf")
    with talk(model, "s") as conversation:
        assert ask(conversation, "two") == "Hello world!"


def test_numbers_that_are_no_tokens_are_not_given_to_the_engine(model: Path) -> None:
    path, notes = library().path("s"), Notes()
    with talk(model, "s") as conversation:
        ask(conversation, "one")
    path.write_bytes(path.read_bytes().replace(b'"completion_ids": [', b'"completion_ids": [1999999999, '))
    with talk(model, "s", notes=notes) as conversation:
        assert ask(conversation, "two") == "Hello world!"
    assert notes.lines[0] == "session s has token ids that this model lacks: its words are tokenized again"
    assert [bool(turn.ids) for turn in library().read("s").history.turns] == [False, True]
