"""An adapter as the user names it. By itself, since every command's options know the type and few load a model."""

from __future__ import annotations

from pathlib import Path

from llmcli.base.records import dataclass


@dataclass(frozen=True, slots=True)
class Lora:
    """A low-rank adapter file and the factor it is applied with."""

    path: Path
    scale: float = 1.0
