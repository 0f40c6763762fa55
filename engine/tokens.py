"""A text taken apart into tokens, for people: ids, pieces, marks. Loads the vocabulary of a model, not its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmcli.base.settings import Settings
from llmcli.engine.engine import Reporter, find_model
from llmcli.engine.model import Model
from llmcli.engine.prompt import PromptPart, joined_text


@dataclass(frozen=True, slots=True)
class Piece:
    """One token: its id, its text (bytes that are no whole character shown as <0xNN>), whether it is special."""

    id: int
    text: str
    special: bool


@dataclass(frozen=True, slots=True)
class Tokens:
    """A tokenized text."""

    model: str
    content_id: str
    pieces: tuple[Piece, ...]

    def as_json(self) -> dict[str, Any]:
        """The account with the names of docs/commands/tokenize.md."""
        return {
            "model": {"name": self.model, "content_id": self.content_id},
            "n_tokens": len(self.pieces),
            "tokens": [{"id": p.id, "piece": p.text, "special": p.special} for p in self.pieces],
        }


def tokenize_text(
    parts: Sequence[PromptPart],
    reference: str | None,
    settings: Settings,
    reporter: Reporter,
    *,
    with_bos: bool = True,
    parse_special: bool = True,
) -> Tokens:
    """Tokenize the joined parts with the model's vocabulary. Raises ModelError as opening a model does."""
    resolved, inspected = find_model(reference, settings, reporter)
    with Model.load_vocabulary(inspected.path) as model:
        tokenizer = model.tokenizer
        ids = tokenizer.tokenize(joined_text(parts, raw=True), parse_special=parse_special)
        if with_bos:
            ids = tokenizer.with_bos(ids)
        pieces = tuple(Piece(i, _text(tokenizer.piece(i, special=True)), tokenizer.is_special(i)) for i in ids)
    return Tokens(resolved.name, inspected.content_id, pieces)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in data)
