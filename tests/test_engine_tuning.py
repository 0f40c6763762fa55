"""Tuned settings count where nothing else was asked for, on the machine they were found on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmcli.base.config_edit import set_table
from llmcli.base.settings import load
from llmcli.engine.plan import Request
from llmcli.engine.tuning import SECTION, machine_name, table_name, tuned
from llmcli.hardware.cores import read_cores
from llmcli.hardware.cpu import read_cpu

ID = "ab" * 32
TABLE = {"threads": 1, "batch_size": 512, "ubatch_size": 128, "flash_attn": "on"}
TYPES = {"cache_type_k": "q8_0", "cache_type_v": "q4_0"}


def here() -> str:
    cores = read_cores()
    return machine_name(read_cpu().model_name, cores.usable, cores.physical)


def asked(request: Request, **table: Any) -> Request:
    settings = load()
    set_table(settings.config_file, SECTION, table_name(ID), {"machine": here(), **table})
    return tuned(request, load(), ID)


def test_open_fields_are_filled() -> None:
    assert asked(Request(n_ctx=512), **TABLE, **TYPES) == Request(
        n_ctx=512, n_threads=1, n_batch=512, n_ubatch=128, flash_attn="on", type_k="q8_0", type_v="q4_0"
    )


@pytest.mark.parametrize(
    "request_", [Request(n_threads=2), Request(n_ubatch=64), Request(flash_attn="off"), Request(n_batch=32)]
)
def test_what_was_asked_for_stays(request_: Request) -> None:
    found = asked(request_, **TABLE)
    for name in ("n_threads", "n_ubatch", "flash_attn", "n_batch"):
        wanted = getattr(request_, name)
        if wanted != getattr(Request(), name):
            assert getattr(found, name) == wanted


def test_a_default_that_was_asked_for_stays() -> None:
    assert asked(Request(settled=("flash_attn",)), **TABLE).flash_attn == "auto"
    found = asked(Request(settled=("type_k",)), **TABLE, **TYPES)
    assert (found.type_k, found.type_v) == ("f16", "f16")  # one type of a pair is another pair


def test_another_model_or_machine_or_nothing() -> None:
    assert tuned(Request(), load(), ID) == Request()
    assert asked(Request(), **{**TABLE, "machine": "another, 1 of 1 cores"}) == Request()
    asked(Request(), **TABLE)
    assert tuned(Request(), load(), "cd" * 32) == Request()


@pytest.mark.parametrize("value", ['"many"', "true", "1.5", "[1]"])
def test_values_of_another_kind_do_not_count(value: str) -> None:
    config = load().config_file
    config.parent.mkdir(parents=True)
    config.write_text(f'[tuned.{table_name(ID)}]\nmachine = "{here()}"\nthreads = {value}\nubatch_size = 32\n')
    assert tuned(Request(), load(), ID) == Request(n_ubatch=32)
    config.write_text('tuned = "x"\n')
    assert tuned(Request(), load(), ID) == Request()
    config.write_text(f"[tuned]\n{table_name(ID)} = 3\n")
    assert tuned(Request(), load(), ID) == Request()


def test_sections_are_no_flags(tmp_path: Path) -> None:
    asked(Request(), **TABLE)
    assert load().flag_defaults() == {}
    assert list(load().tuned) == [table_name(ID)]
