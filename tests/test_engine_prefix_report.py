"""The account of the prefix store, for people and for programs."""

from __future__ import annotations

from pathlib import Path

from llmcli.base.settings import load
from llmcli.cache_store.reasons import MissReason
from llmcli.engine.prefix_report import CacheOptions, CacheReport, store_folder


def test_a_hit() -> None:
    report = CacheReport("auto")
    report.miss(MissReason.DAMAGED, "a block")
    report.hit(1024, 0.5)
    report.saved_s = 2.0
    assert report.as_line(1100) == "1,024 of 1,100 tokens restored from disk, 2.00 s saved"
    report.saved_s = -0.1
    assert report.as_line(1100) == "1,024 of 1,100 tokens restored from disk"
    found = report.as_json()
    assert (found["mode"], found["source"], found["miss_reason"], found["miss_detail"]) == ("auto", "disk", None, None)


def test_a_miss() -> None:
    report = CacheReport("auto")
    assert report.as_line(100) == "nothing restored (off)"
    report.miss(MissReason.OTHER_KV_TYPE, "type_k: stored f16, now q8_0")
    assert report.as_line(100) == "nothing restored (other kv type: type_k: stored f16, now q8_0)"
    found = report.as_json()
    assert (found["source"], found["miss_reason"]) == (None, "other_kv_type")
    assert found["miss_detail"] == "type_k: stored f16, now q8_0"
    assert set(found) == {
        "mode", "source", "saved_s", "read_bytes", "written_bytes", "miss_reason", "miss_detail", "first_difference"
    }  # fmt: skip


def test_a_prompt_that_is_too_short() -> None:
    report = CacheReport.too_short("auto", 30, 64)
    assert report.as_line(30) == "nothing restored (too short: 30 tokens, the minimum is 64)"
    assert report.as_json()["miss_detail"] == "30 tokens, the minimum is 64"


def test_where_the_store_is(llmcli_home: Path, tmp_path: Path) -> None:
    assert store_folder(CacheOptions(), load()) == llmcli_home / "cache" / "prefixes"
    assert store_folder(CacheOptions(folder=tmp_path), load()) == tmp_path
