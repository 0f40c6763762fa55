"""The last word before something is removed: --dry-run, --yes, or a question at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from llmcli.base.errors import UsageError
from llmcli.cli import output
from llmcli.cli.options import group, option

F = TypeVar("F", bound=Callable[..., Any])
_STDIN, _STDERR = 0, 2
_YES = {"y", "yes"}

confirm_options = group(
    option("--dry-run", is_flag=True, help="Show what would be done, and do nothing."),
    option("-y", "--yes", is_flag=True, help="Do it without asking."),
)


def confirmed(question: str, plan: Sequence[str], values: Mapping[str, Any]) -> bool:
    """Whether to go on with `plan`; False after --dry-run, and where the user does not say yes.

    The plan is shown on stdout with --dry-run (unless --json shows it), else on stderr unless --quiet.
    Raises UsageError where there is neither --yes nor a terminal to ask at: nobody said that it may be done.
    """
    if values["dry_run"]:
        if not values["json"]:
            output.write("".join(line + "\n" for line in plan))
        return False
    if not values["quiet"]:
        for line in plan:
            output.stderr_line(line)
    if values["yes"]:
        return True
    if not (output.is_terminal(_STDIN) and output.is_terminal(_STDERR)):
        raise UsageError("nothing was removed: this asks first, and there is no terminal", hint="--yes, or --dry-run")
    output.stderr_text(f"{question} [y/N] ")
    try:
        return output.read_line().strip().lower() in _YES
    except KeyboardInterrupt:
        output.stderr_text("\n")  # the terminal has put ^C behind the question
        raise
