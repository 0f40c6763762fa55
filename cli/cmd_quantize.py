"""`llmcli quantize`: a smaller model, made safely, with an account of what became what."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from llmcli.base.errors import UsageError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.cli import output
from llmcli.cli.complete import complete_quantize, complete_tensor_type
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Real, Size, Text, Whole

AUTO = "auto"
_EPILOG = """\b
Examples:
  llmcli quantize model-F16.gguf Q4_K_M
  llmcli quantize smollm2 small.gguf Q4_0 --allow-requantize
  llmcli quantize model-F16.gguf out/ Q8_0,Q4_K_M,IQ4_NL
  llmcli quantize model-F16.gguf Q4_0 --tensor-type attn_v=q8_0 --dry-run
  llmcli quantize model-F16.gguf IQ3_S --imatrix auto
  llmcli quantize model-F16.gguf --fit 4G
  llmcli quantize model-F16.gguf --for-this-machine --report

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
@click.argument("words", metavar="IN [OUT] [TYPE[,TYPE...]]", nargs=-1, shell_complete=complete_quantize)
@option("--fit", type=Size(), metavar="SIZE", help="Choose the types: the best model whose file is no larger.")
@option("--bpw", type=Real(0.5, 32), metavar="X", help="Choose the types: the best model of X bits per weight.")
@option("--for-this-machine", is_flag=True, help="Choose the type by size, quality and measured speed on this CPU.")
@option("--report", is_flag=True, help="Show how fast each type is here, and measure what was lost and gained.")
@option("--no-check", is_flag=True, help="With --fit or --bpw: do not measure the result against the plain type.")
@option("--imatrix", metavar="FILE|auto", help="The importance matrix of the model; auto: measure one, or recall it.")
@option("--include-weights", multiple=True, metavar="NAME", help="Use the matrix for tensors with NAME in it alone.")
@option("--exclude-weights", multiple=True, metavar="NAME", help="Do not use the matrix for tensors with NAME in it.")
@option(
    "--output-tensor-type",
    type=_Parsed("type"),
    metavar="TYPE",
    shell_complete=complete_tensor_type,
    help="The type of output.weight.",
)
@option(
    "--token-embedding-type",
    type=_Parsed("type"),
    metavar="TYPE",
    shell_complete=complete_tensor_type,
    help="The type of the token embeddings.",
)
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

    IN is a file or any other name of a model. OUT is a file, a folder (with a slash at its end it is made where it is
    missing), or a name with {type} in it; without it the output lies beside IN, under its name with the type. Several
    TYPEs are made one after the other. --fit and --bpw choose the types instead.
    """
    from llmcli.cli.quantize_view import QuantizeView, outcome_lines

    view = QuantizeView(settings, quiet=values["quiet"], verbose=values["verbose"])
    chooses = values["fit"] is not None or values["bpw"] is not None or values["for_this_machine"]
    name, out, types = _split_words(values["words"], chooses=chooses)
    if out == "":
        raise UsageError("the name of the output is empty", hint="llmcli quantize IN TYPE makes one")
    source = _open(name, settings, view)
    if chooses:
        from llmcli.cli.quantize_fit import quantize_fitted

        done: list[tuple[Any, Any]] = [quantize_fitted(source, out, _request(values), values, settings, view)]
    else:
        done = [(outcome, None) for outcome in _quantize(source, out, types, values, settings, view)]
    found = None
    if values["report"]:
        from llmcli.cli.quantize_report import report

        found = report(source, [outcome for outcome, _ in done], values, settings, view)
    if values["json"]:
        told = _as_json(source, done, values)
        output.write_json({**told, **(found.as_json() if found else {})})
    else:
        lines = outcome_lines(done, printable(source.named)) + (found.lines() if found else [])
        output.write("".join(line + "\n" for line in lines))


def _as_json(source: Any, done: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    from llmcli.quant.report import as_json

    model = {"name": source.named, "path": str(source.path)}
    rows = [{**as_json(outcome), "fit": told.as_json() if told else None} for outcome, told in done]
    return {"model": model, "dry_run": values["dry_run"], "outputs": rows}


def _split_words(words: Sequence[str], *, chooses: bool) -> tuple[str, str | None, str]:
    """IN, OUT and TYPE; without TYPE where the types are chosen."""
    from llmcli.quant.types import find_target

    if chooses:
        if len(words) > 1 and find_target(words[-1]):
            raise UsageError(f"the types are chosen, so {printable(words[-1])} cannot go with that")
        if len(words) in (1, 2):
            return words[0], words[1] if len(words) == 2 else None, ""
        raise UsageError(f"{len(words)} words were given, expected IN [OUT]", hint="llmcli quantize IN --fit 4G")
    if len(words) not in (2, 3):
        raise UsageError(
            f"{len(words)} words were given, expected IN [OUT] TYPE", hint="llmcli quantize model-F16.gguf Q4_K_M"
        )
    return words[0], words[1] if len(words) == 3 else None, words[-1]


def _open(name: str, settings: Settings, view: Any) -> Any:
    from llmcli.engine.preflight import check_build
    from llmcli.models.resolve import resolve
    from llmcli.quant.run import open_source

    check_build(settings)
    resolved = resolve(name, settings, notify=view.notify, progress=view.progress)
    return open_source(resolved.path, name)


def _quantize(
    source: Any, out: str | None, types_text: str, values: Mapping[str, Any], settings: Settings, view: Any
) -> list[Any]:
    from llmcli.quant.child import Child
    from llmcli.quant.run import Outcome, carry_out, check_room, check_targets, make_plan
    from llmcli.quant.types import parse_targets

    types = parse_targets(types_text)
    request = _request(values)
    targets = [target_for(source, out, kind.name, values, settings) for kind in types]
    if not values["dry_run"]:
        check_targets(targets, source, [request.imatrix] if request.imatrix else [])
    request, weights = with_weights(request, values, source, settings, view)
    with Child() as child:
        plans = [make_plan(child, source, kind, request, weights, view) for kind in types]
        for plan in plans:
            tell_tensors(plan, view)
        if values["dry_run"]:
            pairs = zip(plans, targets, strict=True)
            return [Outcome(p, t, p.file_bytes(source.header_bytes), None) for p, t in pairs]
        check_room(list(zip(plans, targets, strict=True)), source)
        return [
            carry_out(child, source, plan, target, request, weights, view)
            for plan, target in zip(plans, targets, strict=True)
        ]


def tell_tensors(plan: Any, view: Any) -> None:
    """Every tensor of a plan, with -v."""
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
        imatrix=Path(values["imatrix"]) if values["imatrix"] and values["imatrix"] != AUTO else None,
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


def with_weights(
    request: Any, values: Mapping[str, Any], source: Any, settings: Settings, view: Any
) -> tuple[Any, Any]:
    """The request and its importance matrix, which is made on the way where that is asked for."""
    from llmcli.quant.weights import read_weights

    named = values["imatrix"]
    if named is None:
        return request, None
    if named == AUTO:
        from llmcli.engine.plan import Request
        from llmcli.quant.imatrix_compute import auto_imatrix

        plan = Request(n_ctx=512, n_threads=request.threads, n_threads_batch=request.threads)
        path, _ = auto_imatrix(str(source.path), plan, settings, view)
        request, named = replace(request, imatrix=path), str(path)
    weights = read_weights(request.imatrix, named, request.include, request.exclude)
    weights.check_belongs(source.shapes)
    return request, weights


def target_for(source: Any, out: str | None, type_name: str, values: Mapping[str, Any], settings: Settings) -> Any:
    """Where the output of one type goes."""
    from llmcli.quant.place import default_name, target_at

    parts = len(source.headers) if values["keep_split"] else 1
    path = _out_path(out, default_name(source.path, type_name), type_name, _default_folder(source.path, settings))
    return target_at(path, parts=parts, forced=values["force"], makes_folder=out is not None and out.endswith(os.sep))


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
