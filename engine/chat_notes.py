"""What a user should know about a turn besides its answer, in one line each, and no line twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmcli.base.units import format_count
from llmcli.engine.chat_fit import Fitted
from llmcli.engine.chat_layout import Laid
from llmcli.sessions.turns import History

if TYPE_CHECKING:
    from llmcli.engine.chat_reply import Reply

# So many tokens of a known conversation computed again are worth a line.
_WORTH_SAYING_TOKENS = 128


class ChatNotes:
    """Remembers what was told. `notify` shows a line."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._told: set[str] = set()

    def tell(self, line: str) -> None:
        """Show a line, unless it was shown before."""
        if line not in self._told:
            self._told.add(line)
            self._notify(line)

    def of_layout(self, reply: Reply, fitted: Fitted, history: History, n_ctx: int) -> None:
        """What the prompt is without, and what its template does to earlier turns."""
        laid = fitted.laid
        if laid.system_merged:
            reply.tell("this model's template has no system role: the system prompt goes into the first user turn")
        if fitted.dropped:
            total = history.dropped
            more = "" if total == fitted.dropped else f" now, {total:,} in all"
            reply.tell(
                f"the context of {n_ctx:,} tokens is full: the model no longer sees "
                f"{format_count(fitted.dropped, 'older turn')}{more}"
            )
        elif laid.earlier and laid.taken_tokens < len(laid.earlier):
            self._of_parting(reply, laid, history)

    def _of_parting(self, reply: Reply, laid: Laid, history: History) -> None:
        last = history.visible()[-1]
        if last.system != history.system:
            return  # the user changed it
        reason = "leaves out earlier thinking" if last.reasoning else "renders earlier answers in another way"
        if reason not in self._told:
            self._told.add(reason)
            count = len(laid.earlier) - laid.taken_tokens
            reply.tell(
                f"this model's chat template {reason}: from there on ({format_count(count, 'token')} now) "
                "each turn is computed again"
            )

    def of_loss(self, reply: Reply, known_tokens: int, computing_tokens: int) -> None:
        """Say where much of what was known is computed again, and why."""
        missing = known_tokens - reply.kept_tokens - reply.restored_tokens
        if missing < _WORTH_SAYING_TOKENS or computing_tokens < _WORTH_SAYING_TOKENS:
            return
        report = reply.cache_report
        reason = (report.miss_reason or report.mode).replace("_", " ")
        detail = f": {report.miss_detail}" if report.miss_detail else ""
        count = format_count(computing_tokens, "token")
        reply.tell(f"{count} of this conversation are computed again ({reason}{detail})")
