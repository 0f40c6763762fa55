"""The line at the bottom of a chat: the model, how full the context is, how fast it went and what was reused."""

from __future__ import annotations

from dataclasses import dataclass

from llmcli.cli.safe_text import harmless
from llmcli.engine.chat_reply import Reply
from llmcli.engine.conversation import ContextUse

_BETWEEN = " · "


@dataclass(slots=True)
class Status:
    """What is known so far; the terminal fills it in as it hears of it."""

    model: str = ""
    session: str | None = None
    use: ContextUse | None = None
    tok_s: float | None = None
    reused: str = ""
    doing: str = ""

    def saw(self, reply: Reply) -> None:
        """An answer is over: its rate, and where the tokens of its prompt came from."""
        self.tok_s = reply.timings.decode_tok_s or self.tok_s
        known = reply.kept_tokens + reply.restored_tokens
        if reply.restored_tokens:
            self.reused = f"{reply.restored_tokens:,} of {reply.prompt_tokens:,} tokens restored"
        elif known:
            self.reused = f"{known:,} of {reply.prompt_tokens:,} tokens kept"
        else:
            self.reused = ""

    def line(self) -> str:
        """The line, what matters most first: a narrow terminal cuts its end off."""
        parts = [self.doing, self._context(), f"{self.tok_s:.0f} tok/s" if self.tok_s else "", self.reused]
        parts += [harmless(self.model), f"session {harmless(self.session)}" if self.session else ""]
        return _BETWEEN.join(part for part in parts if part)

    def _context(self) -> str:
        if self.use is None:
            return ""
        dropped = f", {self.use.dropped_turns:,} turns left out" if self.use.dropped_turns else ""
        return f"context {self.use.used_tokens:,}/{self.use.n_ctx:,} ({self.use.percent}%){dropped}"
