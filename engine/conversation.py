"""A conversation with an open model: what was said, and the KV cache that goes with it.

Everything `llmcli chat` does, without the terminal. The history is kept as the tokens that were decoded
(`chat_layout`), the KV stays in memory between turns and comes from the prefix store after a break (`chat_kv`), and
every change is in the session's file before the next one begins (`llmcli.sessions`).

All methods but `interrupt` and `hurry` are called by one thread at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.engine.chat_check import ids_trouble
from llmcli.engine.chat_fit import ChatOverflow, Fitted, fit_turn
from llmcli.engine.chat_kv import ChatKv
from llmcli.engine.chat_layout import ChatLayout
from llmcli.engine.chat_notes import ChatNotes
from llmcli.engine.chat_reply import Asked, Reply
from llmcli.engine.context import Rope
from llmcli.engine.engine import Engine
from llmcli.engine.lora import Lora
from llmcli.engine.plan import Request
from llmcli.engine.prefix_report import CacheOptions
from llmcli.engine.prefix_turns import TurnCache
from llmcli.engine.sampling import Sampling
from llmcli.sessions.file import SessionLog
from llmcli.sessions.turns import History, Turn

_MOST_SEED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """Everything that decides a conversation.

    system       None: that of the session, where there is one
    template     None: that of the session, else the model's own
    max_tokens   per answer; None: until the model ends or the context is full
    keep_turns   how many first turns stay when turns are dropped
    takes_commands   whether there is somebody who can give commands such as /undo: what may be advised
    """

    reference: str | None
    plan: Request
    sampling: Sampling
    rope: Rope = field(default_factory=Rope)
    loras: tuple[Lora, ...] = ()
    system: str | None = None
    template: str | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    overflow: ChatOverflow = "drop"
    keep_turns: int = 1
    takes_commands: bool = False
    cache: CacheOptions = field(default_factory=CacheOptions)


@dataclass(frozen=True, slots=True)
class ContextUse:
    """How full the context is. used_tokens: up to the end of the last answer; system_tokens: 0 where not known."""

    used_tokens: int
    n_ctx: int
    turns: int
    dropped_turns: int
    system_tokens: int

    @property
    def percent(self) -> int:
        """The same as a share of the context, rounded once for everyone who shows it."""
        return round(100 * self.used_tokens / self.n_ctx)


class Conversation:
    """What was said, and how to go on.

    sampling, max_tokens   may be assigned between turns
    on_progress            told (tokens done, tokens to do) while a prompt is computed
    """

    def __init__(
        self,
        engine: Engine,
        layout: ChatLayout,
        request: ChatRequest,
        log: SessionLog,
        prefix: TurnCache | None,
        notify: Callable[[str], None],
    ) -> None:
        self.engine, self._layout, self._request, self._log = engine, layout, request, log
        self.kv = ChatKv(engine, prefix, inexact=request.cache.mode == "max")
        self.sampling, self.max_tokens = request.sampling, request.max_tokens
        self.on_progress: Callable[[int, int], None] | None = None
        self._hurry = threading.Event()
        self._unsettled: Reply | None = None
        self._unsaved: LlmcliError | None = None
        self.last_reply: Reply | None = None
        self._resumed_tokens = len(self.history.turns[-1].ids) if self.history.turns else 0
        self._notes = ChatNotes(notify)
        self._system_tokens = 0

    @property
    def history(self) -> History:
        """What was said and still stands."""
        return self._log.history

    @property
    def log(self) -> SessionLog:
        """The session; one without a file where the conversation is not saved."""
        return self._log

    @property
    def name(self) -> str | None:
        """The session's name; None where the conversation is not saved."""
        return self._log.name

    @property
    def takes_commands(self) -> bool:
        """Whether commands such as /undo can be given here."""
        return self._request.takes_commands

    @property
    def overflow(self) -> ChatOverflow:
        """--on-overflow."""
        return self._request.overflow

    @property
    def cache_mode(self) -> str:
        """--cache."""
        return self._request.cache.mode

    @property
    def template_name(self) -> str:
        """Which chat template is in use."""
        return self._layout.template.name

    # Turns

    def say(self, text: str) -> Reply:
        """Ask; the answer is computed while it is read. Raises LlmcliError, and then nothing has changed."""
        self._settle_rest()
        self.engine.stop.clear()
        self._hurry.clear()
        begun = time.perf_counter()
        fitted = self._fit(text, self.history)
        laid = fitted.laid
        if fitted.hidden != self.history.hidden:
            self._log.hide(*fitted.hidden)
        self._layout.remember(laid)
        self._system_tokens = laid.system_tokens
        asked = Asked(
            user=text,
            laid=laid,
            sampling=self._sampling_of_turn(),
            max_tokens=self.max_tokens,
            stops=self._request.stops,
            shift=self._request.overflow == "shift",
            keep_tokens=laid.system_tokens or self.engine.model.tokenizer.adds_bos * 1,
            tokenize_s=time.perf_counter() - begun,
            number=len(self.history.turns) + 1,
        )
        reply = Reply(self, asked, self._record)
        self._notes.of_layout(reply, fitted, self.history, self.engine.context.n_ctx)
        return reply

    def retry(self) -> Reply:
        """The last question again. Raises UsageError where there is none."""
        return self.edit(self.last_question("ask again"))

    def edit(self, text: str) -> Reply:
        """Another question in the place of the last one. Raises UsageError where there is none."""
        self.last_question("change")
        without = replace(self.history, turns=self.history.turns[:])
        without.undo(1)
        self._fit(text, without)  # what does not fit must not cost the turn that is there
        self.undo()
        return self.say(text)

    def undo(self, count: int = 1) -> int:
        """Take the last turns back; how many there were."""
        return self._log.undo(count)

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self._log.clear()

    def set_system(self, text: str | None) -> None:
        """Another system prompt, or none, from here on."""
        self._log.set_system(text)

    def replace(self, history: History) -> None:
        """Go on with another history in the place of this one."""
        if trouble := ids_trouble(history, self.engine.model.tokenizer):
            self.tell(f"it has {trouble}: its words are tokenized again")
            history.change_model()
        self._log.replace(history)
        self._resumed_tokens = len(history.turns[-1].ids) if history.turns else 0

    def use_log(self, log: SessionLog) -> None:
        """Go on in another session that says the same (a fork)."""
        self._log = log

    def last_user_text(self) -> str | None:
        """The last question, answered or not."""
        return self.history.last_user_text()

    def last_question(self, purpose: str) -> str:
        """The last question that stands. Raises UsageError that says what it was wanted for."""
        text = self.history.last_user_text()
        if text is None:
            raise UsageError(f"nothing is left to {purpose}" if self.history.asked else "nothing was asked yet")
        return text

    def _fit(self, text: str, history: History) -> Fitted:
        return fit_turn(
            self._layout,
            history,
            text,
            n_ctx=self.engine.context.n_ctx,
            max_tokens=self.max_tokens,
            policy=self._request.overflow,
            keep_turns=self._request.keep_turns,
            takes_commands=self._request.takes_commands,
            longest_token_bytes=self.engine.inspected.facts.longest_token_bytes,
        )

    def _sampling_of_turn(self) -> Sampling:
        """Each turn has a seed of its own, or /retry would give the same answer again."""
        return replace(self.sampling, seed=(self.sampling.seed + self.history.asked) % _MOST_SEED)

    def _record(self, reply: Reply, turn: Turn) -> None:
        self._unsettled = self.last_reply = reply
        try:
            self._log.add(turn)
        except LlmcliError as error:  # the answer is there, and is to be seen first
            self._unsaved = error
        if not turn.is_answered:
            again = " (/retry asks it again)" if self.takes_commands else ""
            reply.tell(f"there is no answer: the question is left out of what follows{again}")

    def require_saved(self) -> None:
        """To be called when an answer is on screen. Raises LlmcliError where it could not be written."""
        error, self._unsaved = self._unsaved, None
        if error:
            raise error

    def tell(self, note: str) -> None:
        """Tell the user, each line once."""
        self._notes.tell(note)

    def about_to_compute(self, reply: Reply, count: int) -> None:
        """The KV that could be had is there."""
        expected, self._resumed_tokens = self._resumed_tokens, 0
        self._notes.of_loss(reply, min(expected, reply.prompt_tokens), count)

    # Between the turns

    def settle(self, *, ahead: bool = True) -> None:
        """End what goes on behind an answer: saving its prompt, and computing the answer's tokens as a prompt.

        ahead   False leaves the second to the next turn, which has to do it then
        """
        self._settle_rest()
        if not ahead or not self.history.turns or self._hurry.is_set() or not self.engine.session.is_whole:
            return
        ids = self.history.turns[-1].ids
        if not ids or len(ids) >= self.engine.context.n_ctx or self.engine.stop.is_set():
            return
        begun = time.perf_counter()
        computed = self.kv.ahead(ids, lambda: not self._hurry.is_set())
        if self.kv.prefix:
            taken_s = time.perf_counter() - begun
            self.kv.prefix.finish(computed / taken_s if computed else None, computed)

    def _settle_rest(self) -> None:
        reply, self._unsettled = self._unsettled, None
        if reply and self.kv.prefix:
            self.kv.prefix.finish(reply.timings.prefill_tok_s, reply.timings.prefill_tokens)

    def interrupt(self) -> None:
        """End the answer, or what is done ahead. From any thread."""
        self._hurry.set()
        self.engine.stop.set()

    def hurry(self) -> None:
        """Somebody waits: leave what is done ahead. From any thread."""
        self._hurry.set()

    # Looking

    def use(self) -> ContextUse:
        """How full the context is."""
        visible = self.history.visible()
        return ContextUse(
            used_tokens=len(visible[-1].ids) if visible else self._system_tokens,
            n_ctx=self.engine.context.n_ctx,
            turns=len(self.history.turns),
            dropped_turns=self.history.dropped,
            system_tokens=self._system_tokens,
        )

    def given_text(self) -> str | None:
        """The last prompt that stands, as the model was given it; None where this model was given none.

        Raises ModelError where the template does not render any more what it rendered before.
        """
        reply, history = self.last_reply, self.history
        if history.unanswered is not None and reply and reply.user == history.unanswered:
            return reply.laid.text
        if not history.turns or not history.turns[-1].prompt_ids:
            return None
        return self._layout.asked_text(history, len(history.turns) - 1)

    def prompt_text(self, user: str = "") -> str:
        """What the model would be given for this question, as text."""
        return self._layout.lay_out(self.history, user).text

    def prompt_ids(self, user: str = "") -> tuple[int, ...]:
        """The same as tokens."""
        return self._layout.lay_out(self.history, user).ids
