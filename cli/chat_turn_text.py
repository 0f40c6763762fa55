"""What a person typed and what is meant by it: a block of several lines stands in three quotes."""

from __future__ import annotations

PROMPT, PROMPT_BELOW = "> ", ". "
_QUOTES = '"""'


def block_is_open(text: str) -> bool:
    """Whether the text is a block in three quotes that does not end yet."""
    begun = text.lstrip()
    return begun.startswith(_QUOTES) and _QUOTES not in begun[len(_QUOTES) :]


def unquoted(text: str) -> str:
    """What is meant: a block without its quotes, anything else as it is."""
    bare = text.strip()
    if len(bare) >= 2 * len(_QUOTES) and bare.startswith(_QUOTES) and bare.endswith(_QUOTES):
        return bare[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text
