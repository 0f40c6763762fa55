"""A conversation as values: turns with their token ids, and what the model sees of them.

Knows what a turn is, not how it is stored and not how it is computed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

NOTHING_HIDDEN = (0, 0)


def local_now() -> datetime:
    """The time here, with its zone."""
    return datetime.now(timezone.utc).astimezone()


@dataclass(frozen=True, slots=True)
class Turn:
    """One question and its answer.

    text            the answer as the reader saw it, without thinking
    content         what the chat template is given as the answer: thinking and its marks included
    prompt_ids      every token the model was given, from position 0 on; () where they are not known (another model)
    completion_ids  the tokens of `content` as they were decoded
    system, hidden  the system prompt, and the earlier turns that were left out, when this was asked
    at              local time when the answer ended, ISO 8601
    noted_sum       words_sum as the file has it: "" where it has none, None in a turn that comes from no file
    """

    user: str
    text: str = ""
    reasoning: str = ""
    content: str = ""
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    finish_reason: str = "stop"
    system: str | None = None
    hidden: tuple[int, int] = NOTHING_HIDDEN
    at: str = ""
    noted_sum: str | None = field(default=None, compare=False)

    @property
    def words_sum(self) -> str:
        """A checksum of the words that the ids were made of: whoever edits the words in a file leaves it behind."""
        words = "\0".join((repr(self.system), self.user, self.text, self.content))
        return f"{zlib.crc32(words.encode('utf-8', 'surrogatepass')):08x}"

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer to go on from; a turn without one would break a template's alternation.

        Thinking alone is none: templates leave it out.
        """
        return bool(self.text.strip())

    @property
    def ids(self) -> tuple[int, ...]:
        """The tokens of the conversation up to the end of this answer."""
        return self.prompt_ids + self.completion_ids

    def without_ids(self) -> Turn:
        """The same words, for a model with other tokens."""
        return replace(self, prompt_ids=(), completion_ids=())


@dataclass(slots=True)
class History:
    """What was said and still stands.

    turns         answered turns, in order
    hidden        [start, end) of the turns that the model no longer sees, because they did not fit
    asked         turns ever asked, those taken back included
    unanswered    the last question, where it got no answer
    """

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)
    hidden: tuple[int, int] = NOTHING_HIDDEN
    asked: int = 0
    unanswered: str | None = None

    @property
    def dropped(self) -> int:
        """How many turns the model no longer sees."""
        return self.hidden[1] - self.hidden[0]

    def visible(self) -> list[Turn]:
        """The turns that the model sees."""
        start, end = self.hidden
        return [*self.turns[:start], *self.turns[end:]]

    def before(self, position: int) -> list[Turn]:
        """The turns that the model saw when `turns[position]` was asked."""
        start, end = self.turns[position].hidden
        return [*self.turns[:start], *self.turns[end:position]]

    def add(self, turn: Turn) -> None:
        """A turn has ended."""
        self.asked += 1
        self.unanswered = None if turn.is_answered else turn.user
        if turn.is_answered:
            self.turns.append(turn)

    def undo(self, count: int) -> int:
        """Take back the last `count` turns; how many there were. An unanswered one is the first to go."""
        taken = 0
        if count and self.unanswered is not None:
            self.unanswered, taken = None, 1
        going = min(count - taken, len(self.turns))
        del self.turns[len(self.turns) - going :]
        if going and self.hidden[1] >= len(self.turns):  # nothing is left behind the gap: there is room for all again
            self.hidden = NOTHING_HIDDEN
        return taken + going

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()
        self.hidden, self.unanswered = NOTHING_HIDDEN, None

    def hide(self, start: int, end: int) -> None:
        """Leave [start, end) out from now on."""
        if not 0 <= start <= end <= len(self.turns):
            raise ValueError(f"turns {start} to {end} of {len(self.turns)}")
        self.hidden = (start, end)

    def change_model(self) -> None:
        """The words stay, the tokens are another model's."""
        self.turns[:] = [turn.without_ids() for turn in self.turns]

    def has_ids_from(self, end: int) -> bool:
        """Whether there are token ids of `end` or more: those are none of a model that has so many tokens."""
        return any(max(turn.ids, default=0) >= end for turn in self.turns)

    def last_user_text(self) -> str | None:
        """The last question, answered or not."""
        if self.unanswered is not None:
            return self.unanswered
        return self.turns[-1].user if self.turns else None
