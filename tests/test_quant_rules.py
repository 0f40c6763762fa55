"""REGEX=TYPE, from the command line and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmcli.base.errors import UsageError
from llmcli.quant.rules import first_match, parse_rule, read_rules


def test_a_rule() -> None:
    rule = parse_rule(r"BLK\.0\.attn_[qk]=q8_0")
    assert (rule.pattern, rule.tensor_type, rule.type_id) == (r"blk\.0\.attn_[qk]", "Q8_0", 8)
    assert rule.matches("blk.0.attn_k.weight")
    assert not rule.matches("blk.10.attn_k.weight")


def test_the_first_that_fits_counts() -> None:
    rules = [parse_rule("attn_v=q8_0"), parse_rule("attn=q6_k")]
    assert first_match(rules, "blk.3.attn_v.weight") is rules[0]
    assert first_match(rules, "blk.3.attn_q.weight") is rules[1]
    assert first_match(rules, "blk.3.ffn_up.weight") is None


@pytest.mark.parametrize(
    "text", ["attn_v", "=q8_0", "attn_v=", "attn_v=q8_K_M", "attn_v=Q8_1", "(=q8_0", "a" * 5000 + "=q8_0"]
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_rule(text)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "types.txt"
    file.write_text("attn_v=q8_0 attn_k=q6_k\n\nffn_down=iq4_nl\n", encoding="utf-8")
    assert [(rule.pattern, rule.tensor_type) for rule in read_rules(str(file))] == [
        ("attn_v", "Q8_0"),
        ("attn_k", "Q6_K"),
        ("ffn_down", "IQ4_NL"),
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "no rule"), (b"attn_v q8_0", "REGEX=TYPE"), (b"a=q8_0 \xff", "UTF-8 at byte 7"), (b"a=q9", "q9")],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, data: bytes, why: str) -> None:
    file = tmp_path / "types.txt"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=why) as caught:
        read_rules(str(file))
    assert "types.txt" in caught.value.message


@pytest.mark.parametrize("name", ["missing.txt", ".", "a\0b"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_rules(str(tmp_path / name))
