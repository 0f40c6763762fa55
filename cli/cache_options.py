"""The options of the prefix store, and how every command that uses it opens it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cache_store.context import OFF
from llmcli.cache_store.policy import DEFAULT_MIN_TOKENS, DEFAULT_TTL_S, Policy
from llmcli.cache_store.store import PrefixStore
from llmcli.cli.options import group, option
from llmcli.cli.params import Duration, Size, Whole
from llmcli.engine.prefix import CacheOptions, store_folder

cache_dir_option = option(
    "--cache-dir", metavar="DIR", help="Folder of the prefix store. [default: in the cache folder]"
)

# What is kept. Commands that fill the store have these without the mode.
store_options = group(
    cache_dir_option,
    option(
        "--cache-max",
        type=Size(),
        metavar="SIZE",
        help="Most bytes to keep, as 4G. [default: a tenth of the free disk, at most 20G]",
    ),
    option(
        "--cache-ttl",
        type=Duration(or_never=True),
        default=DEFAULT_TTL_S,
        metavar="DURATION",
        help="Forget what was not used for so long, as 12h or 7d; or never. [default: 30d]",
    ),
    option(
        "--cache-min-tokens",
        type=Whole(1),
        default=DEFAULT_MIN_TOKENS,
        show_default=True,
        metavar="N",
        help="Neither keep nor look up prompts shorter than this.",
    ),
)

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
        folder=None if folder is None else Path(folder).expanduser(),
        policy=policy_from(values),
        salt=settings.cache_salt,
    )


def policy_from(values: Mapping[str, Any]) -> Policy:
    """Budget, lifetime and least length; the defaults where a command does not have the options."""
    ttl_s = values.get("cache_ttl", DEFAULT_TTL_S)
    return Policy(
        max_bytes=values.get("cache_max"),
        ttl_s=None if ttl_s == math.inf else ttl_s,
        min_tokens=values.get("cache_min_tokens", DEFAULT_MIN_TOKENS),
    )


@contextlib.contextmanager
def open_store(values: Mapping[str, Any], settings: Settings, notify: Callable[[str], None]) -> Iterator[PrefixStore]:
    """The store for a command that works without a model. Raises LlmcliError where there is none to work on."""
    options = cache_from(values, settings)
    folder = store_folder(options, settings)
    with PrefixStore.open(folder, options.policy, salt=options.salt, notify=notify) as store:
        if store.mode == OFF:
            raise LlmcliError(f"there is no prefix store at {printable(str(folder))}", hint="llmcli cache path")
        yield store
