"""What the commands that measure models share: the model's name, threads and layers, the window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from llmcli.base.errors import UsageError
from llmcli.cli.engine_options import flash_attn_option, gpu_layers_option
from llmcli.cli.options import group, option
from llmcli.cli.params import Whole
from llmcli.engine.plan import Request


def _require_some(ctx: click.Context, param: click.Parameter, value: int) -> int:
    """No windows at all are nothing to measure."""
    if value == 0:
        raise click.BadParameter("0 is not at least 1, or -1 for all", ctx, param)
    return value


measure_options = group(
    option(
        "-c",
        "--window",  # not --ctx-size first: a default that is set for answers must not change what is measured
        "--ctx-size",
        type=Whole(32),
        default=512,
        show_default=True,
        metavar="N",
        help="Tokens of a window; each is read by itself.",
    ),
    option(
        "--chunks",
        type=Whole(-1),
        default=-1,
        show_default=True,
        metavar="N",
        callback=_require_some,
        help="Windows at most; -1: all of the text.",
    ),
    option("-ub", "--ubatch-size", type=Whole(1), metavar="N", help="Tokens computed at once. [default: as is fast]"),
    option("-t", "--threads", type=Whole(1), metavar="N", help="Threads. [default: usable physical cores]"),
    gpu_layers_option,
    flash_attn_option,
)


def measure_request(values: Mapping[str, Any]) -> Request:
    """The run plan's request."""
    return Request(
        n_ctx=values["window"],
        n_threads=values["threads"],
        n_ubatch=values["ubatch_size"],
        n_gpu_layers=values["n_gpu_layers"],
        flash_attn=values["flash_attn"],
    )


def one_model(values: Mapping[str, Any]) -> str | None:
    """The MODEL argument, or -m, which the environment may have set. Raises UsageError where both are given."""
    given = click.get_current_context().get_parameter_source("model") is ParameterSource.COMMANDLINE
    if values["name"] is not None and given:
        raise UsageError("the model was given twice: with -m and as an argument")
    chosen: str | None = values["model"] if values["name"] is None else values["name"]
    return chosen


def most_windows(values: Mapping[str, Any]) -> int | None:
    """--chunks as a number, None for all."""
    return values["chunks"] if values["chunks"] > 0 else None
