"""What `show` and `doctor` say of a model whose tensor types are slow on this CPU, as far as that was measured here."""

from __future__ import annotations

from collections.abc import Iterable

from llmcli.base.errors import LlmcliError
from llmcli.base.settings import Settings
from llmcli.base.text import printable
from llmcli.engine.diagnose import Check
from llmcli.hardware.cores import read_cores
from llmcli.models.description import TypeShare


def slow_types(types: Iterable[TypeShare], settings: Settings) -> str | None:
    """One sentence with what to do; None where all is well, or where `llmcli quantize` has measured nothing yet."""
    from llmcli.quant.rates import slow_advice

    weights = {share.name: share.n_params for share in types}
    try:
        return slow_advice(weights, settings, read_cores().usable)
    except (LlmcliError, OSError):  # an engine that is missing or broken: others say so
        return None


def check_types(path: str | None, settings: Settings) -> list[Check]:
    """The line of `doctor` on the model that is run by default."""
    from llmcli.models.described import describe_reference

    if path is None:
        return []
    try:
        types = describe_reference(path, settings, revision=None, notify=lambda _: None).description.types
    except (LlmcliError, OSError):  # the line on the default model says so
        return []
    advice = slow_types(types, settings)
    return (
        [Check("speed", "warn", f"{printable(path)}: {advice}", "llmcli quantize --for-this-machine")] if advice else []
    )
