"""What a shell is offered for the value at hand: names of models, sessions, prefixes, aliases and types; and files.

Everything is looked up on this machine, without a model being opened. What cannot be read offers nothing: a shell that
waits for a Tab has no place for an error.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from llmcli.base.errors import LlmcliError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from llmcli.base.settings import Settings

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]
_SPECIAL = frozenset(" \t\n\"'\\$`&|;<>()[]{}*?!#~")  # a shell takes these for its own: such names are typed by hand


def complete_file(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, which the shell itself knows best."""
    return _completed_by_shell(incomplete, "file")


def complete_folder(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders."""
    return _completed_by_shell(incomplete, "dir")


def complete_model(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names of `llmcli ls`, aliases, and files."""
    return _names_and_files(incomplete, _known(_models))


def complete_pull(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Short names and aliases of what can be fetched."""
    return _plain(incomplete, _known(_short_names))


def complete_alias(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The user's own aliases."""
    return _plain(incomplete, _known(lambda settings: sorted(settings.aliases)))


def complete_session(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Saved conversations, the last used first."""
    return _plain(incomplete, _known(_sessions))


def complete_prefix(context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Named prefixes of the store."""
    folder = context.params.get("cache_dir")
    return _plain(incomplete, _known(lambda settings: _prefixes(settings, folder)))


def complete_types(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Types of quantization, one or several with commas between."""
    return _plain(incomplete, _types(incomplete))


def complete_tensor_type(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Types of tensors."""
    from llmcli.models.gguf_types import GGML_TYPES, WEIGHT_TYPES

    return _plain(incomplete, [GGML_TYPES[number].name for number in sorted(WEIGHT_TYPES)])


def complete_quantize(context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """IN [OUT] TYPE: a model comes first, then a file or types."""
    before = context.params.get("words") or ()
    if not before:
        return _names_and_files(incomplete, _known(_models))
    chosen = any(context.params.get(name) for name in ("fit", "bpw", "for_this_machine"))
    return _names_and_files(incomplete, [] if chosen else _types(incomplete))


def _types(incomplete: str) -> list[str]:
    from llmcli.quant.types import TARGET_TYPES

    done = incomplete[: incomplete.rfind(",") + 1].upper()
    return [done + target.name for target in TARGET_TYPES if target.name not in done.split(",")]


def _models(settings: Settings) -> Iterable[str]:
    from llmcli.models.default_model import BUILT_IN
    from llmcli.models.inventory import take_inventory

    here = [entry.reference for entry in take_inventory(settings) if entry.is_usable]
    return [*sorted(settings.aliases), *BUILT_IN, *(name for name in here if not os.path.isabs(name))]


def _short_names(settings: Settings) -> Iterable[str]:
    from llmcli.models.catalogue import CATALOGUE
    from llmcli.models.default_model import BUILT_IN

    return [*sorted(settings.aliases), *BUILT_IN, *CATALOGUE]


def _sessions(settings: Settings) -> Iterable[str]:
    from llmcli.sessions.library import Library

    return Library(settings.sessions_dir).names()


def _prefixes(settings: Settings, folder: str | None) -> Iterable[str]:
    from llmcli.cache_store.layout import Layout
    from llmcli.cache_store.names import names_in
    from llmcli.cli.cache_options import cache_from
    from llmcli.engine.prefix_report import store_folder

    layout = Layout(store_folder(cache_from({"cache_dir": folder}, settings), settings))
    return [entry.name for entry in names_in(layout)]


def _known(names_of: Callable[[Settings], Iterable[str]]) -> list[str]:
    """Nothing where it cannot be known, such as with a config.toml that cannot be read."""
    from llmcli.base.settings import load

    with contextlib.suppress(LlmcliError, OSError):
        return list(names_of(load()))
    return []


def _names_and_files(incomplete: str, names: Sequence[str]) -> list[CompletionItem]:
    """The names behind the shell's own files. The script for bash shows no files beside names, so there they are named
    here.
    """
    from llmcli.base.settings import load

    fitting = _plain(incomplete, names)
    if fitting and load().completes_for_bash:
        return [*fitting, *_plain(incomplete, _files(incomplete))]
    return [*_completed_by_shell(incomplete, "file"), *fitting]


def _files(incomplete: str) -> list[str]:
    folder, base = os.path.split(incomplete)
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(os.path.expanduser(folder) or ".") as entries:
        found += [os.path.join(folder, entry.name) + "/" * entry.is_dir() for entry in entries]
    return sorted(found) if base.startswith(".") else sorted(name for name in found if not _is_hidden(name))


def _is_hidden(path: str) -> bool:
    return os.path.basename(path.rstrip("/")).startswith(".")


def _plain(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    begin = incomplete.casefold()
    fitting = dict.fromkeys(name for name in names if name.casefold().startswith(begin))
    return [CompletionItem(name) for name in fitting if name.isprintable() and not _SPECIAL.intersection(name)]


def _completed_by_shell(incomplete: str, kind: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # not for the calls that answer

    return [CompletionItem(incomplete, type=kind)]
