r"""What a saved prefix was made of, kept beside its KV in the store, so that a prompt can begin with it again.

Token ids alone do not tell how to go on: the last token of "…end.\n\n" is another one when a word follows, and the
text behind the question is the template's. So the parts themselves are kept, and `run --prefix NAME` builds its prompt
from them exactly as `run -sys … -f …` would, with the date of that day for templates that print one. The tokens are
then the same by construction, and so is what the store finds for them. The recipe travels with an exported prefix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from llmcli.base.errors import LlmcliError
from llmcli.engine.chat_template import ChatTemplate
from llmcli.engine.prompt import BuiltPrompt, PromptPart, PromptRequest
from llmcli.engine.tokenizer import Tokenizer

RECIPE_PART = "recipe"
_VERSION = 1
_KINDS = ("file", "stdin", "argument")
# Beginnings of questions that a tokenizer treats differently: a letter, a digit, a line, a space and a bracket.
_PROBES = ("a", "1", "\n#", " (")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The beginning of a prompt.

    template   name and source of the template that was asked for; None: the model's own
    made_at    the local time that the template was given
    text       how the tokens of the prefix read, for people
    """

    parts: tuple[PromptPart, ...]
    system: str | None
    raw: bool
    template: tuple[str, str] | None
    made_at: datetime
    text: str = ""

    def to_bytes(self) -> bytes:
        """As it is stored."""
        fields = {
            "version": _VERSION,
            "parts": [[part.kind, part.name, part.text] for part in self.parts],
            "system": self.system,
            "raw": self.raw,
            "template": self.template,
            "made_at": self.made_at.isoformat(),
            "text": self.text,
        }
        return json.dumps(fields).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Recipe:
        """What was stored. Raises LlmcliError where it is something else: an imported file can hold anything."""
        try:
            fields = json.loads(data)
            if fields["version"] != _VERSION:
                raise ValueError
            template = fields["template"]
            return cls(
                parts=tuple(_part(*part) for part in fields["parts"]),
                system=_optional_text(fields["system"]),
                raw=fields["raw"] is True,
                template=None if template is None else (_text(template[0]), _text(template[1])),
                made_at=datetime.fromisoformat(_text(fields["made_at"])),
                text=_text(fields["text"]),
            )
        except (ValueError, TypeError, LookupError, RecursionError):
            raise LlmcliError(
                "the stored prefix does not say what it was made of, or not in a way known here"
            ) from None

    def makes_the_same(self, other: Recipe) -> bool:
        """Whether prompts that begin with either are the same."""
        return replace(self, made_at=other.made_at) == other

    def pin_clock(self, template: ChatTemplate) -> None:
        """Let `template` print the date that it printed then."""
        template.clock = lambda: self.made_at


@dataclass(frozen=True, slots=True)
class StablePrefix:
    """The token ids that every prompt with this beginning starts with; `boundaries` as of BuiltPrompt."""

    ids: tuple[int, ...]
    boundaries: tuple[int, ...]
    text: str
    notes: tuple[str, ...]


def stable_prefix(
    recipe: Recipe,
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    build: Callable[[PromptRequest], BuiltPrompt],
) -> StablePrefix:
    """What the prompts have in common that go on with different questions. Raises what `build` raises.

    The last characters of the parts may become other tokens when something follows: those are left out.
    """
    built = [
        build(PromptRequest((*recipe.parts, PromptPart("argument", "prompt", probe)), recipe.system, template))
        for probe in _PROBES
    ]
    ids = built[0].ids
    for other in built[1:]:
        ids = ids[: common_length(ids, other.ids)]
    boundaries = tuple(position for position in built[0].boundaries(tokenizer) if position <= len(ids))
    return StablePrefix(ids, boundaries, text_of(ids, tokenizer), built[0].notes)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences share from their start."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other)))


def text_of(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """How tokens read, control tokens included; ids that the vocabulary lacks are passed over."""
    known = (token for token in ids if 0 <= token < tokenizer.n_vocab)
    return b"".join(tokenizer.piece(token, special=True) for token in known).decode("utf-8", "replace")


def _part(kind: object, name: object, text: object) -> PromptPart:
    if kind not in _KINDS:
        raise ValueError
    return PromptPart(kind, _text(name), _text(text))  # type: ignore[arg-type]  # one of PartKind, as was just seen


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)
