"""Chat templates for models that bring none, by the name of the format. Written from the formats' descriptions.

`bos_token` is printed where a format begins with it; whoever tokenizes makes sure that there is exactly one.
"""

from __future__ import annotations

import os
from pathlib import Path

from llmcli.base.errors import UsageError
from llmcli.base.text import decode_utf8, printable

_MOST_FILE_BYTES = 1 << 20

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\\n' if add_generation_prompt }}"""

_LLAMA_2 = """\
{%- set system = messages[0].content if messages and messages[0].role == 'system' -%}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'user' -%}
{{ bos_token + '[INST] ' }}
{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first and system -}}
{{ message.content + ' [/INST]' }}
{%- else -%}
{{ ' ' + message.content + ' ' + eos_token }}
{%- endif -%}
{%- endfor -%}"""

_LLAMA_3 = """\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' if add_generation_prompt }}"""

_GEMMA = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' + role + '\\n' + message.content | trim + '<end_of_turn>\\n' }}
{%- endfor -%}
{{ '<start_of_turn>model\\n' if add_generation_prompt }}"""

_MISTRAL = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{ '[INST] ' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' -%}
{{ ' ' + message.content + eos_token }}
{%- else -%}
{{ raise_exception('Only user and assistant roles are supported') }}
{%- endif -%}
{%- endfor -%}"""

_MISTRAL_V7_TEKKEN = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'user' -%}
{{ '[INST]' + message.content + '[/INST]' }}
{%- else -%}
{{ message.content + eos_token }}
{%- endif -%}
{%- endfor -%}"""

_PHI_3 = """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}
{%- endfor -%}
{{ '<|assistant|>\\n' if add_generation_prompt }}"""

_PHI_4 = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}
{%- endfor -%}
{{ '<|im_start|>assistant<|im_sep|>' if add_generation_prompt }}"""

_ZEPHYR = """\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\\n' + message.content + eos_token + '\\n' }}
{%- endfor -%}
{{ '<|assistant|>\\n' if add_generation_prompt }}"""

_VICUNA = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ message.content + '\\n\\n' }}
{%- elif message.role == 'user' -%}
{{ 'USER: ' + message.content + '\\n' }}
{%- else -%}
{{ 'ASSISTANT: ' + message.content + eos_token + '\\n' }}
{%- endif -%}
{%- endfor -%}
{{ 'ASSISTANT:' if add_generation_prompt }}"""

_ALPACA = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ message.content + '\\n\\n' }}
{%- elif message.role == 'user' -%}
{{ '### Instruction:\\n' + message.content + '\\n\\n' }}
{%- else -%}
{{ '### Response:\\n' + message.content + eos_token + '\\n\\n' }}
{%- endif -%}
{%- endfor -%}
{{ '### Response:\\n' if add_generation_prompt }}"""

_DEEPSEEK = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' -%}
{{ '<｜Assistant｜>' + message.content + '<｜end▁of▁sentence｜>' }}
{%- else -%}
{{ message.content }}
{%- endif -%}
{%- endfor -%}
{{ '<｜Assistant｜>' if add_generation_prompt }}"""

_COMMAND_R = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'CHATBOT' if message.role == 'assistant' else message.role | upper -%}
{{ '<|START_OF_TURN_TOKEN|><|' + role + '_TOKEN|>' + message.content | trim + '<|END_OF_TURN_TOKEN|>' }}
{%- endfor -%}
{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' if add_generation_prompt }}"""

_GRANITE = """\
{%- for message in messages -%}
{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + '<|end_of_text|>\\n' }}
{%- endfor -%}
{{ '<|start_of_role|>assistant<|end_of_role|>' if add_generation_prompt }}"""

PRESETS: dict[str, str] = {
    "alpaca": _ALPACA,
    "chatml": _CHATML,
    "command-r": _COMMAND_R,
    "deepseek": _DEEPSEEK,
    "gemma": _GEMMA,
    "granite": _GRANITE,
    "llama-2": _LLAMA_2,
    "llama-3": _LLAMA_3,
    "mistral": _MISTRAL,
    "mistral-v7-tekken": _MISTRAL_V7_TEKKEN,
    "phi-3": _PHI_3,
    "phi-4": _PHI_4,
    "vicuna": _VICUNA,
    "zephyr": _ZEPHYR,
}
# What models without a template most often were trained on or cope with.
FALLBACK = "chatml"


def load_template(wanted: str) -> tuple[str, str]:
    """Source and name of a template: a preset's name, or else a file. Raises UsageError where it is neither."""
    if source := PRESETS.get(wanted.lower()):
        return source, wanted.lower()
    path = Path(os.path.expanduser(wanted))  # Path.expanduser fails where `~name` is nobody's
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a file name"
        raise UsageError(
            f"{printable(wanted)} is neither a known template nor a file that can be read ({reason})",
            hint=f"known templates: {', '.join(PRESETS)}",
        ) from None
    if len(data) > _MOST_FILE_BYTES:
        raise UsageError(f"{printable(wanted)} is larger than a template can be")
    return decode_utf8(data).text, wanted
