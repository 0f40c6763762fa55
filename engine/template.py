"""A chat template: compiled when it is first used, rendered within limits, its failures as one line.

The template is text from a file that somebody made; what it may do is bounded by template_sandbox. A broken one
harms nobody who works without it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llmcli.base.errors import ModelError, UsageError
from llmcli.base.records import dataclass
from llmcli.base.text import printable

if TYPE_CHECKING:
    from llmcli.engine.template_sandbox import BoundedEnvironment

NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
_HINT = "--chat-template NAME|FILE takes another template, --raw does without one"
# Some templates look at all messages for each message: 500 of them take one of Google's 1.5 s.
_TIME_PER_MESSAGE_S = 0.005
_MOST_REASON_CHARS = 300
_ROLE = re.compile(r"\w+")
# Stand for a prompt and a question when it is tried out what a template does; a template prints them or it does not.
_TRIAL_SYSTEM, _TRIAL_USER = "trial-system-7f3a", "trial-user-7f3a"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. The role is part of the template's text, so it has to be a plain word."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if not _ROLE.fullmatch(self.role):
            raise UsageError(f'"{printable(self.role)}" is not a role', hint="system, user, assistant")


class TemplateBrokenError(ModelError):
    """The template does not compile, or went over a limit: to try it with other messages would only take time."""


class ChatTemplate:
    """A template with the texts of the model's BOS and EOS tokens.

    name        "the model's own", a preset's name or a file; stands in error messages
    time_s      limit for one rendering, the first one with its compilation; a long conversation gets more
    clock       what strftime_now takes the time from
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        name: str,
        time_s: float = 2.0,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.name = name
        self._texts = {"bos_token": bos_text, "eos_token": eos_text}
        self._time_s = time_s
        self.clock = clock
        self._lock = threading.Lock()  # the environment counts for one rendering at a time
        self._environment: BoundedEnvironment | None = None
        self._run: Callable[[Mapping[str, Any]], Iterator[str]] | None = None
        self._supports_system: bool | None = None
        self._content_in_parts: bool | None = None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] = NO_VARIABLES,
        now: datetime | None = None,
    ) -> str:
        """The text of the conversation; `extra` are further variables for the template.

        Raises ModelError where the template does not compile, fails, goes over a limit or refuses the messages.
        """
        variables: dict[str, Any] = {
            "tools": None,
            "documents": None,
            **extra,
            **self._texts,
            "messages": [{"role": message.role, "content": self._content(message)} for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        return self._rendered(variables, now or self.clock())

    def supports_system(self) -> bool:
        """Whether a system prompt reaches the text: some templates refuse one, some drop it in silence."""
        if self._supports_system is None:
            trial = [Message("system", _TRIAL_SYSTEM), Message("user", _TRIAL_USER)]
            self._supports_system = _TRIAL_SYSTEM in self._tried(trial)
        return self._supports_system

    def literals(self) -> Collection[str]:
        """The strings written in the template; empty before it was rendered."""
        return self._environment.literals if self._environment else ()

    def _content(self, message: Message) -> Any:
        """The content as a string, or as a list of parts for the few templates that read nothing else."""
        if self._content_in_parts is None:
            self._content_in_parts = False
            trial = [Message("user", _TRIAL_USER)]
            if _TRIAL_USER not in self._tried(trial):
                self._content_in_parts = True
                self._content_in_parts = _TRIAL_USER in self._tried(trial)
        return [{"type": "text", "text": message.content}] if self._content_in_parts else message.content

    def _tried(self, messages: Sequence[Message]) -> str:
        try:
            return self.render(messages)
        except TemplateBrokenError:
            raise
        except ModelError:
            return ""

    def _rendered(self, variables: Mapping[str, Any], now: datetime) -> str:
        from llmcli.engine.template_meter import Meter, input_size
        from llmcli.engine.template_sandbox import BoundedEnvironment

        with self._lock:
            time_s = self._time_s + _TIME_PER_MESSAGE_S * len(variables["messages"])
            meter = Meter(input_size(dict(variables)), time_s=time_s)
            environment = self._environment or BoundedEnvironment()
            environment.meter, environment.now = meter, now
            if self._run is None:
                with self._failures(TemplateBrokenError):
                    self._environment, self._run = environment, environment.compile_source(self.source)
            try:
                with self._failures(ModelError):
                    return environment.concat(self._run(variables))
            finally:
                environment.meter = Meter()  # the other one holds on to all that the template made

    @contextmanager
    def _failures(self, kind: type[ModelError]) -> Iterator[None]:
        """Whatever a template does wrong, as one ModelError of this kind."""
        import jinja2

        from llmcli.engine.template_meter import TemplateLimitError
        from llmcli.engine.template_sandbox import RefusedError

        try:
            yield
        except TemplateLimitError as error:
            raise self._error(str(error), TemplateBrokenError) from None
        except RefusedError as error:
            raise self._error(f"refuses the messages: {error.message}", kind) from None
        except jinja2.TemplateSyntaxError as error:
            raise self._error(f"is not valid in line {error.lineno}: {error.message}", kind) from None
        except (RecursionError, MemoryError):
            raise self._error("is nested too deeply", kind) from None
        except SyntaxError as error:  # of the code made from it: Python allows 20 nested loops
            raise self._error(f"cannot be compiled: {error.msg}", kind) from None
        except (
            # What Python raises when a template does what cannot be done: adds text to a number, divides by zero,
            # unpacks too much.
            jinja2.TemplateError,
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            NameError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise self._error(f"fails: {str(error) or type(error).__name__}", kind) from None

    def _error(self, what: str, kind: type[ModelError]) -> ModelError:
        reason = printable(" ".join(what.split()))
        if len(reason) > _MOST_REASON_CHARS:
            reason = reason[:_MOST_REASON_CHARS] + "…"
        return kind(f"the chat template ({printable(self.name)}) {reason}", hint=_HINT)


def warm_up() -> None:
    """Import what rendering needs (some 40 ms); for a thread beside the loading of the model."""
    import llmcli.engine.template_sandbox  # noqa: F401
