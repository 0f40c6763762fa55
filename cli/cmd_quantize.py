"""`llmcli quantize`: a smaller model, made safely, with an account of what became what."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Size, Text, Whole

_EPILOG = """\b
Examples:
  llmcli quantize model-F16.gguf Q4_K_M
  llmcli quantize smollm2 small.gguf Q4_0 --allow-requantize
  llmcli quantize model-F16.gguf out/ Q8_0,Q4_K_M,IQ4_NL
  llmcli quantize model-F16.gguf Q4_0 --tensor-type attn_v=q8_0 --dry-run

\b
Types: Q1_0 Q2_0 Q4_0 Q4_1 MXFP4_MOE Q5_0 Q5_1 IQ2_XXS IQ2_XS IQ2_S IQ2_M
IQ1_S IQ1_M TQ1_0 TQ2_0 Q2_K Q2_K_S IQ3_XXS IQ3_S IQ3_M IQ3_XS Q3_K_S
Q3_K_M Q3_K_L IQ4_NL IQ4_XS Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K Q8_0 F16
BF16 F32 COPY, or llama.cpp's numbers for them.

\b
Exit status: 0 done, 2 usage, 3 no such model, 6 not enough memory or disk,
130 interrupted, 1 anything else."""


class _Parsed(click.ParamType[Any]):
    """A text that a function of llmcli.quant reads; what it refuses is a usage error of this option."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as the request has it."""
        from llmcli.quant.request import parse_layers, parse_override
        from llmcli.quant.rules import parse_rule
        from llmcli.quant.types import parse_tensor_type

        parsers: dict[str, Callable[[str], Any]] = {
            "override": parse_override,
            "layers": parse_layers,
            "rule": parse_rule,
            "type": parse_tensor_type,
        }
        try:
            return parsers[self.name](Text().convert(value, param, ctx))
        except UsageError as error:
            return self.fail(error.message + (f"; {error.hint}" if error.hint else ""), param, ctx)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """One value per line."""
        return Text().split_envvar_value(rv)


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", metavar="IN [OUT] TYPE[,TYPE...]", nargs=-1)
@option("--imatrix", metavar="FILE", help="The importance matrix of the model.")
@option("--include-weights", multiple=True, metavar="NAME", help="Use the matrix for tensors with NAME in it alone.")
@option("--exclude-weights", multiple=True, metavar="NAME", help="Do not use the matrix for tensors with NAME in it.")
@option("--output-tensor-type", type=_Parsed("type"), metavar="TYPE", help="The type of output.weight.")
@option("--token-embedding-type", type=_Parsed("type"), metavar="TYPE", help="The type of the token embeddings.")
@option(
    "--tensor-type",
    type=_Parsed("rule"),
    multiple=True,
    metavar="REGEX=TYPE",
    help="The type of tensors whose name the expression is found in; may be repeated, the first that fits counts.",
)
@option("--tensor-type-file", multiple=True, metavar="FILE", help="The same, from a file, after those given here.")
@option("--pure", is_flag=True, help="One type for all tensors, no mix.")
@option("--leave-output-tensor", is_flag=True, help="Leave output.weight as it is.")
@option("--allow-requantize", is_flag=True, help="Quantize what is quantized already; it loses twice.")
@option("--no-fallback", is_flag=True, help="Refuse where the shape of a tensor forces another type.")
@option(
    "--override-kv",
    type=_Parsed("override"),
    multiple=True,
    metavar="KEY=TYPE:VALUE",
    help="Change metadata; TYPE is int, float, bool or str. May be repeated.",
)
@option("--prune-layers", type=_Parsed("layers"), metavar="LIST", help="Leave out layers, as 3,4,10-12.")
@option("--keep-split", is_flag=True, help="Write as many parts as the model has.")
@option("--max-buffer", type=Size(), metavar="SIZE", help="Rows of one tensor in memory at once. [default: 8G]")
@option("-t", "--threads", type=Whole(1), metavar="N", help="Threads. [default: usable physical cores]")
@option("--force", is_flag=True, help="Replace an output that is there, once the new one is whole.")
@option("--dry-run", is_flag=True, help="Show the plan and the sizes, and do nothing.")
@option("--json", is_flag=True, help="One JSON object.")
@verbosity_options
@click.pass_obj
def command(settings: Settings, /, **values: Any) -> None:
    """Quantize the model IN to TYPE, into OUT.

    IN is a file or any other name of a model. OUT is a file, a folder, or a name with {type} in it; without it the
    output lies beside IN, under its name with the type. Several TYPEs are made one after the other.
    """
    from llmcli.cli.quantize_view import QuantizeView, outcome_lines

    view = QuantizeView(settings, quiet=values["quiet"], verbose=values["verbose"])
    words = _split_words(values["words"])
    source, outcomes = _quantize(words, values, settings, view)
    if values["json"]:
        from llmcli.quant.report import as_json

        model = {"name": source.named, "path": str(source.path)}
        rows = [as_json(outcome) for outcome in outcomes]
        output.write_json({"model": model, "dry_run": values["dry_run"], "outputs": rows})
    else:
        output.write("".join(line + "\n" for line in outcome_lines(outcomes, printable(source.named))))


def _split_words(words: Sequence[str]) -> tuple[str, str | None, str]:
    """IN, OUT and TYPE."""
    if len(words) not in (2, 3):
        raise UsageError(
            f"{len(words)} words were given, expected IN [OUT] TYPE", hint="llmcli quantize model-F16.gguf Q4_K_M"
        )
    return words[0], words[1] if len(words) == 3 else None, words[-1]


def _quantize(words: tuple[str, str | None, str], values: Mapping[str, Any], settings: Settings, view: Any) -> Any:
    from llmcli.engine.preflight import check_build
    from llmcli.models.resolve import resolve
    from llmcli.quant.child import Child
    from llmcli.quant.run import Outcome, carry_out, check_room, check_targets, make_plan, open_source
    from llmcli.quant.types import parse_targets

    types = parse_targets(words[2])
    request = _request(values)
    check_build(settings)
    resolved = resolve(words[0], settings, notify=view.notify, progress=view.progress)
    source = open_source(resolved.path, words[0])
    targets = [_target(source, words[1], kind.name, values, settings) for kind in types]
    if not values["dry_run"]:
        check_targets(targets, source, [request.imatrix] if request.imatrix else [])
    weights = _weights(request, values, source)
    with Child() as child:
        plans = [make_plan(child, source, kind, request, weights, view) for kind in types]
        for plan in plans:
            _tell_tensors(plan, view)
        if values["dry_run"]:
            pairs = zip(plans, targets, strict=True)
            return source, [Outcome(p, t, p.file_bytes(source.header_bytes), None) for p, t in pairs]
        check_room(list(zip(plans, targets, strict=True)), source)
        return source, [
            carry_out(child, source, plan, target, request, weights, view)
            for plan, target in zip(plans, targets, strict=True)
        ]


def _tell_tensors(plan: Any, view: Any) -> None:
    from llmcli.cli.quantize_view import tensor_lines

    for line in tensor_lines(plan):
        view.detail(line)


def _request(values: Mapping[str, Any]) -> Any:
    from llmcli.hardware.cores import read_cores
    from llmcli.quant.request import QuantizeRequest
    from llmcli.quant.rules import read_rules

    if values["include_weights"] and values["exclude_weights"]:
        raise UsageError("--include-weights and --exclude-weights cannot be used together")
    if values["imatrix"] is None and (values["include_weights"] or values["exclude_weights"]):
        raise UsageError("--include-weights and --exclude-weights choose from an importance matrix: add --imatrix FILE")
    from_files = [rule for file in values["tensor_type_file"] for rule in read_rules(file)]
    return QuantizeRequest(
        threads=values["threads"] or read_cores().usable,
        imatrix=Path(values["imatrix"]) if values["imatrix"] else None,
        include=values["include_weights"],
        exclude=values["exclude_weights"],
        output_tensor_type=values["output_tensor_type"],
        token_embedding_type=values["token_embedding_type"],
        rules=(*values["tensor_type"], *from_files),
        overrides=values["override_kv"],
        prune_layers=values["prune_layers"] or (),
        allow_requantize=values["allow_requantize"],
        leave_output_tensor=values["leave_output_tensor"],
        pure=values["pure"],
        keep_split=values["keep_split"],
        no_fallback=values["no_fallback"],
        max_buffer_bytes=values["max_buffer"],
    )


def _weights(request: Any, values: Mapping[str, Any], source: Any) -> Any:
    if request.imatrix is None:
        return None
    from llmcli.quant.weights import read_weights

    weights = read_weights(request.imatrix, values["imatrix"], request.include, request.exclude)
    weights.check_belongs(source.shapes)
    return weights


def _target(source: Any, out: str | None, type_name: str, values: Mapping[str, Any], settings: Settings) -> Any:
    from llmcli.quant.place import default_name, target_at

    parts = len(source.headers) if values["keep_split"] else 1
    path = _out_path(out, default_name(source.path, type_name), type_name, _default_folder(source.path, settings))
    return target_at(path, parts=parts, forced=values["force"])


def _default_folder(source: Path, settings: Settings) -> Path:
    """Beside the model; where that is the cache of the hub, which others own, the current folder."""
    cache = os.path.realpath(settings.hub_cache_dir)
    inside = os.path.realpath(source).startswith(cache + os.sep)
    return Path.cwd() if inside else Path(os.path.abspath(source)).parent


def _out_path(out: str | None, name: str, type_name: str, folder: Path) -> Path:
    if out is None:
        return folder / name
    path = Path(os.path.expanduser(out.replace("{type}", type_name)))
    return path / name if os.path.isdir(path) or out.endswith(os.sep) else path
