"""What a watcher sees of a model's products."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcli.engine.eval_callback import Product, Watcher
from llmcli.engine.evaluator import Evaluator
from llmcli.engine.model import Model
from tests.fixtures.engines import tiny_plan
from tests.fixtures.text_models import EXPERT_FF, FF, N_EXPERTS, N_USED, WIDTH, write_text_model

TOKENS = [(i * 31) % 250 + 3 for i in range(32)]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("models") / "dense.gguf")


def watched(path: Path, watcher: Watcher, tokens: list[int] = TOKENS) -> None:
    plan = tiny_plan(n_ubatch=64)
    with Model.load(path, plan) as model, Evaluator(model, plan, watcher=watcher) as evaluator:
        evaluator.decode(tokens, 0, wanted=len(tokens))


def test_every_wanted_product_is_shown_once(dense: Path) -> None:
    asked: list[str] = []
    seen: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def wants(name: str) -> bool:
        asked.append(name)
        return name.startswith("blk.1.")

    def see(product: Product) -> bool:
        assert product.ids is None
        seen.append((product.weight, product.weight_shape, product.input.shape))
        return True

    watched(dense, Watcher(wants, see))
    assert sorted(seen) == sorted(
        (f"blk.1.{part}.weight", (columns, rows, 1, 1), (columns, 32, 1, 1))
        for part, columns, rows in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", WIDTH, WIDTH),
            ("attn_v", WIDTH, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", WIDTH, FF),
            ("ffn_up", WIDTH, FF),
            ("ffn_down", FF, WIDTH),
        )
    )
    assert {"blk.0.attn_q.weight", "output.weight"} <= set(asked)


def test_the_input_of_the_first_product_is_the_normed_embedding(dense: Path) -> None:
    """With a norm of ones, the mean square of each row is 1 up to the epsilon."""
    rows: list[tuple[float, ...]] = []

    def see(product: Product) -> bool:
        memory = product.input.memory()
        step = product.input.strides_bytes[1]
        rows.extend(struct.unpack_from(f"<{WIDTH}f", memory, i * step) for i in range(product.input.shape[1]))
        return True

    watched(dense, Watcher(lambda name: name == "blk.0.attn_q.weight", see))
    assert len(rows) == 32
    for row in rows:
        assert sum(x * x for x in row) / WIDTH == pytest.approx(1, abs=1e-3)


def test_weights_that_share_an_input_show_the_same_operand(dense: Path) -> None:
    found: dict[str, int] = {}

    def see(product: Product) -> bool:
        found[product.weight.split(".")[2]] = product.input.address
        return True

    watched(dense, Watcher(lambda name: name.startswith("blk.0."), see))
    assert found["attn_q"] == found["attn_k"] == found["attn_v"]
    assert found["ffn_gate"] == found["ffn_up"]
    assert len(set(found.values())) == 4


def test_experts_show_who_was_chosen(tmp_path: Path) -> None:
    found: dict[str, Product] = {}
    chosen: list[int] = []

    def see(product: Product) -> bool:
        found[product.weight] = product
        if product.weight == "blk.0.ffn_down_exps.weight":
            assert product.ids is not None
            memory, step = product.ids.memory(), product.ids.strides_bytes[1]
            for token in range(32):
                chosen.extend(struct.unpack_from(f"<{N_USED}i", memory, token * step))
        return True

    watched(write_text_model(tmp_path / "experts.gguf", experts=True), Watcher(lambda name: "_exps" in name, see))
    gate, down = found["blk.0.ffn_gate_exps.weight"], found["blk.0.ffn_down_exps.weight"]
    assert gate.weight_shape == (WIDTH, EXPERT_FF, N_EXPERTS, 1)
    assert gate.input.shape == (WIDTH, 1, 32, 1)
    assert down.input.shape == (EXPERT_FF, N_USED, 32, 1)
    assert gate.ids is not None
    assert gate.ids.shape == (N_USED, 32, 1, 1)
    assert len(chosen) == 64
    assert set(chosen) <= set(range(N_EXPERTS))


def test_false_ends_the_batch_and_the_next_one_starts_afresh(dense: Path) -> None:
    seen: list[str] = []

    def see(product: Product) -> bool:
        seen.append(product.weight)
        return len(seen) % 3 != 0

    plan = tiny_plan(n_ubatch=64)
    watcher = Watcher(lambda name: name.startswith("blk."), see)
    with Model.load(dense, plan) as model, Evaluator(model, plan, watcher=watcher) as evaluator:
        for _ in range(2):
            evaluator.clear()
            evaluator.decode(TOKENS, 0, wanted=32)
    assert sorted(name.split(".")[2] for name in seen) == sorted(["attn_q", "attn_k", "attn_v"] * 2)


def test_products_of_few_tokens_are_not_shown(dense: Path) -> None:
    seen: list[str] = []

    def see(product: Product) -> bool:
        seen.append(product.weight)
        return True

    watched(dense, Watcher(lambda _: True, see), TOKENS[:15])
    assert seen == []
    watched(dense, Watcher(lambda _: True, see, least_tokens=15), TOKENS[:15])
    assert "output.weight" in seen


@pytest.mark.parametrize("where", ["wants", "seen"])
def test_what_the_watcher_raises_comes_out_of_decode(dense: Path, where: str) -> None:
    def fail(_: object) -> bool:
        raise ZeroDivisionError(where)

    watcher = Watcher(fail, lambda _: True) if where == "wants" else Watcher(lambda _: True, fail)
    with pytest.raises(ZeroDivisionError, match=where):
        watched(dense, watcher)
    watcher.raise_failure()  # told once


def test_a_copied_weight_is_known_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmcli.engine import eval_callback

    rename: Callable[[bytes], str] = lambda name: eval_callback._weight_name(eval_callback._Tensor(name=name))  # noqa: E731
    assert rename(b"CUDA0#blk.0.attn_k.weight#0") == "blk.0.attn_k.weight"
    assert rename(b"blk.0.attn_k.weight") == "blk.0.attn_k.weight"
