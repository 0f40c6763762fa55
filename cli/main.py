"""The whole command line: a lazy table of commands and the one error boundary.

`llmcli --help` and `--version` load click and nothing else of weight: the table carries the summaries, and a command's
module is imported when that command is called.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import click
from click.core import ParameterSource

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.version import VERSION
from llmcli.cli import ctrl_c, output
from llmcli.cli.lazy import LazyGroup

# name -> (module below llmcli.cli, attribute, one-line summary)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("cmd_run", "command", "Answer one prompt, from the command line or a pipe."),
    "ls": ("cmd_ls", "command", "List the models that are here."),
    "show": ("cmd_show", "command", "Show what a model is, also one on the hub."),
    "rm": ("cmd_rm", "command", "Remove models, and what is stored of them."),
    "alias": ("cmd_alias", "group", "Give models short names."),
    "verify": ("cmd_verify", "command", "Check the bytes, header and tensors of models."),
    "path": ("cmd_path", "command", "Print the file of a model."),
    "chat": ("cmd_chat", "command", "Talk with a model; conversations come back at once."),
    "sessions": ("cmd_sessions", "group", "List, show, export, copy and remove saved conversations."),
    "pull": ("cmd_pull", "command", "Fetch models: checked, resumed where they broke off."),
    "cache": ("cmd_cache", "group", "List, name, fill, move and check the stored prompt prefixes."),
    "bench": ("cmd_bench", "group", "Measure rates and latency, compare, tune."),
    "quantize": ("cmd_quantize", "command", "Make a model smaller, and tell what became of it."),
    "tokenize": ("cmd_tokenize", "command", "Show the token ids and pieces of a text."),
    "imatrix": ("cmd_imatrix", "command", "Measure which weights matter, for better quantizing."),
    "quality": ("cmd_quality", "command", "Measure perplexity, and the distance from another model."),
    "doctor": ("cmd_doctor", "command", "Check this machine, the build and the folders."),
    "completion": ("cmd_completion", "command", "Print the completion script for your shell."),
}
_PROGRAM = "llmcli"
_OBJECTS_AT_START = 50_000  # imports make so many that stay; to look through them again and again took 5 ms
_EPILOG = """\b
Examples:
  llmcli run "Why is the sky blue?"
  git log -5 | llmcli run "Summarise"
  llmcli COMMAND --help

Every option has a default in the environment, LLMCLI_<OPTION>, and in config.toml."""


class Main(LazyGroup):
    """The outermost group: runs a command line and lets every failure out as it was raised."""

    def call(self, arguments: Sequence[str]) -> object:
        """Run one command line and return what the command returned; every failure comes out as it was raised.

        click's own `main` is no use for that: it makes exit code 1 of a closed pipe, and writes a blank line at Ctrl-C.
        """
        try:
            self._main_shell_completion({}, _PROGRAM)  # answers the completion script of a shell, and exits
        except (KeyError, ValueError):
            raise UsageError(
                "_LLMCLI_COMPLETE is set, and what the shell is to complete is not", hint="llmcli completion"
            ) from None
        with self.make_context(_PROGRAM, list(arguments)) as context:
            return self.invoke(context)


@click.group(
    cls=Main,
    table=COMMANDS,
    otherwise='llmcli run "PROMPT", or llmcli --help',
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(VERSION, "-V", "--version", prog_name=_PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Run GGUF language models in the terminal; no prompt prefix is ever computed twice."""
    from llmcli.base.settings import load

    ctx.obj = load()
    ctx.default_map = ctx.obj.flag_defaults()
    main.pass_defaults_on(ctx)


def run() -> None:
    """Run the command line of this process, and end it."""
    import gc

    gc.set_threshold(_OBJECTS_AT_START)
    ctrl_c.install()
    code = call(sys.argv[1:])
    _leave(output.flush_clicks_output() or code)


def _leave(code: int) -> NoReturn:
    """End the process without taking the interpreter apart, 15 ms; what must be closed is, by the commands."""
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        os._exit(code)
    sys.exit(code)


def call(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; every failure becomes one line on stderr here."""
    output.open_missing_descriptors()
    try:
        result = main.call(arguments)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        output.stderr_text(error.format_message() + "\n")
        return 2
    except click.ClickException as error:
        return _fail(_usage_line(error, arguments), 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", ctrl_c.INTERRUPTED)
    except LlmcliError as error:
        return _fail(error.message, error.exit_code, hint=error.hint)
    except BrokenPipeError:
        return output.READER_GONE
    except OSError as error:
        return _fail(output.os_error_line(error), 6 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
    except MemoryError:
        return _fail("not enough memory", 6)
    except Exception as error:  # noqa: BLE001  # the boundary: whatever is left is our bug, told in one line
        return _bug(error, verbose=any(a in ("-v", "--verbose") for a in arguments))


def _usage_line(error: click.ClickException, arguments: Sequence[str]) -> str:
    context: click.Context | None = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split())
    if context:
        return f"{message}{_origin(error, context)} (see {context.command_path} --help)"
    # click's parser says what is wrong with an option, not of which command.
    command = [name for name in arguments[:1] if name in COMMANDS]
    return f"{message} (see {' '.join([_PROGRAM, *command, '--help'])})"


def _origin(error: click.ClickException, context: click.Context) -> str:
    """Where a bad value stands, if not on the command line."""
    param = getattr(error, "param", None)
    if param is None:
        return ""
    source = context.get_parameter_source(param.name)
    if source is ParameterSource.ENVIRONMENT:
        return f", from {param.envvar}"
    return f", from {context.obj.config_file}" if source is ParameterSource.DEFAULT_MAP else ""


def _bug(error: Exception, *, verbose: bool) -> int:
    if verbose:
        import traceback

        output.stderr_text("".join(traceback.format_exception(error)))
    return _fail(f"internal error, please report it: {type(error).__name__}: {error} (-v shows where)", 1)


def _fail(message: str, code: int, *, hint: str | None = None) -> int:
    output.stderr_error(message, hint)
    return code


if __name__ == "__main__":
    run()
