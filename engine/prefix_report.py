"""What the user allows the prefix store to do, and what it did: the two ends of a run, without the store between them.

Kept apart from `prefix`, so that a run that does not use the store does not load it.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llmcli.base.records import dataclass
from llmcli.base.settings import Settings
from llmcli.base.units import format_seconds
from llmcli.cache_store.policy import Policy

if TYPE_CHECKING:
    from llmcli.cache_store.reasons import MissReason

CacheMode = Literal["auto", "max", "readonly", "off"]
_FOLDER = "prefixes"
# Under every fingerprint: what its model is called, and where it was last, for lists and to find it again.
MODEL_NAME_NOTE, MODEL_PATH_NOTE = "model_name", "model_path"


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """What the user allows the store to do.

    mode      auto: restores end on the exact grid, answers equal a cold run's; max: reuse to the last token; readonly:
              nothing is saved; off
    folder    None: `prefixes` in the cache folder
    """

    mode: CacheMode = "auto"
    folder: Path | None = None
    policy: Policy = field(default_factory=Policy)
    salt: str = ""


@dataclass(slots=True)
class CacheReport:
    """What the store did for one prompt; the `cache` object of --json."""

    mode: str
    source: str | None = None
    restored_tokens: int = 0
    restore_s: float = 0.0
    saved_s: float | None = None
    read_bytes: int = 0
    written_bytes: int = 0
    miss_reason: str | None = None
    miss_detail: str = ""
    first_difference: dict[str, Any] | None = None

    @classmethod
    def too_short(cls, mode: str, tokens: int, min_tokens: int) -> CacheReport:
        """Of a prompt for which the store is not even opened."""
        from llmcli.cache_store.reasons import MissReason, too_short

        report = cls(mode)
        report.miss(MissReason.TOO_SHORT, too_short(tokens, min_tokens))
        return report

    def miss(self, reason: MissReason, detail: str = "") -> None:
        """Nothing is restored, for this reason; a later `hit` takes it back."""
        self.miss_reason, self.miss_detail = str(reason), detail

    def hit(self, tokens: int, taken_s: float) -> None:
        """So many tokens were restored."""
        self.source, self.restored_tokens, self.restore_s = "disk", tokens, taken_s
        self.miss_reason, self.miss_detail = None, ""

    def as_line(self, prompt_tokens: int) -> str:
        """The account for people, in one clause."""
        if self.restored_tokens:
            won = f", {format_seconds(self.saved_s)} saved" if self.saved_s and self.saved_s > 0 else ""
            return f"{self.restored_tokens:,} of {prompt_tokens:,} tokens restored from {self.source}{won}"
        reason = (self.miss_reason or "off").replace("_", " ")
        return f"nothing restored ({reason}{': ' + self.miss_detail if self.miss_detail else ''})"

    def as_json(self) -> dict[str, Any]:
        """The object, with the names of docs/commands/run.md."""
        return {
            "mode": self.mode,
            "source": self.source,
            "saved_s": self.saved_s,
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "miss_reason": self.miss_reason,
            "miss_detail": self.miss_detail or None,
            "first_difference": self.first_difference,
        }


def store_folder(options: CacheOptions, settings: Settings) -> Path:
    """Where the store is."""
    return options.folder or settings.cache_dir / _FOLDER
