"""Whole comparisons: llama-perplexity's figures, bounds on memory, models opened once or in turn."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcli.base.errors import UsageError
from llmcli.base.settings import load
from llmcli.engine import evaluator as evaluator_module
from llmcli.engine.context import AbortedError
from llmcli.engine.evaluator import Measured
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.plan import Request
from llmcli.engine.preflight import EngineBuild
from llmcli.quant import quality_compare as module
from llmcli.quant.corpus import Text
from llmcli.quant.quality_compare import Comparison, Options, compare
from llmcli.quant.quality_score import BaseScores, Scorer
from tests.fixtures.notes import Notes
from tests.fixtures.text_models import TEXT, write_text_model

DATA = Path(__file__).parent / "data"
FIGURES = json.loads((DATA / "measured.json").read_text(encoding="utf-8"))
THE_TEXT = Text("text.txt", TEXT)
CODES_BYTES = 63 * 261 * 2  # of one window of 128


@pytest.fixture(autouse=True)
def _known_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "check_build", lambda settings: EngineBuild("0" * 64))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "dense": write_text_model(folder / "dense.gguf"),
        "noisy": write_text_model(folder / "noisy.gguf", noise=0.05),
        "worse": write_text_model(folder / "worse.gguf", noise=0.5),
        "larger": write_text_model(folder / "larger.gguf", extra_tokens=3),
        "no bos": write_text_model(folder / "no-bos.gguf", add_bos=False),
    }


def compared(
    base: Path | None, *others: Path, reporter: Notes | None = None, stop: StopFlag | None = None, **options: Any
) -> Comparison:
    return compare(
        None if base is None else str(base),
        [str(path) for path in others],
        THE_TEXT,
        plan=Request(n_ctx=128, n_threads=1),
        settings=load(),
        reporter=reporter or Notes(),
        options=Options(**{"n_windows": 8, "with_rates": False, **options}),
        stop=stop,
    )


def agrees(figures: dict[str, float | None], expected: dict[str, float], rel: float) -> None:
    for name, value in expected.items():
        if not name.startswith("ppl_alone"):
            # The figures were printed with this many digits, and a token at the border may change sides.
            slack = 0.4 if name.startswith("same_top") else 6e-7 if name.startswith("kld") else 6e-4
            assert figures[name] == pytest.approx(value, rel=rel, abs=slack), name


def test_it_is_what_llama_perplexity_measures(models: dict[str, Path]) -> None:
    found = compared(models["dense"], models["noisy"])
    assert (found.n_windows, found.window_tokens, found.n_scored) == (8, 128, 504)
    assert found.base is not None
    assert found.base.against is None
    assert found.base.alone.ppl == pytest.approx(FIGURES["tiny"]["ppl_alone"], rel=1e-3)
    assert found.base.alone.ppl_error == pytest.approx(FIGURES["tiny"]["ppl_alone_error"], rel=1e-3)
    (row,) = found.rows
    agrees(row.figures(), FIGURES["tiny"], rel=1e-3)


def test_without_a_base_there_is_perplexity_alone(models: dict[str, Path]) -> None:
    found = compared(None, models["noisy"], models["dense"])
    assert found.base is None
    assert [row.against for row in found.rows] == [None, None]
    assert found.rows[0].alone.ppl == pytest.approx(FIGURES["tiny"]["ppl"], rel=1e-3)
    assert found.rows[1].alone.ppl == pytest.approx(FIGURES["tiny"]["ppl_alone"], rel=1e-3)
    assert "kld_mean" not in found.rows[0].figures()


def test_a_model_of_its_own_kind_is_at_no_distance_and_a_worse_one_farther(models: dict[str, Path]) -> None:
    found = compared(models["dense"], models["dense"], models["noisy"], models["worse"], n_windows=2)
    same, near, far = (row.against for row in found.rows)
    assert same is not None
    assert near is not None
    assert far is not None
    assert same.kld_mean == pytest.approx(0, abs=1e-5)
    assert same.same_top_percent == 100
    assert same.kld_mean < near.kld_mean < far.kld_mean


class Opened:
    """Counts which models are opened, and how many at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.now, self.most = 0, 0
        real = evaluator_module.open_evaluator

        @contextlib.contextmanager
        def opening(reference: str | None, *rest: Any, **more: Any) -> Iterator[Measured]:
            self.names.append(Path(str(reference)).stem)
            self.now += 1
            self.most = max(self.most, self.now)
            with real(reference, *rest, **more) as opened:
                yield opened
            self.now -= 1

        monkeypatch.setattr(module, "open_evaluator", opening)


def test_where_all_windows_fit_each_model_is_opened_once_and_alone(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Opened(monkeypatch)
    compared(models["dense"], models["noisy"], models["worse"], logits_bytes=8 * CODES_BYTES)
    assert (opened.names, opened.most) == (["dense", "noisy", "worse"], 1)


@pytest.mark.parametrize(("fits", "most"), [(True, 2), (False, 1)], ids=["together", "in turn"])
def test_a_bound_on_memory_changes_no_figure(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, fits: bool, most: int
) -> None:
    whole = compared(models["dense"], models["noisy"])
    monkeypatch.setattr(module, "_fit_together", lambda subjects: fits)
    kept: list[int] = []
    real = Scorer.encode

    def encode(self: Scorer, *rest: Any) -> BaseScores:
        found = real(self, *rest)
        kept.append(found.nbytes)
        return found

    monkeypatch.setattr(Scorer, "encode", encode)
    opened = Opened(monkeypatch)
    parts = compared(models["dense"], models["noisy"], logits_bytes=3 * CODES_BYTES)
    assert (len(opened.names), opened.most) == (2 if fits else 6, most)
    assert kept == [CODES_BYTES] * 8
    assert parts == whole


def test_one_window_is_always_kept(models: dict[str, Path]) -> None:
    assert compared(models["dense"], models["noisy"], logits_bytes=1).rows[0].against is not None


def test_models_of_another_vocabulary_are_refused(models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"dense and larger do not have the same vocabulary \(261 and 264 tokens\)"):
        compared(models["dense"], models["larger"])
    with pytest.raises(UsageError, match="dense and no-bos do not have the same vocabulary, so"):
        compared(models["dense"], models["no bos"])


def test_a_short_text_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="has 3 tokens, and a window needs 128"):
        compare(
            None, [str(models["dense"])], Text("t", "hi"), plan=Request(n_ctx=128), settings=load(), reporter=Notes()
        )


def test_a_stop_ends_it(models: dict[str, Path]) -> None:
    stop = StopFlag()

    class Stops(Notes):
        @property
        def progress(self) -> Any:
            @contextlib.contextmanager
            def start(title: str, total_bytes: int | None, _unit: str = "", /) -> Iterator[Any]:
                class Task:
                    def update(self, done: int, /) -> None:
                        if title == "quality" and done:
                            stop.set()

                yield Task()

            return start

    with pytest.raises(AbortedError) as caught:
        compared(models["dense"], models["noisy"], reporter=Stops(), stop=stop)
    assert caught.value.exit_code == 130


def test_rates_are_measured_on_request(models: dict[str, Path]) -> None:
    found = compared(models["dense"], models["noisy"], n_windows=1, with_rates=True)
    for row in (found.base, *found.rows):
        assert row is not None
        assert row.rates is not None
        assert min(row.rates.prefill_tok_s, row.rates.decode_tok_s) > 0


def test_progress_counts_the_windows_of_all_models(models: dict[str, Path]) -> None:
    notes = Notes()
    compared(models["dense"], models["noisy"], reporter=notes)
    (task,) = [task for task in notes.tasks if task[0] == "quality"]
    n_windows = compared(models["dense"], models["noisy"]).n_windows
    assert task[1:] == [2 * n_windows, 2 * n_windows, "ended"]
    assert notes.units["quality"] == "window"


def test_the_account(models: dict[str, Path]) -> None:
    found = json.loads(json.dumps(compared(models["dense"], models["noisy"], n_windows=1).as_json()))
    assert found["text"] == {"name": "text.txt", "sha256": THE_TEXT.sha256}
    assert (found["windows"], found["window_tokens"], found["scored_tokens"]) == (1, 128, 63)
    assert found["base"]["model"]["name"] == "dense"
    (row,) = found["models"]
    assert row["model"] == {
        "name": "noisy",
        "path": str(models["noisy"]),
        "content_id": row["model"]["content_id"],
        "quant": "F32",
    }
    assert row["file_bytes"] == models["noisy"].stat().st_size
    assert row["bpw"] == 32


def test_smollm2_is_measured_as_llama_perplexity_measures_it(smollm2_path: Path, tmp_path: Path) -> None:
    """All in F16, so that no sum depends on which kernels for quantized types a CPU has, but for their order: wider
    vectors add in another one, and llama-perplexity gives figures of its own for either.
    """
    from llmcli.engine import native
    from llmcli.engine.quantizer import NativeSettings, quantize

    expected = FIGURES["smollm2" if "AVX512 = 1" in native.system_info() else "smollm2_avx2"]

    def quantized(source: Path, name: str, file_type: int) -> Path:
        target = tmp_path / f"{name}.gguf"
        quantize(source, target, NativeSettings(file_type=file_type, threads=1, allow_requantize=True))
        return target

    base = quantized(smollm2_path, "F16", 1)
    small = quantized(base, "Q4_0", 2)
    other = quantized(small, "Q4_0-as-F16", 1)
    found = compare(
        str(base),
        [str(other)],
        Text("measured.txt", (DATA / "measured.txt").read_text(encoding="utf-8")),
        plan=Request(n_ctx=256, n_threads=1),
        settings=load(),
        reporter=Notes(),
        options=Options(n_windows=2, with_rates=False),
    )
    for path in (base, small, other):
        path.unlink()
    assert found.base is not None
    assert found.base.alone.ppl == pytest.approx(expected["ppl_alone"], rel=1e-3)
    agrees(found.rows[0].figures(), expected, rel=1e-3)
