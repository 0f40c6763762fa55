"""Sums over the inputs of a model's weights: against llama-imatrix's own file, and against sums made by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmcli.base.errors import ModelError
from llmcli.engine.eval_callback import Product, Watcher
from llmcli.engine.evaluator import Evaluator
from llmcli.engine.model import Model
from llmcli.quant.corpus import Text, cut, pieces
from llmcli.quant.imatrix import Entry, Imatrix, merge
from llmcli.quant.imatrix_collect import Collector
from llmcli.quant.imatrix_file import read_imatrix
from tests.fixtures.engines import tiny_plan
from tests.fixtures.text_models import N_EXPERTS, N_USED, TEXT, write_text_model

DATA = Path(__file__).parent / "data"


def collected(
    path: Path, windows: list[list[int]], *, n_ubatch: int = 128, output: bool = False
) -> list[dict[str, Entry]]:
    plan, collector = tiny_plan(n_ubatch=n_ubatch), Collector(process_output=output)
    found = []
    with Model.load(path, plan) as model, Evaluator(model, plan, watcher=collector.watcher) as evaluator:
        for window in windows:
            evaluator.clear()
            for start, end in pieces(len(window), n_ubatch):
                collector.begin()
                evaluator.decode(window[start:end], start, wanted=end - start)
            found.append(collector.take())
    return found


def text_windows(path: Path, count: int) -> list[list[int]]:
    with Model.load_vocabulary(path) as model:
        return list(cut(Text("text.txt", TEXT), model.tokenizer, 128, most=count))


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_it_is_what_llama_imatrix_measures(tmp_path: Path, kind: str) -> None:
    path = write_text_model(tmp_path / "m.gguf", experts=kind == "experts")
    parts = collected(path, text_windows(path, 5), output=kind == "experts")
    ours = merge([Imatrix(entries, chunk_tokens=128) for entries in parts]).entries
    theirs = read_imatrix(DATA / f"{kind}.imatrix.gguf").entries
    assert set(ours) == set(theirs)
    for name, entry in theirs.items():
        assert ours[name].counts.tolist() == entry.counts.tolist()
        np.testing.assert_allclose(ours[name].sums, entry.sums, rtol=1e-4)


TOKENS = [(i * 37) % 128 for i in range(96)]


@pytest.mark.parametrize("kind", ["plain", "iswa", "hybrid", "mamba"])
def test_leaving_out_what_comes_last_changes_nothing(random_model: Callable[[str], Path], kind: str) -> None:
    """The output's weight is the last product: with it all is computed, without it what is behind the blocks is not."""
    path = random_model(kind)
    windows = [TOKENS, TOKENS[::-1], TOKENS]
    short = collected(path, windows, n_ubatch=48)
    whole = collected(path, windows, n_ubatch=48, output=True)
    for a, b in zip(short, whole, strict=True):
        assert set(a) == {name for name in b if name != "output.weight"}
        assert a
        for name, entry in a.items():
            assert entry.counts.tolist() == b[name].counts.tolist() == [96]
            assert np.array_equal(entry.sums, b[name].sums), name
    assert {name: e.sums.tobytes() for name, e in short[0].items()} == {
        name: e.sums.tobytes() for name, e in short[2].items()
    }


def test_experts_are_summed_by_who_used_them(tmp_path: Path) -> None:
    """Against plain loops over the same memory."""
    path = write_text_model(tmp_path / "m.gguf", experts=True)
    window = text_windows(path, 1)[0]
    by_hand: dict[str, tuple[list[list[float]], list[int]]] = {}

    def see(product: Product) -> bool:
        source, ids = product.input, product.ids
        assert ids is not None
        columns = source.shape[0]
        sums, counts = [[0.0] * columns for _ in range(N_EXPERTS)], [0] * N_EXPERTS
        for token in range(source.shape[2]):
            for slot in range(N_USED):
                at = token * ids.strides_bytes[1] + slot * ids.strides_bytes[0]
                (expert,) = struct.unpack_from("<i", ids.memory(), at)
                row = token * source.strides_bytes[2] + (slot % source.shape[1]) * source.strides_bytes[1]
                counts[expert] += 1
                for i, x in enumerate(struct.unpack_from(f"<{columns}f", source.memory(), row)):
                    sums[expert][i] += x * x
        by_hand[product.weight] = sums, counts
        return True

    plan = tiny_plan(n_ubatch=128)
    watcher = Watcher(lambda name: "_exps" in name, see)
    with Model.load(path, plan) as model, Evaluator(model, plan, watcher=watcher) as evaluator:
        evaluator.decode(window, 0, wanted=128)
    (found,) = collected(path, [window])
    assert len(by_hand) == 6
    for name, (sums, counts) in by_hand.items():
        assert found[name].counts.tolist() == counts
        np.testing.assert_allclose(found[name].sums, np.array(sums).reshape(-1), rtol=1e-4, atol=1e-6)


def test_a_window_is_taken_once(tmp_path: Path) -> None:
    path = write_text_model(tmp_path / "m.gguf")
    window = text_windows(path, 1)[0]
    first, second = collected(path, [window, window])
    assert all(np.array_equal(entry.sums, second[name].sums) for name, entry in first.items())
    assert all(entry.counts.tolist() == [128] for entry in second.values())


def test_values_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    import gguf

    path = write_text_model(tmp_path / "m.gguf")
    reader = gguf.GGUFReader(path, "r+")
    (norm,) = [t for t in reader.tensors if t.name == "blk.1.attn_norm.weight"]
    norm.data[3] = np.nan
    reader.data.flush()
    with pytest.raises(ModelError, match=r"no finite numbers, in front of blk\.1\.attn_"):
        collected(path, text_windows(path, 1))
