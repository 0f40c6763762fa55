"""Measures the importance matrix of a model on a text, window by window; a run that was stopped goes on where it was.

While it works, what it has stands in `OUTPUT.part`, a valid matrix with notes on which run it is of. It is written when
the run is stopped and every half minute, and removed once the output is whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmcli.base.errors import LlmcliError, ModelError, UsageError, UserInterruptError
from llmcli.base.files import make_private_dir
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.base.units import format_count
from llmcli.engine.context import AbortedError
from llmcli.engine.engine import Reporter, find_model
from llmcli.engine.eval_callback import LEAST_TOKENS
from llmcli.engine.evaluator import Evaluator, Measured, open_evaluator
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.plan import Request
from llmcli.models.identity import Inspected
from llmcli.quant.corpus import CALIBRATION, DEFAULT_WINDOW_TOKENS, Text, Windows, check_window, cut, pieces, shipped
from llmcli.quant.imatrix import Entry, Imatrix, merge
from llmcli.quant.imatrix_collect import Collector
from llmcli.quant.imatrix_file import read_imatrix, write_imatrix
from llmcli.quant.place import Target, cannot_write, check_target

PART_SUFFIX = ".part"
SAVE_EVERY_S = 30.0
_PIECE_TOKENS = 512
_DONE = "done"
_FOLDER = "imatrix"


@dataclass(frozen=True, slots=True)
class ImatrixRequest:
    """What to measure.

    reference       the model; None as in `resolve`
    plan            n_ctx is the length of a window
    n_chunks        windows at most, behind the first `skip_chunks`; None: all there are
    in_files        matrices of the same model to add in
    text_file       where the text is from; like the model and in_files, it is never overwritten
    goes_on         take up what an interrupted run of the same kind has left
    """

    reference: str | None
    text: Text
    output: Path
    plan: Request
    n_chunks: int | None = None
    skip_chunks: int = 0
    process_output: bool = False
    parse_special: bool = False
    in_files: tuple[Path, ...] = ()
    text_file: Path | None = None
    force: bool = False
    goes_on: bool = True


@dataclass(frozen=True, slots=True)
class ImatrixResult:
    """A matrix that was written to `output`.

    n_resumed   windows that an earlier run had done
    compute_s   time spent on the others, of which `n_tokens` is the length
    """

    imatrix: Imatrix
    output: Path
    model: Measured | None
    n_windows: int
    n_resumed: int
    n_tokens: int
    compute_s: float

    @property
    def tok_s(self) -> float | None:
        """Tokens a second, None where nothing was computed."""
        return self.n_tokens / self.compute_s if self.n_tokens else None


def compute_imatrix(
    request: ImatrixRequest, settings: Settings, reporter: Reporter, *, stop: StopFlag | None = None
) -> ImatrixResult:
    """Measure, write `request.output`, return what was written.

    Raises UserInterruptError after Ctrl-C, with what was computed kept for the next call; LlmcliError as the steps do.
    """
    check_window(request.plan.n_ctx or 0)
    if request.plan.n_ubatch and request.plan.n_ubatch < LEAST_TOKENS:
        raise UsageError(f"-ub {request.plan.n_ubatch}: products of fewer than {LEAST_TOKENS} tokens are not measured")
    flag, collector = stop or StopFlag(), Collector(process_output=request.process_output)
    others = (*request.in_files, *((request.text_file,) if request.text_file else ()))
    check_output(request.output, others, force=request.force)
    inputs = [read_imatrix(path) for path in request.in_files]
    with open_evaluator(
        request.reference,
        request.plan,
        settings,
        reporter,
        piece_tokens=min(_PIECE_TOKENS, request.plan.n_ctx or _PIECE_TOKENS),
        watcher=collector.watcher,
        stop=flag,
    ) as model:
        check_output(request.output, [Path(shard) for shard in model.inspected.facts.shards], force=True)
        with stop_on_interrupt(flag):
            windows = _windows(request, model)
        if flag.is_set():
            raise UserInterruptError
        run = _Run(model.evaluator, windows, collector, _notes(request, windows, model.inspected), request)
        begun = time.perf_counter()
        first = run.resume(reporter) if request.goes_on else 0
        with stop_on_interrupt(flag):
            run.work(first, reporter)
        if not run.matrix().entries:
            raise ModelError(f"{printable(model.resolved.name)} has no weight that a matrix could be measured of")
        compute_s = time.perf_counter() - begun
    whole = merge([*inputs, run.matrix()]) if inputs else run.matrix()
    save(request.output, whole)
    run.part.unlink(missing_ok=True)
    done = windows.count - first
    return ImatrixResult(whole, request.output, model, windows.count, first, done * windows.window_tokens, compute_s)


def merge_files(files: Sequence[Path], output: Path, *, force: bool) -> ImatrixResult:
    """Write the sum of several matrices of one model. Raises LlmcliError."""
    check_output(output, files, force=force)
    whole = merge([read_imatrix(path) for path in files])
    save(output, whole)
    return ImatrixResult(whole, output, None, whole.n_chunks, 0, 0, 0.0)


def check_output(output: Path, inputs: Sequence[Path], *, force: bool) -> None:
    """Raise LlmcliError where `output` cannot or must not be written: it is there, or is one of the inputs."""
    real = Path(os.path.realpath(output))
    check_target(Target(real.parent, (real,), real.name, force), inputs)
    if not os.access(real.parent, os.W_OK):
        raise cannot_write(real.parent, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def save(path: Path, imatrix: Imatrix) -> None:
    """Write the file in one step; a link is followed, and stays. Raises LlmcliError where that cannot be done."""
    try:
        write_imatrix(Path(os.path.realpath(path)), imatrix)
    except OSError as error:
        raise cannot_write(path.absolute().parent, error) from None


def _windows(request: ImatrixRequest, model: Measured) -> Windows:
    return cut(
        request.text,
        model.model.tokenizer,
        request.plan.n_ctx or DEFAULT_WINDOW_TOKENS,
        most=request.n_chunks,
        skip=request.skip_chunks,
        parse_special=request.parse_special,
    )


def _notes(request: ImatrixRequest, windows: Windows, inspected: Inspected) -> dict[str, str | int]:
    """What makes two runs the same one."""
    return {
        "model": inspected.content_id,
        "text": request.text.sha256,
        "window": windows.window_tokens,
        "first": request.skip_chunks,
        "windows": windows.count,
        "output": int(request.process_output),
        "special": int(request.parse_special),
    }


class _Run:
    """The loop over the windows and the file that keeps its state."""

    def __init__(
        self,
        evaluator: Evaluator,
        windows: Windows,
        collector: Collector,
        notes: Mapping[str, str | int],
        request: ImatrixRequest,
    ) -> None:
        self._evaluator, self._windows, self._collector = evaluator, windows, collector
        self._notes, self._text = notes, request.text
        self._entries: dict[str, Entry] = {}
        self._done = 0
        self.part = request.output.with_name(request.output.name + PART_SUFFIX)

    def resume(self, reporter: Reporter) -> int:
        """Take up what a stopped run left; how many windows it had done. Raises UsageError where it was another run."""
        if not self.part.exists():
            return 0
        found = read_imatrix(self.part)
        notes = dict(found.notes)
        done = notes.pop(_DONE, None)
        if notes != self._notes or not isinstance(done, int) or not 0 < done <= self._windows.count:
            raise UsageError(
                f"{printable(str(self.part))} is what another run left: of another model, text or window",
                hint="--no-resume starts over and replaces it",
            )
        reporter.notify(f"going on behind window {done:,} of {self._windows.count:,}, where the last run stopped")
        self._entries, self._done = dict(found.entries), done
        return done

    def work(self, first: int, reporter: Reporter) -> None:
        """Do the windows from `first` on. Raises UserInterruptError with the state saved."""
        saved = time.monotonic()
        with reporter.progress("importance matrix", self._windows.count, "window") as task:
            task.update(first)
            for index in range(first, self._windows.count):
                try:
                    self._window(index)
                except AbortedError:
                    raise self._interrupted() from None
                task.update(index + 1)
                if time.monotonic() - saved > SAVE_EVERY_S:
                    self._save()
                    saved = time.monotonic()

    def matrix(self, **notes: int) -> Imatrix:
        """What is there so far; with notes it can be gone on with."""
        return Imatrix(
            self._entries,
            (self._text.name,),
            self._done,
            self._windows.window_tokens,
            {**self._notes, **notes} if notes else {},
        )

    def _window(self, index: int) -> None:
        tokens, evaluator = self._windows.window(index), self._evaluator
        evaluator.clear()
        for start, end in pieces(len(tokens), evaluator.n_piece):
            self._collector.begin()
            # All logits are wanted: without them the last layer computes only the last token.
            evaluator.decode(tokens[start:end], start, wanted=end - start)
        for name, entry in self._collector.take().items():
            kept = self._entries.get(name)
            self._entries[name] = entry if kept is None else kept.plus(entry, name)
        self._done = index + 1

    def _save(self) -> None:
        save(self.part, self.matrix(**{_DONE: self._done}))

    def _interrupted(self) -> UserInterruptError:
        if not self._done:
            return UserInterruptError("interrupted before the first window was done")
        self._save()
        return UserInterruptError(
            f"interrupted after {format_count(self._done, 'window')} of {self._windows.count:,}",
            hint="the same command goes on from there",
        )


# ---- for `quantize --imatrix auto` -----------------------------------------------------------------------------------


def auto_imatrix(reference: str | None, plan: Request, settings: Settings, reporter: Reporter) -> tuple[Path, Imatrix]:
    """The matrix of a model on the package's own text: made now, or kept from before. Raises as the making does."""
    text = shipped(CALIBRATION)
    _, inspected = find_model(reference, settings, reporter)
    folder = make_private_dir(settings.cache_dir / _FOLDER)
    path = folder / f"{inspected.content_id[:32]}-{text.sha256[:16]}.gguf"
    with contextlib.suppress(LlmcliError):
        return path, read_imatrix(path)
    reporter.notify("measuring an importance matrix on the text that comes with llmcli; it is kept for the next time")
    request = ImatrixRequest(reference, text, path, plan=plan, force=True)
    return path, compute_imatrix(request, settings, reporter).imatrix
