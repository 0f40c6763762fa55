"""Measures models on a text, each by itself or against a base, as llama-perplexity does, without a file in between.

The base's log-probabilities of some windows stand in memory, within a stated bound, while every other model reads the
same windows; then come the next windows. Models stay open meanwhile where they fit in memory together, else they are
opened in turn. If all windows are within the bound, each model is opened once and only one at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcli.base.errors import UsageError, UserInterruptError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.engine.engine import Reporter, find_model
from llmcli.engine.evaluator import Evaluator, Measured, open_evaluator
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.model import Model
from llmcli.engine.plan import Request
from llmcli.hardware.memory import read_memory
from llmcli.models.identity import Inspected
from llmcli.models.progress import Progress
from llmcli.models.resolve import ResolvedModel
from llmcli.quant.corpus import DEFAULT_WINDOW_TOKENS, Text, Windows, check_window, cut, pieces
from llmcli.quant.quality_rate import Rates, measure_rates
from llmcli.quant.quality_score import BaseScores, Doubles, Floats, Scorer, Scores, rows
from llmcli.quant.quality_stats import Perplexity, Versus, join, perplexity, versus

DEFAULT_LOGITS_BYTES = 512 << 20
_PIECE_TOKENS = 512  # llama-perplexity's u-batch: with other cuts the last bits differ


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure.

    n_windows      windows at most; None: all of the text
    logits_bytes   what the base's log-probabilities may take in memory; those of one window always may
    with_rates     measure how fast each model reads and writes, too
    """

    n_windows: int | None = None
    logits_bytes: int = DEFAULT_LOGITS_BYTES
    with_rates: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One model's figures. `against` is None for the base and where there is none."""

    name: str
    path: str
    content_id: str
    quant: str
    file_bytes: int
    bpw: float
    alone: Perplexity
    against: Versus | None
    rates: Rates | None

    def figures(self) -> dict[str, float | None]:
        """Every figure by its name in --json."""
        alone = {"ppl": self.alone.ppl, "ppl_error": self.alone.ppl_error}
        rates = asdict(self.rates) if self.rates else {"prefill_tok_s": None, "decode_tok_s": None}
        against = asdict(self.against) if self.against else {}
        return {"file_bytes": self.file_bytes, "bpw": self.bpw, **alone, **against, **rates}

    def as_json(self) -> dict[str, Any]:
        """The row of the account."""
        model = {"name": self.name, "path": self.path, "content_id": self.content_id, "quant": self.quant}
        return {"model": model, **self.figures()}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was measured: the base's row, where there is one, and the others in the order they were named."""

    text: str
    text_sha256: str
    n_windows: int
    window_tokens: int
    n_scored: int
    base: Row | None
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """The account of --json."""
        return {
            "text": {"name": self.text, "sha256": self.text_sha256},
            "windows": self.n_windows,
            "window_tokens": self.window_tokens,
            "scored_tokens": self.n_scored,
            "base": self.base.as_json() if self.base else None,
            "models": [row.as_json() for row in self.rows],
        }


def compare(
    base: str | None,
    models: Sequence[str | None],
    text: Text,
    *,
    plan: Request,
    settings: Settings,
    reporter: Reporter,
    options: Options = Options(),
    stop: StopFlag | None = None,
) -> Comparison:
    """Measure `models` on `text`, against `base` where there is one.

    plan   n_ctx is the length of a window, 512 where it is None
    Raises UsageError where the models do not have the same vocabulary or the text is too short, AbortedError or
    UserInterruptError after Ctrl-C, LlmcliError as opening and computing do.
    """
    window_tokens = DEFAULT_WINDOW_TOKENS if plan.n_ctx is None else plan.n_ctx
    check_window(window_tokens)
    subjects = [_Subject(ref, *find_model(ref, settings, reporter)) for ref in (base, *models)[base is None :]]
    flag = stop or StopFlag()
    with stop_on_interrupt(flag):
        windows = _common_windows(subjects, text, window_tokens, options)
    if flag.is_set():
        raise UserInterruptError
    pool = _Pool(plan, window_tokens, settings, reporter, flag)
    with pool, _told(reporter, windows.count * len(subjects)) as told:
        if base is None:
            for subject in subjects:
                _alone(subject, pool, windows, options, told)
        else:
            _against_base(subjects, pool, windows, options, told)
    found = [subject.row() for subject in subjects]
    return Comparison(
        text=text.name,
        text_sha256=text.sha256,
        n_windows=windows.count,
        window_tokens=window_tokens,
        n_scored=found[0].alone.n_scored,
        base=None if base is None else found[0],
        rows=tuple(found[base is not None :]),
    )


@dataclass(slots=True)
class _Subject:
    """A model that is measured, and what is known of it so far."""

    reference: str | None
    resolved: ResolvedModel
    inspected: Inspected
    nll: list[Doubles] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    rates: Rates | None = None

    def row(self) -> Row:
        facts = self.inspected.facts
        joined = join(self.scores) if self.scores else None
        return Row(
            name=self.resolved.name,
            path=str(self.resolved.path),
            content_id=self.inspected.content_id,
            quant=facts.quant,
            file_bytes=facts.file_bytes,
            bpw=facts.bpw,
            alone=perplexity(joined.nll if joined else np.concatenate(self.nll)),
            against=versus(joined) if joined else None,
            rates=self.rates,
        )


def _common_windows(subjects: Sequence[_Subject], text: Text, window_tokens: int, options: Options) -> Windows:
    """The text as every model's vocabulary has it. Raises UsageError where they do not agree."""
    found: list[Windows] = []
    for subject in subjects:
        with Model.load_vocabulary(subject.inspected.path) as vocabulary:
            found.append(cut(text, vocabulary.tokenizer, window_tokens, most=options.n_windows))
        first, here = subjects[0], subject.inspected.facts.n_vocab
        there = first.inspected.facts.n_vocab
        if (here, found[-1]) != (there, found[0]):
            names = f"{printable(first.resolved.name)} and {printable(subject.resolved.name)}"
            sizes = f" ({there:,} and {here:,} tokens)" if here != there else ""
            raise UsageError(f"{names} do not have the same vocabulary{sizes}, so their answers cannot be compared")
    return found[0]


class _Pool:
    """Opens models: one at a time, or each once for good where `keep` says so."""

    def __init__(
        self, plan: Request, window_tokens: int, settings: Settings, reporter: Reporter, stop: StopFlag
    ) -> None:
        self._plan, self._settings, self._reporter, self.stop = plan, settings, reporter, stop
        self._plan = replace(plan, n_ctx=window_tokens)
        self._piece_tokens = min(_PIECE_TOKENS, window_tokens)
        self._kept: dict[int, Measured] = {}
        self._stack = contextlib.ExitStack()
        self.keep = False

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def use(self, subject: _Subject) -> Iterator[Measured]:
        """The subject's model, open."""
        if (found := self._kept.get(id(subject))) is not None:
            yield found
            return
        opening = open_evaluator(
            subject.reference,
            self._plan,
            self._settings,
            self._reporter,
            piece_tokens=self._piece_tokens,
            stop=self.stop,
        )
        if self.keep:
            self._kept[id(subject)] = kept = self._stack.enter_context(opening)
            yield kept
        else:
            with opening as opened:
                yield opened


class _Told:
    """Progress over the windows of all models."""

    def __init__(self, task: Progress) -> None:
        self._task, self._done = task, 0
        task.update(0)

    def step(self) -> None:
        """One window of one model is done."""
        self._done += 1
        self._task.update(self._done)


@contextlib.contextmanager
def _told(reporter: Reporter, windows: int) -> Iterator[_Told]:
    with reporter.progress("quality", windows, "window") as task:
        yield _Told(task)


def _alone(subject: _Subject, pool: _Pool, windows: Windows, options: Options, told: _Told) -> None:
    with pool.use(subject) as opened, stop_on_interrupt(pool.stop):
        scorer = Scorer(opened.model.tokenizer.n_vocab)
        for index in range(windows.count):
            for logits, following in scored(opened.evaluator, windows.window(index)):
                subject.nll.append(scorer.nll(logits, following))
            told.step()
        _rate(subject, opened.evaluator, windows, options)


def _against_base(subjects: Sequence[_Subject], pool: _Pool, windows: Windows, options: Options, told: _Told) -> None:
    base, others = subjects[0], subjects[1:]
    n_vocab = base.inspected.facts.n_vocab
    scorer = Scorer(n_vocab)
    scored_rows = windows.window_tokens - 1 - windows.window_tokens // 2
    at_once = max(1, options.logits_bytes // (scored_rows * scorer.row_bytes))
    pool.keep = at_once < windows.count and _fit_together(subjects)
    for start, end in pieces(windows.count, at_once):
        kept: list[list[BaseScores]] = []
        with pool.use(base) as opened, stop_on_interrupt(pool.stop):
            for index in range(start, end):
                reading = scored(opened.evaluator, windows.window(index))
                kept.append([scorer.encode(logits, following) for logits, following in reading])
                base.nll += [piece.nll for piece in kept[-1]]
                told.step()
            _rate(base, opened.evaluator, windows, options)
        for subject in others:
            with pool.use(subject) as opened, stop_on_interrupt(pool.stop):
                for index in range(start, end):
                    reading = scored(opened.evaluator, windows.window(index))
                    for (logits, following), piece in zip(reading, kept[index - start], strict=True):
                        subject.scores.append(scorer.score(logits, following, piece))
                    told.step()
                _rate(subject, opened.evaluator, windows, options)


def _fit_together(subjects: Sequence[_Subject]) -> bool:
    """Whether all weights take at most half of what is free: the rest is for contexts, logits and the system."""
    weights = sum(subject.inspected.facts.tensor_bytes for subject in subjects)
    return weights <= read_memory().available_bytes // 2


def scored(evaluator: Evaluator, window: list[int]) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    """The logits of the window's second half, and the tokens that follow each. The first half is context alone."""
    first, last, n_vocab = len(window) // 2, len(window) - 1, evaluator.model.tokenizer.n_vocab
    evaluator.clear()
    for start, end in pieces(len(window), evaluator.n_piece):
        wanted = max(0, end - max(start, first))
        evaluator.decode(window[start:end], start, wanted=wanted)
        following = np.array(window[max(start, first) + 1 : min(end, last) + 1], np.int64)
        if len(following):
            yield rows(evaluator.logits(), n_vocab)[: len(following)], following


def _rate(subject: _Subject, evaluator: Evaluator, windows: Windows, options: Options) -> None:
    if options.with_rates and subject.rates is None:
        subject.rates = measure_rates(evaluator, windows.window(0))
