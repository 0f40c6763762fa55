"""The options that decide which token comes next, and the settings that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmcli.base.errors import UsageError
from llmcli.base.text import decode_utf8, printable
from llmcli.cli.options import group, option
from llmcli.cli.params import LogitBias, Real, Utf8, Whole
from llmcli.engine.sampling import Sampling, concrete_seed

_POSITIVE = Real(least=0)
_GRAMMAR_BYTES = 1 << 20

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
