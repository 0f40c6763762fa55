"""Is it worth it? Restoring against computing again, saving against skipping, from rates measured per fingerprint.

An unmeasured rate never forbids anything: the first runs measure. Rates are blended with what was known, half and
half, so one run on a busy machine neither decides nor is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from llmcli.base.records import dataclass
from llmcli.cache_store.keys import Scalar

LOOKUP_S = 0.005  # look-up and libllama's bookkeeping, paid whatever the length
_NEW_SHARE = 0.5
_PREFIX = "rate_"


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured speeds; None where nothing was measured yet.

    prefill_tok_s      tokens computed per second
    restore_bytes_s    bytes read, verified and handed to the engine per second
    save_bytes_s       bytes exported and written per second
    """

    prefill_tok_s: float | None = None
    restore_bytes_s: float | None = None
    save_bytes_s: float | None = None

    @classmethod
    def from_notes(cls, notes: Mapping[str, Scalar]) -> Rates:
        """The rates among a fingerprint's notes; whatever is not a positive number counts as unmeasured."""
        return cls(*(_positive(notes.get(_PREFIX + name)) for name in cls.__slots__))

    def as_notes(self) -> dict[str, Scalar]:
        """The measured rates by the names under which `from_notes` finds them."""
        return {_PREFIX + name: value for name, value in asdict(self).items() if value is not None}

    def blended(self, new: Rates) -> Rates:
        """These rates moved towards newly measured ones."""
        old = asdict(self)
        return Rates(**{name: _blend(old[name], value) for name, value in asdict(new).items()})

    def saved_s(self, tokens: int, nbytes: int) -> float | None:
        """Seconds won by restoring `tokens` (`nbytes` to read); negative where it costs. None: not measured."""
        if self.prefill_tok_s is None or self.restore_bytes_s is None:
            return None
        return tokens / self.prefill_tok_s - nbytes / self.restore_bytes_s - LOOKUP_S

    def worth_restoring(self, tokens: int, nbytes: int) -> bool:
        """Whether a restore is expected to beat computing the tokens again."""
        saved_s = self.saved_s(tokens, nbytes)
        return saved_s is None or saved_s > 0

    def worth_saving(self, tokens: int, nbytes: int) -> bool:
        """Whether to keep a block: it must be worth restoring, and quicker to write than it was to compute."""
        saved_s = self.saved_s(tokens, nbytes)
        if saved_s is not None and saved_s + LOOKUP_S <= 0:  # the look-up is paid once for a chain, not per block
            return False
        if self.prefill_tok_s is None or self.save_bytes_s is None:
            return True
        return nbytes / self.save_bytes_s <= tokens / self.prefill_tok_s


def _positive(value: Scalar) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _blend(old: float | None, new: float | None) -> float | None:
    if old is None or new is None:
        return old if new is None else new
    return old * (1 - _NEW_SHARE) + new * _NEW_SHARE
