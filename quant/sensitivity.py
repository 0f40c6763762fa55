"""How much the model's answers suffer from an error in each group of tensors: measured, by adding one.

The weights of one group of tensors at a time get an error of a known size, by adding to each of their products what a
random change of the weights would add, and the divergence of the answers from those without it is taken. The change is
the same for every token, as that of a stored type is: noise of each token's own would be averaged out by attention.
Small errors add up: the divergence is near enough proportional to the mean square of the error, so the cost of any
choice of types is a sum over tensors.

A group is one kind of tensor (all `attn_v`, say) in a third of the layers.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmcli.base.errors import UserInterruptError
from llmcli.base.settings import Settings
from llmcli.engine.context import AbortedError
from llmcli.engine.engine import Reporter
from llmcli.engine.eval_callback import Operand, Product, Watcher
from llmcli.engine.evaluator import Evaluator, open_evaluator
from llmcli.engine.interrupt import StopFlag, stop_on_interrupt
from llmcli.engine.plan import Request
from llmcli.quant.corpus import CALIBRATION, cut, pieces, shipped
from llmcli.quant.quality_score import BaseScores, Floats, Scorer, rows
from llmcli.quant.tensor_errors import TensorErrors

WINDOW_TOKENS = 160
_CONTEXT_TOKENS = 32  # of the window are read and not scored
_NOISE = 0.005  # mean square of the error over that of the weights; what a 4-bit type does
_ZONES = 3
_ROWS_AT_ONCE = 8192  # of a change, in memory
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


def group_of(name: str, layers: int) -> str:
    """The group of a tensor: `ffn_down.weight:1` for a layer in the middle third, the name itself outside layers."""
    found = _LAYER.fullmatch(name)
    if not found:
        return name
    return f"{found[2]}:{min(_ZONES - 1, int(found[1]) * _ZONES // max(layers, 1))}"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Divergence per unit of relative error, for one tensor of each group.

    typical   for tensors whose products were not seen, such as embeddings that are only looked up
    """

    by_group: Mapping[str, float]
    layers: int
    typical: float

    def of(self, name: str) -> float:
        """The factor of one tensor."""
        return self.by_group.get(group_of(name, self.layers), self.typical)


def measure_sensitivity(
    reference: str,
    names: Iterable[str],
    layers: int,
    errors: TensorErrors,
    request: Request,
    settings: Settings,
    reporter: Reporter,
    *,
    stop: StopFlag | None = None,
) -> Sensitivity:
    """Measure the groups of these tensors on the package's calibration text.

    errors   knows the sizes of the weights
    Raises UserInterruptError after Ctrl-C.
    """
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(group_of(name, layers), []).append(name)
    flag, noise = stop or StopFlag(), _Noise(layers, errors)
    with (
        open_evaluator(
            reference, request, settings, reporter, piece_tokens=WINDOW_TOKENS, watcher=noise.watcher, stop=flag
        ) as opened,
        reporter.progress("sensitivity of the tensors", len(members), "group") as task,
    ):
        tokens = cut(shipped(CALIBRATION), opened.model.tokenizer, WINDOW_TOKENS, most=1, skip=2).window(0)
        probe = _Probe(opened.evaluator, tokens)
        with stop_on_interrupt(flag):
            found = _measure_groups(members, probe, noise, task.update)
    seen = [value for value in found.values() if value > 0]
    return Sensitivity(found, layers, sum(seen) / len(seen) if seen else 1.0)


def _measure_groups(
    members: Mapping[str, list[str]], probe: _Probe, noise: _Noise, tell: Callable[[int], None]
) -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        probe.keep_base()
        tell(0)
        for done, group in enumerate(members):
            tensors = noise.begin(group)
            divergence = probe.divergence()
            if tensors:
                found[group] = divergence / _NOISE / len(tensors)
            tell(done + 1)
    except AbortedError:
        raise UserInterruptError from None
    return found


class _Noise:
    """Changes the weights of one group of tensors, as far as their products can tell."""

    def __init__(self, layers: int, errors: TensorErrors) -> None:
        self._layers, self._group, self._seen = layers, "", set[str]()
        self._power, self._scale = functools.cache(errors.column_power), functools.cache(self._row_scale)
        self._errors = errors
        self.watcher = Watcher(self._wants, self._add)

    def begin(self, group: str) -> set[str]:
        """Disturb this group from now on; what it returns fills with the tensors that were."""
        self._group, self._seen = group, set()
        return self._seen

    def _wants(self, weight: str) -> bool:
        return bool(self._group) and group_of(weight, self._layers) == self._group

    def _add(self, product: Product) -> bool:
        self._seen.add(product.weight)
        spread = np.sqrt(self._power(product.weight) * np.float32(_NOISE))
        rng = np.random.default_rng(zlib.crc32(product.weight.encode("utf-8", "surrogateescape")))
        source, values = _array(product.input) * spread, _array(product.output)
        if product.ids:  # each token has experts of its own: near enough a change of its own
            power = np.sqrt(np.square(source).sum(axis=-1))[..., None]
            values += power * rng.standard_normal(values.shape, dtype=np.float32)
            return True
        scale = self._scale(product.weight)
        for start in range(0, values.shape[-1], _ROWS_AT_ONCE):
            part = values[..., start : start + _ROWS_AT_ONCE]
            change = source @ rng.standard_normal((source.shape[-1], part.shape[-1]), dtype=np.float32)
            part += change if scale is None else change * scale[start : start + _ROWS_AT_ONCE]
        return True

    def _row_scale(self, weight: str) -> Floats | None:
        """Of the output: its rows are the tokens, those of rare ones much larger or smaller, and errors with them."""
        if _LAYER.fullmatch(weight):
            return None
        power = self._errors.row_power(weight)
        scale: Floats = np.sqrt(power / power.mean()).astype(np.float32)
        return scale


def _array(operand: Operand) -> Floats:
    return np.ndarray(operand.shape[::-1], np.float32, operand.memory(), 0, operand.strides_bytes[::-1])


class _Probe:
    """One window of text that is read again and again."""

    def __init__(self, evaluator: Evaluator, tokens: list[int]) -> None:
        self._evaluator, self._tokens = evaluator, tokens
        self._scorer = Scorer(evaluator.model.tokenizer.n_vocab)
        self._base: list[BaseScores] = []

    def keep_base(self) -> None:
        """Read it undisturbed."""
        self._base = [self._scorer.encode(logits, following) for logits, following in self._read()]

    def divergence(self) -> float:
        """Read it, and return the mean divergence from the undisturbed answers."""
        pairs = zip(self._read(), self._base, strict=True)
        return float(np.concatenate([self._scorer.score(*read, base).kld for read, base in pairs]).mean())

    def _read(self) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
        evaluator, tokens = self._evaluator, self._tokens
        n_vocab = evaluator.model.tokenizer.n_vocab
        evaluator.clear()
        evaluator.decode(tokens[:_CONTEXT_TOKENS], 0, wanted=0)
        for start, end in pieces(len(tokens) - 1 - _CONTEXT_TOKENS, evaluator.n_piece):
            first, last = _CONTEXT_TOKENS + start, _CONTEXT_TOKENS + end
            evaluator.decode(tokens[first:last], first, wanted=last - first)
            yield rows(evaluator.logits(), n_vocab), np.array(tokens[first + 1 : last + 1], np.int64)
