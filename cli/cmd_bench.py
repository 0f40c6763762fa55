"""`llmcli bench`: rates of this machine with this model. Without a sub command it measures as llama-bench does."""

from __future__ import annotations

from typing import Any

import click

from llmcli.cli.bench_limits import limit_options
from llmcli.cli.bench_params import FLASH, KINDS_OF_KV, Numbers, Pair, Texts, list_option
from llmcli.cli.lazy import LazyGroup
from llmcli.cli.options import option, verbosity_options
from llmcli.cli.params import Duration, Whole

# name -> (module below llmcli.cli, attribute, one-line summary), as in `main`
COMMANDS: dict[str, tuple[str, str, str]] = {
    "latency": ("bench_latency", "latency_command", "Measure what a user waits for: cold, in memory, from disk."),
    "sweep": ("bench_sweep", "sweep_command", "Find the settings that answer soonest, and keep them."),
    "compare": ("bench_compare", "compare_command", "Put two runs side by side, with the confidence of the samples."),
    "history": ("bench_history", "history_command", "Show what was measured before, as a table and a plot."),
}
_EPILOG = """\b
Examples:
  llmcli bench
  llmcli bench -m a.gguf -m b.gguf -p 512,1024 -n 0 -r 9
  llmcli bench -p 0 -n 64 -d 0-4096+1024 -o csv > depth.csv
  llmcli bench -t 1-4 -ub 256,512 -fa on,off
  llmcli bench --baseline good.json --fail-if 'tg<-5%'

\b
Exit status: 0 done, 2 usage, 3 no such model, 5 --fail-if, 6 not enough
memory, 130 interrupted (what was measured is written), 1 anything else. Where
a part failed, the rest is written and the exit status is that of the first."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@list_option("-m", "--model", kind=Texts(), metavar="MODEL", help="A path, an alias or owner/repo; may be repeated.")
@list_option("-p", "--n-prompt", kind=Numbers(0), metavar="LIST", help="Prompt tokens; 0: none. [default: 512]")
@list_option("-n", "--n-gen", kind=Numbers(0), metavar="LIST", help="Generated tokens; 0: none. [default: 128]")
@list_option("-pg", "--pg", kind=Pair(), metavar="P,N", help="A prompt and an answer in one test; may be repeated.")
@list_option("-d", "--n-depth", kind=Numbers(0), metavar="LIST", help="Tokens in the context before. [default: 0]")
@list_option("-b", "--batch-size", kind=Numbers(1), metavar="LIST", help="Logical batch. [default: 2048]")
@list_option("-ub", "--ubatch-size", kind=Numbers(1), metavar="LIST", help="Physical batch. [default: 256]")
@list_option("-t", "--threads", kind=Numbers(1), metavar="LIST", help="Threads. [default: usable physical cores]")
@list_option("-ngl", "--n-gpu-layers", kind=Numbers(-1), metavar="LIST", help="Layers on the GPU; -1: all.")
@list_option("-fa", "--flash-attn", kind=FLASH, metavar="LIST", help="auto, on, off. [default: auto]")
@list_option("-ctk", "--cache-type-k", kind=KINDS_OF_KV, metavar="LIST", help="Types of the K cache. [default: f16]")
@list_option("-ctv", "--cache-type-v", kind=KINDS_OF_KV, metavar="LIST", help="Types of the V cache. [default: f16]")
@option("--no-mmap", is_flag=True, help="Read the weights into memory instead of mapping the file.")
@option("--mlock", is_flag=True, help="Keep the weights from being swapped out.")
@option("-r", "--repetitions", type=Whole(1), default=5, show_default=True, metavar="N", help="Samples of each test.")
@option("--delay", type=Duration(), default=0.0, metavar="DURATION", help="Rest before each test, as 10s. [default: 0]")
@option("--no-warmup", is_flag=True, help="Do not run each test once before it counts.")
@option(
    "-o",
    "--output-format",
    type=click.Choice(["md", "csv", "json", "jsonl", "sql"]),
    default="md",
    show_default=True,
    help="The format of the rows, with the fields of llama-bench and ours.",
)
@option("--json", is_flag=True, help="One JSON object: results, failures.")
@option("--roofline", is_flag=True, help="Add the shares of the memory bandwidth and arithmetic that were reached.")
@option("--baseline", metavar="FILE", help="Compare with this run afterwards, as llmcli bench compare does.")
@limit_options
@option("--label", default="", metavar="TEXT", help="Words to keep with the run in the history.")
@option("--no-history", is_flag=True, help="Do not keep the run in the history.")
@verbosity_options
@click.pass_context
def group(ctx: click.Context, /, **values: Any) -> int:
    """Measure prefill (pp) and decode (tg) rates: every size with every combination of the settings.

    LISTs are written 512,1024 or 0-4096+1024 or 64-4096*2. The tokens are given, so that a model that would end its
    answer still computes N of them. The rate is the median of the samples, with half the
    width of their middle half behind it.
    """
    if ctx.invoked_subcommand is not None:
        if isinstance(ctx.command, LazyGroup):
            ctx.command.pass_defaults_on(ctx)
        return 0
    from llmcli.cli.bench_rates import bench  # what it imports the sub commands need not

    return bench(ctx.obj, values)
