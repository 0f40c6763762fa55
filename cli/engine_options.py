"""The options that decide how a model is run, and the settings that they make: the plan's request, RoPE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from llmcli.base.errors import UsageError
from llmcli.cli.options import STRENGTH, group, option
from llmcli.cli.params import LoraType, Real, Whole
from llmcli.engine.context import KV_TYPES, Rope
from llmcli.engine.plan import Request

_KV_TYPE = click.Choice(list(KV_TYPES), case_sensitive=False)
_COUNT = Whole(1)
_POSITIVE = Real(least=0)

gpu_layers_option = option(
    "-ngl",
    "--n-gpu-layers",
    type=Whole(-1),
    metavar="N",
    help="Layers on the GPU; -1: all. [default: as many as fit]",
)

flash_attn_option = option(
    "-fa",
    "--flash-attn",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Flash attention.",
)

engine_options = group(
    option(
        "-c",
        "--ctx-size",
        type=Whole(0),
        metavar="N",
        help="Context in tokens; 0: the model's own maximum. [default: 4096, or the model's if smaller]",
    ),
    option("-b", "--batch-size", type=_COUNT, metavar="N", help="Logical batch, in tokens. [default: 2048]"),
    option("-ub", "--ubatch-size", type=_COUNT, metavar="N", help="Physical batch, in tokens. [default: 256]"),
    option("-t", "--threads", type=_COUNT, metavar="N", help="Threads for decode. [default: usable physical cores]"),
    option("-tb", "--threads-batch", type=_COUNT, metavar="N", help="Threads for prefill. [default: as --threads]"),
    gpu_layers_option,
    flash_attn_option,
    option(
        "-ctk",
        "--cache-type-k",
        type=_KV_TYPE,
        default="f16",
        show_default=True,
        metavar="TYPE",
        help=f"Type of the K cache: {', '.join(KV_TYPES)}.",
    ),
    option(
        "-ctv",
        "--cache-type-v",
        type=_KV_TYPE,
        default="f16",
        show_default=True,
        metavar="TYPE",
        help="Type of the V cache; a quantized one needs flash attention.",
    ),
    option("--no-mmap", is_flag=True, help="Read the weights into memory instead of mapping the file."),
    option("--mlock", is_flag=True, help="Keep the weights from being swapped out."),
    option(
        "--lora",
        type=LoraType(),
        multiple=True,
        metavar="FILE[:SCALE]",
        help="Apply a LoRA adapter; may be repeated.",
    ),
    option(
        "--rope-scaling", type=click.Choice(["none", "linear", "yarn"]), help="RoPE scaling. [default: the model's]"
    ),
    option(
        "--rope-scale", type=Real(least=1e-6), metavar="X", help="Stretch the context X times (1 / --rope-freq-scale)."
    ),
    option("--rope-freq-base", type=_POSITIVE, metavar="X", help="RoPE base frequency. [default: the model's]"),
    option("--rope-freq-scale", type=_POSITIVE, metavar="X", help="RoPE frequency factor. [default: the model's]"),
    option("--yarn-orig-ctx", type=Whole(0), metavar="N", help="YaRN: context the model was trained with."),
    option("--yarn-ext-factor", type=Real(), metavar="X", help="YaRN: extrapolation mix."),
    option("--yarn-attn-factor", type=Real(), metavar="X", help="YaRN: scale of the attention magnitude."),
    option("--yarn-beta-fast", type=Real(), metavar="X", help="YaRN: low correction dimension."),
    option("--yarn-beta-slow", type=Real(), metavar="X", help="YaRN: high correction dimension."),
)


def request_from(values: Mapping[str, Any]) -> Request:
    """The run plan's request from the engine options."""
    return Request(
        n_ctx=values["ctx_size"],
        n_threads=values["threads"],
        n_threads_batch=values["threads_batch"],
        n_batch=values["batch_size"],
        n_ubatch=values["ubatch_size"],
        n_gpu_layers=values["n_gpu_layers"],
        flash_attn=values["flash_attn"],
        type_k=values["cache_type_k"],
        type_v=values["cache_type_v"],
        use_mmap=not values["no_mmap"],
        use_mlock=values["mlock"],
        rope_scaled=any(values[name] is not None for name in values if name.startswith(("rope_", "yarn_"))),
        settled=_settled(),
    )


def _settled() -> tuple[str, ...]:
    """Fields of the request that were given, among those whose default could be given as well."""
    context = click.get_current_context(silent=True)
    names = {"flash_attn": "flash_attn", "cache_type_k": "type_k", "cache_type_v": "type_v"}
    if context is None:
        return ()
    return tuple(field for name, field in names.items() if context.get_parameter_source(name) in STRENGTH)


def rope_from(values: Mapping[str, Any]) -> Rope:
    """The RoPE overrides from the engine options. Raises UsageError where two of them say the same thing."""
    freq_scale = values["rope_freq_scale"]
    if values["rope_scale"] is not None:
        if freq_scale is not None:
            raise UsageError("--rope-scale and --rope-freq-scale are the same setting: give one of them")
        freq_scale = 1 / values["rope_scale"]
    return Rope(
        scaling=values["rope_scaling"],
        freq_base=values["rope_freq_base"],
        freq_scale=freq_scale,
        yarn_orig_ctx=values["yarn_orig_ctx"],
        yarn_ext_factor=values["yarn_ext_factor"],
        yarn_attn_factor=values["yarn_attn_factor"],
        yarn_beta_fast=values["yarn_beta_fast"],
        yarn_beta_slow=values["yarn_beta_slow"],
    )
