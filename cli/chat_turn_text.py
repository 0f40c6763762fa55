"""What a person typed and what is meant by it: a block of several lines stands in three quotes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

PROMPT, PROMPT_BELOW = "> ", ". "
_QUOTES = '"""'


def block_is_open(text: str) -> bool:
    """Whether the text is a block in three quotes that does not end yet."""
    begun = text.lstrip()
    return begun.startswith(_QUOTES) and _QUOTES not in begun[len(_QUOTES) :]


def given_back(waiting: Sequence[str], draft: str, is_command: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """What goes back into the line of turns that are not to be sent, and the commands that cannot go with it.

    draft   what stands in the line, "" where nothing does
    One turn alone goes back as it was typed. Of several, the messages become one message; a command among them would be
    a part of it, and words for the model.
    """
    texts = [*waiting, *([draft] if draft else [])]
    if len(texts) <= 1:
        return "".join(texts), ()
    meant = [unquoted(text) for text in texts]
    messages = [text for text in meant if not is_command(text.strip())]
    if messages:
        return "\n".join(messages), tuple(text.strip() for text in meant if is_command(text.strip()))
    return draft, tuple(text.strip() for text in waiting)


def unquoted(text: str) -> str:
    """What is meant: a block without its quotes, anything else as it is."""
    bare = text.strip()
    if len(bare) >= 2 * len(_QUOTES) and bare.startswith(_QUOTES) and bare.endswith(_QUOTES):
        return bare[len(_QUOTES) : -len(_QUOTES)].strip("\n")
    return text
