"""Measuring a whole matrix: what is written, what a stop keeps, and how a run goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcli.base.errors import LlmcliError, ModelError, ResourceError, UsageError, UserInterruptError
from llmcli.base.settings import load
from llmcli.engine import evaluator as evaluator_module
from llmcli.engine.interrupt import StopFlag
from llmcli.engine.plan import Request
from llmcli.engine.preflight import EngineBuild
from llmcli.models.progress import Progress, ProgressFactory
from llmcli.quant import imatrix_compute as module
from llmcli.quant.corpus import Text
from llmcli.quant.imatrix import Imatrix
from llmcli.quant.imatrix_compute import ImatrixRequest, ImatrixResult, auto_imatrix, compute_imatrix, merge_files
from llmcli.quant.imatrix_file import dump, read_imatrix, write_imatrix
from tests.fixtures.notes import Notes
from tests.fixtures.text_models import TEXT, write_text_model

DATA = Path(__file__).parent / "data"
WHOLE = Text("text.txt", TEXT)


@pytest.fixture(autouse=True)
def _known_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator_module, "check_build", lambda settings: EngineBuild("0" * 64))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_model(tmp_path_factory.mktemp("models") / "dense.gguf")


class StopsAfter(Notes):
    """Asks for a stop once so many windows are done, as a Ctrl-C would."""

    def __init__(self, windows: int, stop: StopFlag, of: int = 6) -> None:
        super().__init__()
        self._windows, self._stop, self._of = windows, stop, of

    @property
    def progress(self) -> ProgressFactory:
        @contextlib.contextmanager
        def start(title: str, total_bytes: int | None, _unit: str = "", /) -> Iterator[Progress]:
            stop, least = self._stop, self._windows * (total_bytes or 0) // self._of

            class Task:
                def update(self, done: int, /) -> None:
                    if title == "importance matrix" and done >= least:
                        stop.set()

            yield Task()

        return start


def asking(model: Path, output: Path, **changes: Any) -> ImatrixRequest:
    return ImatrixRequest(
        **{
            "reference": str(model),
            "text": WHOLE,
            "output": output,
            "plan": Request(n_ctx=128, n_threads=1),
            "n_chunks": 6,
            **changes,
        }
    )


def computed(request: ImatrixRequest, reporter: Notes | None = None, stop: StopFlag | None = None) -> ImatrixResult:
    return compute_imatrix(request, load(), reporter or Notes(), stop=stop)


def test_it_is_written_and_is_what_llama_imatrix_writes(dense: Path, tmp_path: Path) -> None:
    result = computed(asking(dense, tmp_path / "m.gguf", n_chunks=5))
    found, theirs = read_imatrix(tmp_path / "m.gguf"), read_imatrix(DATA / "dense.imatrix.gguf")
    assert (found.datasets, found.n_chunks, found.chunk_tokens) == (("text.txt",), 5, 128)
    assert dict(found.notes) == {}
    assert dump(found) == dump(result.imatrix)
    assert set(found.entries) == set(theirs.entries)
    for name, entry in theirs.entries.items():
        assert found.entries[name].counts.tolist() == entry.counts.tolist()
        np.testing.assert_allclose(found.entries[name].sums, entry.sums, rtol=1e-3)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    assert (result.n_windows, result.n_resumed, result.n_tokens) == (5, 0, 640)
    assert result.tok_s is not None
    assert result.tok_s > 0


def test_progress_counts_windows(dense: Path, tmp_path: Path) -> None:
    notes = Notes()
    compute_imatrix(asking(dense, tmp_path / "m.gguf"), load(), notes)
    assert ["importance matrix", 6, 6, "ended"] in notes.tasks
    assert notes.units["importance matrix"] == "window"


def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(dense: Path, tmp_path: Path) -> None:
    computed(asking(dense, tmp_path / "whole.gguf"))
    request, part = asking(dense, tmp_path / "m.gguf"), tmp_path / "m.gguf.part"
    for done in (2, 5):
        stop = StopFlag()
        with pytest.raises(UserInterruptError, match=f"interrupted after {done} windows of 6") as caught:
            computed(request, StopsAfter(done, stop), stop)
        assert caught.value.hint == "the same command goes on from there"
        assert not request.output.exists()
        kept = read_imatrix(part)
        assert (kept.n_chunks, kept.notes["done"]) == (done, done)
        assert set(kept.entries["blk.0.attn_q.weight"].counts.tolist()) == {done * 128}
    notes = Notes()
    result = computed(request, notes)
    assert "going on behind window 5 of 6, where the last run stopped" in notes.lines
    assert (result.n_resumed, result.n_tokens) == (5, 128)
    assert request.output.read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    assert not part.exists()


def test_a_stop_before_the_first_window_keeps_nothing(dense: Path, tmp_path: Path) -> None:
    stop = StopFlag()
    with pytest.raises(UserInterruptError, match="interrupted"):
        computed(asking(dense, tmp_path / "m.gguf"), StopsAfter(0, stop), stop=set_later(stop))
    assert list(tmp_path.iterdir()) == []


def set_later(stop: StopFlag) -> StopFlag:
    stop.set()
    return stop


def test_the_state_is_saved_every_so_often(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
    saved: list[tuple[str, int]] = []
    real = module.save

    def save(path: Path, matrix: Imatrix) -> None:
        saved.append((path.name, matrix.n_chunks))
        real(path, matrix)

    monkeypatch.setattr(module, "save", save)
    computed(asking(dense, tmp_path / "m.gguf", n_chunks=3))
    assert saved == [("m.gguf.part", 1), ("m.gguf.part", 2), ("m.gguf.part", 3), ("m.gguf", 3)]
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    "changes",
    [
        {"text": Text("text.txt", WHOLE.text + "x")},
        {"plan": Request(n_ctx=64, n_threads=1)},
        {"process_output": True},
        {"n_chunks": 5},
    ],
    ids=["text", "window", "output", "chunks"],
)
def test_what_another_run_left_is_not_gone_on_with(dense: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    stop = StopFlag()
    with pytest.raises(UserInterruptError):
        computed(asking(dense, tmp_path / "m.gguf"), StopsAfter(2, stop), stop)
    with pytest.raises(UsageError, match=r"m\.gguf\.part is what another run left") as caught:
        computed(asking(dense, tmp_path / "m.gguf", **changes))
    assert caught.value.hint == "--no-resume starts over and replaces it"
    computed(asking(dense, tmp_path / "m.gguf", goes_on=False, **changes))
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_another_model_does_not_go_on_either(dense: Path, tmp_path: Path) -> None:
    stop = StopFlag()
    with pytest.raises(UserInterruptError):
        computed(asking(dense, tmp_path / "m.gguf"), StopsAfter(2, stop), stop)
    other = write_text_model(tmp_path / "other.gguf", noise=0.1)
    with pytest.raises(UsageError, match="another run left"):
        computed(asking(other, tmp_path / "m.gguf"))


def test_parts_merged_are_the_whole(dense: Path, tmp_path: Path) -> None:
    whole = computed(asking(dense, tmp_path / "whole.gguf")).imatrix
    computed(asking(dense, tmp_path / "a.gguf", n_chunks=2))
    computed(asking(dense, tmp_path / "b.gguf", skip_chunks=2, n_chunks=4))
    merged = merge_files([tmp_path / "a.gguf", tmp_path / "b.gguf"], tmp_path / "sum.gguf", force=False)
    added = computed(asking(dense, tmp_path / "c.gguf", skip_chunks=2, n_chunks=4, in_files=(tmp_path / "a.gguf",)))
    for found in (merged.imatrix, added.imatrix, read_imatrix(tmp_path / "sum.gguf")):
        assert (found.n_chunks, found.chunk_tokens) == (6, 128)
        for name, entry in whole.entries.items():
            assert found.entries[name].counts.tolist() == entry.counts.tolist()
            np.testing.assert_allclose(found.entries[name].sums, entry.sums, rtol=1e-5)
    assert merged.tok_s is None


def test_an_output_that_is_there_needs_force(dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(LlmcliError, match="is there already"):
        computed(asking(dense, out))
    assert out.read_bytes() == b"precious"
    computed(asking(dense, out, force=True, n_chunks=1))
    assert read_imatrix(out).n_chunks == 1


@pytest.mark.parametrize("how", ["same", "link", "hard link"])
def test_the_model_is_never_the_output(tmp_path: Path, how: str) -> None:
    model = write_text_model(tmp_path / "dense.gguf")
    out = model if how == "same" else tmp_path / "out.gguf"
    if how == "link":
        out.symlink_to(model)
    elif how == "hard link":
        os.link(model, out)
    before = model.read_bytes()
    with pytest.raises(LlmcliError, match="are the same file"):
        computed(asking(model, out, force=True))
    assert model.read_bytes() == before


def test_an_input_matrix_is_never_the_output(dense: Path, tmp_path: Path) -> None:
    first = tmp_path / "a.gguf"
    write_imatrix(first, read_imatrix(DATA / "dense.imatrix.gguf"))
    with pytest.raises(LlmcliError, match="are the same file"):
        merge_files([first], first, force=True)


def test_a_missing_folder_is_told_before_anything_is_computed(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(LlmcliError, match=r"the folder .*none does not exist"):
        computed(asking(dense, tmp_path / "none" / "m.gguf"))


def test_a_folder_that_is_read_only_is_told_before_anything_is_computed(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(LlmcliError, match=r"cannot write to the folder .*: Permission denied"):
        computed(asking(dense, tmp_path / "m.gguf"))


def test_a_link_is_followed_and_stays(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "link.gguf").symlink_to(tmp_path / "real.gguf")
    computed(asking(dense, tmp_path / "link.gguf", n_chunks=1))
    assert (tmp_path / "link.gguf").is_symlink()
    assert read_imatrix(tmp_path / "real.gguf").n_chunks == 1


def test_a_damaged_input_is_told_before_anything_is_computed(dense: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no")
    with pytest.raises(ModelError, match=r"bad\.gguf"):
        computed(asking(dense, tmp_path / "m.gguf", in_files=(tmp_path / "bad.gguf",)))


def test_a_full_disk_is_told_in_words(dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_imatrix", full)
    with pytest.raises(ResourceError, match="no room left in"):
        computed(asking(dense, tmp_path / "m.gguf", n_chunks=1))


def test_a_short_text_is_refused(dense: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 14 tokens, and a window needs 128"):
        computed(asking(dense, tmp_path / "m.gguf", text=Text("short.txt", "hello there")))
    assert list(tmp_path.iterdir()) == []


def test_auto_is_measured_once_and_kept(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "shipped", lambda name: Text(name, TEXT[: 128 * 2]))
    notes = Notes()
    plan = Request(n_ctx=128, n_threads=1)
    path, first = auto_imatrix(str(dense), plan, load(), notes)
    assert path.is_relative_to(load().cache_dir)
    assert first.datasets == ("calibration.txt",)
    assert any("measuring an importance matrix" in line for line in notes.lines)
    again = Notes()
    assert dump(auto_imatrix(str(dense), plan, load(), again)[1]) == dump(first)
    assert again.lines == []
    path.write_bytes(b"damaged")
    assert dump(auto_imatrix(str(dense), plan, load(), Notes())[1]) == dump(first)


def test_smollm2_is_measured_as_llama_imatrix_measures_it(smollm2_path: Path, tmp_path: Path) -> None:
    from llmcli.engine.quantizer import NativeSettings, quantize

    model = tmp_path / "F16.gguf"
    quantize(smollm2_path, model, NativeSettings(file_type=1, threads=1, allow_requantize=True))
    text = Text("measured.txt", (DATA / "measured.txt").read_text(encoding="utf-8"))
    found = computed(asking(model, tmp_path / "m.gguf", text=text, n_chunks=3)).imatrix
    model.unlink()
    theirs = json.loads((DATA / "measured.json").read_text(encoding="utf-8"))["smollm2_matrix"]
    assert set(found.entries) == set(theirs)
    assert len(theirs) == 210
    for name, (count, total, norm, most) in theirs.items():
        sums = found.entries[name].sums.astype(np.float64)
        assert found.entries[name].counts.tolist() == [count] == [384]
        assert [sums.sum(), np.linalg.norm(sums), sums.max()] == pytest.approx([total, norm, most], rel=1e-3), name
