"""What measuring commands and answering ones declare alike; that each flag arrives is in test_cli_options.py."""

from __future__ import annotations

import pytest

from llmcli.cli import cmd_imatrix, cmd_quality, cmd_run
from llmcli.cli.engine_options import request_from


@pytest.mark.parametrize("name", ["n_gpu_layers", "flash_attn"])
def test_one_declaration_for_all_commands(name: str) -> None:
    commands = (cmd_run.command, cmd_quality.command, cmd_imatrix.command)
    declared = [next(param for param in command.params if param.name == name) for command in commands]
    facts = {(tuple(param.opts), param.envvar, param.help, str(param.type)) for param in declared}
    assert len(facts) == 1


def test_a_flag_that_only_negates() -> None:
    """--no-mmap and --mlock say what llama.cpp is told the other way round and as it is."""
    values = dict.fromkeys(
        (
            "ctx_size", "threads", "threads_batch", "batch_size", "ubatch_size", "n_gpu_layers", "flash_attn",
            "cache_type_k", "cache_type_v", "rope_scale", "yarn_orig_ctx",
        )
    )  # fmt: skip
    request = request_from({**values, "no_mmap": True, "mlock": True})
    assert (request.use_mmap, request.use_mlock, request.rope_scaled) == (False, True, False)
    assert request_from({**values, "no_mmap": False, "mlock": False, "yarn_orig_ctx": 0}).rope_scaled
