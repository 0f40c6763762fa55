"""/set: how tokens are chosen, changed between two turns, under the names and within the ranges of the options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click

from llmcli.base.errors import UsageError
from llmcli.base.text import printable
from llmcli.cli.params import Real, Whole
from llmcli.engine.conversation import Conversation
from llmcli.engine.sampling import concrete_seed


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of Sampling; "" is the most tokens of an answer."""

    field: str
    type: click.ParamType[Any]


SETTINGS: dict[str, Setting] = {
    "temp": Setting("temp", Real(least=0)),
    "top-k": Setting("top_k", Whole(0)),
    "top-p": Setting("top_p", Real(0, 1)),
    "min-p": Setting("min_p", Real(0, 1)),
    "top-nsigma": Setting("top_n_sigma", Real()),
    "typical": Setting("typical_p", Real(0, 1)),
    "repeat-penalty": Setting("repeat_penalty", Real(least=1e-6)),
    "repeat-last-n": Setting("repeat_last_n", Whole(-1)),
    "presence-penalty": Setting("presence_penalty", Real()),
    "frequency-penalty": Setting("frequency_penalty", Real()),
    "dry-multiplier": Setting("dry_multiplier", Real(least=0)),
    "xtc-probability": Setting("xtc_probability", Real(0, 1)),
    "mirostat": Setting("mirostat", Whole(0, 2)),
    "seed": Setting("seed", Whole(-1, 0xFFFFFFFE)),
    "predict": Setting("", Whole(-1)),
}


def change(conversation: Conversation, argument: str) -> str:
    """Set `NAME VALUE`; the line that says so. Raises UsageError."""
    name, _, text = argument.replace("=", " ").partition(" ")
    name = name.lower().lstrip("-").replace("_", "-")
    setting = SETTINGS.get(name)
    if setting is None:
        raise UsageError(f"there is no setting {printable(name)}", hint=", ".join(SETTINGS))
    if not text.strip():
        return f"{name} is {_value(conversation, name)}"
    value = _parsed(setting, name, text.strip())
    if not setting.field:
        conversation.max_tokens = None if value == -1 else value
    elif name == "seed":
        conversation.sampling = replace(conversation.sampling, seed=concrete_seed(None if value == -1 else value))
    else:
        conversation.sampling = replace(conversation.sampling, **{setting.field: value})
    return f"{name} is {_value(conversation, name)}"


def _parsed(setting: Setting, name: str, text: str) -> Any:
    try:
        return setting.type.convert(text, None, None)
    except click.BadParameter as error:
        raise UsageError(f"{name}: {error.message}") from None


def setting_lines(conversation: Conversation) -> tuple[str, ...]:
    """Every setting with its value."""
    width = max(map(len, SETTINGS))
    return tuple(f"  {name:<{width}}  {_value(conversation, name)}" for name in SETTINGS)


def _value(conversation: Conversation, name: str) -> str:
    field = SETTINGS[name].field
    if field:
        return f"{getattr(conversation.sampling, field):g}" if field != "seed" else str(conversation.sampling.seed)
    return "-1" if conversation.max_tokens is None else str(conversation.max_tokens)
