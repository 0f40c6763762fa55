"""`llmcli chat` at a terminal that can only print (TERM=dumb): a prompt, a line, an answer, no cursor movements.

Everything happens in the main thread. Ctrl-C stops an answer; at the prompt the first one says how to leave.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterator

from llmcli.base.errors import LlmcliError
from llmcli.base.text import decode_utf8, printable
from llmcli.cli import output
from llmcli.cli.chat_external import edited
from llmcli.cli.chat_shell import ChatShell, FrontOptions, ending_of
from llmcli.cli.chat_turn_text import PROMPT, PROMPT_BELOW, block_is_open, unquoted
from llmcli.cli.safe_text import SafeText
from llmcli.engine.chat_reply import Reply

_INTERRUPTED = 130
_LEAVES = "Ctrl-C again leaves, as do Ctrl-D and /exit"


def run_dumb(shell: ChatShell, options: FrontOptions) -> int:
    """Chat until the user leaves; the exit code."""
    if not options.quiet:
        output.write("/help lists the commands, Ctrl-D leaves\n")
    shell.columns = lambda: shutil.get_terminal_size().columns
    hinted = False
    with _plain_interrupts():
        while True:
            try:
                text = _read_turn()
            except KeyboardInterrupt:
                output.write("\n" + ("" if hinted else _LEAVES + "\n"))
                if hinted:
                    return _INTERRUPTED
                hinted = True
                continue
            hinted = False
            if text is None:
                output.write("\n")
                return 0
            if text.strip() and _do(shell, options, text):
                return 0


@contextlib.contextmanager
def _plain_interrupts() -> Iterator[None]:
    """While inside, Ctrl-C raises KeyboardInterrupt and does no more."""
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, kept)


def _read_turn() -> str | None:
    """What the user typed, several lines where three quotes begin it; None at the end of the input."""
    text = ""
    while True:
        output.write(PROMPT_BELOW if text else PROMPT)
        data = sys.stdin.buffer.readline()
        if not data:
            return text or None
        text += decode_utf8(data).text
        if not block_is_open(text):
            return unquoted(text.rstrip("\r\n"))


def _do(shell: ChatShell, options: FrontOptions, text: str) -> bool:
    """One turn or command; whether the chat is over."""
    try:
        if not shell.is_command(text.strip()):
            _stream(shell, options, lambda: shell.conversation.say(shell.compose(text)))
            return False
        outcome = shell.do(text.strip())
        for line in outcome.lines:
            output.write(line + "\n")
        if outcome.reply:
            reply = outcome.reply
            _stream(shell, options, lambda: reply)
        if outcome.edit is not None and (new := edited(outcome.edit, options.settings)):
            _stream(shell, options, lambda: shell.conversation.edit(new))
    except LlmcliError as error:
        hint = f" ({error.hint})" if error.hint else ""
        output.write("error: " + printable(error.message + hint) + "\n")
        return False
    except KeyboardInterrupt:
        output.write("\n")
        return False
    return outcome.leave


def _stream(shell: ChatShell, options: FrontOptions, ask: Callable[[], Reply]) -> None:
    reply, safe, last = ask(), SafeText(), ""
    for part in reply.parts():
        if part.kind == "reasoning":
            if options.reasoning == "show":
                options.reporter.thinking(part.text)
                last = part.text[-1:] or last
            continue
        text = safe.push(part.text)
        output.write(text)
        last = text[-1:] or last
    output.write(safe.finish() + ("" if last == "\n" else "\n"))
    if ending := ending_of(reply):
        output.write(f"[{ending}]\n")
    if options.stats:
        output.stderr_line(reply.stats_line())
    shell.conversation.require_saved()
    with contextlib.suppress(KeyboardInterrupt):
        shell.conversation.settle(ahead=False)
