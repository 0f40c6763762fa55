"""The options of the prefix store, and how every command that uses it opens it."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from llmcli.base.errors import LlmcliError, UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cache_store.policy import DEFAULT_MIN_TOKENS, DEFAULT_TTL_S, Policy
from llmcli.cli.options import group, option
from llmcli.cli.params import Duration, Size, Whole
from llmcli.engine.prefix_report import MODEL_PATH_NOTE, CacheOptions, store_folder

if TYPE_CHECKING:
    from llmcli.cache_store.keys import Fingerprint
    from llmcli.cache_store.match import BlockRef
    from llmcli.cache_store.store import PrefixStore
    from llmcli.engine.prefix_admin import BenchRequest
    from llmcli.engine.prefix_recipe import Recipe

cache_dir_option = option(
    "--cache-dir", metavar="DIR", help="Folder of the prefix store. [default: in the cache folder]"
)

cache_max_option = option(
    "--cache-max",
    type=Size(),
    metavar="SIZE",
    help="Most bytes to keep, as 4G. [default: a tenth of the free disk, at most 20G]",
)
cache_ttl_option = option(
    "--cache-ttl",
    type=Duration(or_never=True),
    default=DEFAULT_TTL_S,
    metavar="DURATION",
    help="Forget what was not used for so long, as 12h or 7d; or never. [default: 30d]",
)
_cache_min_tokens_option = option(
    "--cache-min-tokens",
    type=Whole(1),
    default=DEFAULT_MIN_TOKENS,
    show_default=True,
    metavar="N",
    help="Neither keep nor look up prompts shorter than this.",
)

# What is kept, for commands that make room or remove for it; and all of it, for those that look prompts up too.
keep_options = group(cache_dir_option, cache_max_option, cache_ttl_option)
store_options = group(keep_options, _cache_min_tokens_option)

cache_options = group(
    option(
        "--cache",
        type=click.Choice(["auto", "max", "readonly", "off"]),
        default="auto",
        show_default=True,
        help="Prompt prefixes on disk: exact reuse, reuse to the last token, no saving, or none.",
    ),
    store_options,
)


def cache_from(values: Mapping[str, Any], settings: Settings) -> CacheOptions:
    """What the store may do, from the options; a command without --cache means `auto`."""
    folder = values["cache_dir"]
    return CacheOptions(
        mode=values.get("cache", "auto"),
        folder=None if folder is None else _folder(folder),
        policy=policy_from(values),
        salt=settings.cache_salt,
    )


def _folder(text: str) -> Path:
    """The folder that the user named; config.toml is read by no shell, so `~` is resolved here."""
    expanded = os.path.expanduser(text)
    if not expanded or "\0" in expanded or expanded.startswith("~"):
        raise UsageError(f"--cache-dir: {printable(text)!r} is not a folder's name")
    return Path(expanded)


def policy_from(values: Mapping[str, Any]) -> Policy:
    """Budget, lifetime and least length. A command without the option for the lifetime lets nothing expire: looking
    at the store must not remove what another setting keeps.
    """
    ttl_s = values.get("cache_ttl", math.inf)
    return Policy(
        max_bytes=values.get("cache_max"),
        ttl_s=None if ttl_s == math.inf else ttl_s,
        min_tokens=values.get("cache_min_tokens", DEFAULT_MIN_TOKENS),
    )


@contextlib.contextmanager
def open_store(values: Mapping[str, Any], settings: Settings, notify: Callable[[str], None]) -> Iterator[PrefixStore]:
    """The store for a command that works without a model. Raises LlmcliError where there is none to work on."""
    from llmcli.cache_store.context import OFF
    from llmcli.cache_store.store import PrefixStore

    options = cache_from(values, settings)
    folder = store_folder(options, settings)
    held: list[str] = []  # "going on without it" is not for a command that cannot
    opened = False

    def tell(text: str) -> None:
        (notify if opened else held.append)(text)

    with PrefixStore.open(folder, options.policy, salt=options.salt, notify=tell) as store:
        if store.mode == OFF:
            raise LlmcliError(f"the prefix store at {printable(str(folder))} cannot be used ({store.trouble})")
        for text in held:
            notify(text)
        opened = True
        yield store


def saved_prefix(
    values: Mapping[str, Any], settings: Settings, notify: Callable[[str], None]
) -> tuple[Recipe, str | None]:
    """What the prefix of --prefix was made of, and the file of its model where that still is.

    Raises LlmcliError where there is none of this name, or where it was not made by `llmcli cache save`.
    """
    from llmcli.engine.prefix_recipe import RECIPE_PART, Recipe

    name = values["prefix"]
    with open_store(values, settings, notify) as store:
        last = store.keeper().end(name)
        if RECIPE_PART not in last.part_bytes:
            raise LlmcliError(
                f"the prefix {printable(name)!r} does not say how a prompt goes on behind it",
                hint="llmcli cache save NAME -sys TEXT -f FILE makes one that does",
            )
        return Recipe.from_bytes(bytes(store.read(last, RECIPE_PART))), made_with(store, last)[1]


def made_with(store: PrefixStore, block: BlockRef) -> tuple[Fingerprint | None, str | None]:
    """What a block was computed with, and the file of that model where it was last, if it still is there."""
    from llmcli.cache_store.block_file import read_header

    digest = read_header(block.path)[0].fingerprint
    found = next((known for known in store.keeper().fingerprints() if known.digest == digest), None)
    path = store.notes(found).get(MODEL_PATH_NOTE) if found else None
    return found, path if isinstance(path, str) and os.path.isfile(path) else None


def model_of_this_call(values: Mapping[str, Any]) -> str | None:
    """The model given on the command line: for commands that work without one, LLMCLI_MODEL is no wish to check it."""
    source = click.get_current_context().get_parameter_source("model")
    return values["model"] if source is ParameterSource.COMMANDLINE else None


def bench_request(values: Mapping[str, Any], settings: Settings) -> BenchRequest:
    """How to open a model for work on the store. A command with the engine options and that of the folder has it."""
    from llmcli.cli.engine_options import request_from, rope_from  # with the engine's behind them 40 ms
    from llmcli.engine.prefix_admin import BenchRequest

    return BenchRequest(
        reference=values["model"],
        plan=request_from(values),
        cache=cache_from(values, settings),
        rope=rope_from(values),
        loras=values["lora"],
    )


def context_for(tokens: int, values: Mapping[str, Any]) -> int | None:
    """The context that holds so many tokens, unless -c says it; None: the default does."""
    from llmcli.engine.plan import DEFAULT_CTX_TOKENS

    asked: int | None = values["ctx_size"]
    return asked if asked is not None or tokens <= DEFAULT_CTX_TOKENS else tokens
