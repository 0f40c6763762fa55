"""The options that commands share, in groups, named as in llama.cpp.

Each has an environment default, LLMCLI_<OPTION>. A group is a decorator; the command receives plain keyword arguments
and turns them into settings with the `*_from` functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from llmcli.base.errors import UsageError
from llmcli.base.settings import flag_variable
from llmcli.base.text import decode_utf8, printable
from llmcli.cli.params import LogitBias, LoraType, Real, Text, Utf8, Whole
from llmcli.engine.context import KV_TYPES, Rope
from llmcli.engine.plan import Request
from llmcli.engine.sampling import Sampling, concrete_seed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
_KV_TYPE = click.Choice(list(KV_TYPES), case_sensitive=False)
_COUNT = Whole(1)
_POSITIVE = Real(least=0)
_GRAMMAR_BYTES = 1 << 20


# Pairs that say the same thing twice. Where both are given, the one from the stronger source counts.
_RIVALS = (
    ("words", "prompt"),
    ("system_prompt", "system_prompt_file"),
    ("raw", "chat_template"),
    ("grammar", "grammar_file"),
    ("rope_scale", "rope_freq_scale"),
)
_STRENGTH = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP)


class _Option(click.Option):
    """An option whose value may come from config.toml, where it can be of any kind."""

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        if ctx.get_parameter_source(self.name or "") is ParameterSource.DEFAULT_MAP:
            if self.multiple and isinstance(value, str):
                value = (value,)
            if self.multiple and not isinstance(value, (list, tuple)):
                raise click.BadParameter(f"{value!r} is not a list")
            if self.is_flag and not isinstance(value, (bool, str)):
                raise click.BadParameter(f"{value!r} is not true or false")
        return super().type_cast_value(ctx, value)


def option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """click.option with the environment default that every llmcli option has.

    The command receives the value under the long flag's own name, which is its name in config.toml too.
    """
    long = next(name for name in names if name.startswith("--"))
    attributes = {"cls": _Option, "type": None if attributes.get("is_flag") else Text(), **attributes}
    if "FILE" in (metavar := attributes.get("metavar", "")) or metavar == "MODEL":
        attributes["shell_complete"] = complete_file
    elif metavar == "DIR":
        attributes["shell_complete"] = complete_folder
    return click.option(*names, long[2:].replace("-", "_"), envvar=flag_variable(long), **attributes)


def complete_file(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell offers for a parameter that names a file."""
    return _completed_by_shell(incomplete, "file")


def complete_folder(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell offers for a parameter that names a folder."""
    return _completed_by_shell(incomplete, "dir")


def _completed_by_shell(incomplete: str, kind: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # not for the calls that answer

    return [CompletionItem(incomplete, type=kind)]


def without_weaker_rivals(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the running command, such that `--grammar` beats LLMCLI_GRAMMAR_FILE instead of clashing with it.

    Two of a kind from the same source stay: that is the user's mistake, and the `*_from` functions say so.
    """
    kept, source_of = dict(values), click.get_current_context().get_parameter_source
    for pair in _RIVALS:
        given = [name for name in pair if kept.get(name) not in (None, (), False)]
        if len(given) == len(pair):
            strength = {name: _STRENGTH.index(source) for name in given if (source := source_of(name)) in _STRENGTH}
            for name in given:
                if strength.get(name, 0) > min(strength.values(), default=0):
                    kept[name] = {"words": (), "raw": False}.get(name)
    return kept


def group(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in this order."""

    def decorate(function: F) -> F:
        for one in reversed(options):
            function = one(function)
        return function

    return decorate


model_option = option(
    "-m", "--model", metavar="MODEL", help="A path, an alias, or owner/repo[:QUANT] in the Hugging Face cache."
)

verbosity_options = group(
    option("-q", "--quiet", is_flag=True, help="Nothing on stderr but errors."),
    option("-v", "--verbose", is_flag=True, help="llama.cpp's log and more detail on stderr."),
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
    option(
        "-ngl",
        "--n-gpu-layers",
        type=Whole(-1),
        metavar="N",
        help="Layers on the GPU; -1: all. [default: as many as fit]",
    ),
    option(
        "-fa",
        "--flash-attn",
        type=click.Choice(["auto", "on", "off"]),
        default="auto",
        show_default=True,
        help="Flash attention.",
    ),
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

sampling_options = group(
    option(
        "-s",
        "--seed",
        type=Whole(-1, 0xFFFFFFFF),
        metavar="N",
        help="Seed; -1: a random one. [default: random]",
    ),
    option(
        "--temp",
        type=_POSITIVE,
        default=0.8,
        show_default=True,
        metavar="X",
        help="Temperature; 0: always the likeliest token.",
    ),
    option(
        "--top-k",
        type=Whole(0),
        default=40,
        show_default=True,
        metavar="N",
        help="Keep the N likeliest; 0: all.",
    ),
    option(
        "--top-p",
        type=Real(0, 1),
        default=0.95,
        show_default=True,
        metavar="X",
        help="Keep the likeliest that together reach X.",
    ),
    option(
        "--min-p",
        type=Real(0, 1),
        default=0.05,
        show_default=True,
        metavar="X",
        help="Drop those below X times the likeliest.",
    ),
    option(
        "--top-nsigma",
        type=Real(),
        default=-1.0,
        metavar="X",
        help="Keep logits within X standard deviations of the best; -1: off.",
    ),
    option("--typical", type=Real(0, 1), default=1.0, metavar="X", help="Locally typical sampling; 1: off."),
    option(
        "--repeat-penalty",
        type=Real(least=1e-6),
        default=1.0,
        metavar="X",
        help="Divide the logits of seen tokens by X; 1: off.",
    ),
    option(
        "--repeat-last-n",
        type=Whole(-1),
        default=64,
        metavar="N",
        help="Tokens that count as seen; -1: the whole context.",
    ),
    option(
        "--presence-penalty", type=Real(), default=0.0, metavar="X", help="Subtract X from the logits of seen tokens."
    ),
    option(
        "--frequency-penalty", type=Real(), default=0.0, metavar="X", help="Subtract X for each time a token was seen."
    ),
    option(
        "--dry-multiplier",
        type=_POSITIVE,
        default=0.0,
        metavar="X",
        help="DRY: penalty for continuing a repeated run; 0: off.",
    ),
    option("--dry-base", type=_POSITIVE, default=1.75, metavar="X", help="DRY: growth per token of the run."),
    option(
        "--dry-allowed-length",
        type=Whole(0),
        default=2,
        metavar="N",
        help="DRY: run length that costs nothing.",
    ),
    option(
        "--dry-penalty-last-n",
        type=Whole(-1),
        default=-1,
        metavar="N",
        help="DRY: tokens looked at; -1: the whole context.",
    ),
    option(
        "--xtc-probability",
        type=Real(0, 1),
        default=0.0,
        metavar="X",
        help="XTC: chance of removing the top choices; 0: off.",
    ),
    option(
        "--xtc-threshold", type=Real(0, 1), default=0.1, metavar="X", help="XTC: probability that makes a top choice."
    ),
    option("--mirostat", type=Whole(0, 2), default=0, metavar="N", help="Mirostat version 1 or 2; 0: off."),
    option("--mirostat-ent", type=_POSITIVE, default=5.0, metavar="X", help="Mirostat: target entropy tau."),
    option("--mirostat-lr", type=_POSITIVE, default=0.1, metavar="X", help="Mirostat: learning rate eta."),
    option(
        "-l",
        "--logit-bias",
        type=LogitBias(),
        multiple=True,
        metavar="ID(+|-)BIAS",
        help="Change a token's logit, as 15043+1.5 or 15043-inf; may be repeated.",
    ),
    option("--ignore-eos", is_flag=True, help="Never end before -n tokens or the end of the context."),
    option("--grammar", type=Utf8(), metavar="GBNF", help="Only answers that this grammar allows."),
    option("--grammar-file", metavar="FILE", help="The same, from a file."),
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
    return tuple(field for name, field in names.items() if context.get_parameter_source(name) in _STRENGTH)


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


def sampling_from(values: Mapping[str, Any]) -> Sampling:
    """The sampling settings, with a concrete seed. Raises UsageError for a grammar given twice or not parsing."""
    seed = values["seed"]
    return Sampling(
        seed=concrete_seed(None if seed == -1 else seed),
        temp=values["temp"],
        top_k=values["top_k"],
        top_p=values["top_p"],
        min_p=values["min_p"],
        top_n_sigma=values["top_nsigma"],
        typical_p=values["typical"],
        repeat_penalty=values["repeat_penalty"],
        presence_penalty=values["presence_penalty"],
        frequency_penalty=values["frequency_penalty"],
        repeat_last_n=values["repeat_last_n"],
        dry_multiplier=values["dry_multiplier"],
        dry_base=values["dry_base"],
        dry_allowed_length=values["dry_allowed_length"],
        dry_penalty_last_n=values["dry_penalty_last_n"],
        xtc_probability=values["xtc_probability"],
        xtc_threshold=values["xtc_threshold"],
        mirostat=values["mirostat"],
        mirostat_tau=values["mirostat_ent"],
        mirostat_eta=values["mirostat_lr"],
        logit_bias=dict(values["logit_bias"]),
        ignore_eos=values["ignore_eos"],
        grammar=_grammar(values["grammar"], values["grammar_file"]),
    )


def _grammar(text: str | None, file: str | None) -> str | None:
    if text is not None and file is not None:
        raise UsageError("--grammar and --grammar-file both give a grammar: use one of them")
    if file is not None:
        text = _grammar_file(file)
    if text is not None:
        from llmcli.engine.gbnf import check_grammar

        check_grammar(text, source="--grammar" if file is None else printable(file))
    return text


def _grammar_file(name: str) -> str:
    try:
        with open(name, "rb") as source:
            data = source.read(_GRAMMAR_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, which config.toml can have
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read {printable(name)}: {reason}") from None
    if len(data) > _GRAMMAR_BYTES:
        raise UsageError(f"{printable(name)} is larger than 1 MiB: no grammar is")
    decoded = decode_utf8(data)
    if decoded.bad_offset is not None:
        raise UsageError(f"{printable(name)} is not UTF-8 at byte {decoded.bad_offset:,}")
    return decoded.text
