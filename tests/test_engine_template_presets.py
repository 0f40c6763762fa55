"""Each preset gives the text its format is described with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmcli.base.errors import UsageError
from llmcli.engine.chat_template import FALLBACK, PRESETS, ChatTemplate, Message, load_template, prepare

CHAT = [Message("system", "S"), Message("user", "q"), Message("assistant", "a"), Message("user", "r")]

TEXTS = {
    "alpaca": "<s>S\n\n### Instruction:\nq\n\n### Response:\na</s>\n\n### Instruction:\nr\n\n### Response:\n",
    "chatml": (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
    ),
    "command-r": (
        "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>S<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>q<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>a<|END_OF_TURN_TOKEN|>"
        "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>r<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"
    ),
    "deepseek": "<s>S<｜User｜>q<｜Assistant｜>a<｜end▁of▁sentence｜><｜User｜>r<｜Assistant｜>",
    "gemma": (
        "<s><start_of_turn>user\nS\n\nq<end_of_turn>\n<start_of_turn>model\na<end_of_turn>\n"
        "<start_of_turn>user\nr<end_of_turn>\n<start_of_turn>model\n"
    ),
    "granite": (
        "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n<|start_of_role|>user<|end_of_role|>q<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>a<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>r<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"
    ),
    "llama-2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nq [/INST] a </s><s>[INST] r [/INST]",
    "llama-3": (
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nr<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral": "<s>[INST] S\n\nq[/INST] a</s>[INST] r[/INST]",
    "mistral-v7-tekken": "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]q[/INST]a</s>[INST]r[/INST]",
    "phi-3": "<|system|>\nS<|end|>\n<|user|>\nq<|end|>\n<|assistant|>\na<|end|>\n<|user|>\nr<|end|>\n<|assistant|>\n",
    "phi-4": (
        "<|im_start|>system<|im_sep|>S<|im_end|><|im_start|>user<|im_sep|>q<|im_end|>"
        "<|im_start|>assistant<|im_sep|>a<|im_end|><|im_start|>user<|im_sep|>r<|im_end|><|im_start|>assistant<|im_sep|>"
    ),
    "vicuna": "<s>S\n\nUSER: q\nASSISTANT: a</s>\nUSER: r\nASSISTANT:",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nq</s>\n<|assistant|>\na</s>\n<|user|>\nr</s>\n<|assistant|>\n",
}


@pytest.mark.parametrize("name", PRESETS)
def test_text_of_a_preset(name: str) -> None:
    template = ChatTemplate(PRESETS[name], bos_text="<s>", eos_text="</s>", name=name)
    assert prepare(template, CHAT, []).text == TEXTS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_one_question_without_a_system_prompt(name: str) -> None:
    template = ChatTemplate(PRESETS[name], bos_text="<s>", eos_text="</s>", name=name)
    prompt = prepare(template, [Message("user", "q")], [])
    assert not prompt.system_merged
    assert "q" in prompt.text
    assert not re.search(r"(?i:system)|\bS\b|<<SYS", prompt.text)


def test_the_fallback_is_a_preset() -> None:
    assert FALLBACK in PRESETS


def test_load_by_name_in_any_case() -> None:
    assert load_template("ChatML") == (PRESETS["chatml"], "chatml")


def test_load_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_bytes(b"\xef\xbb\xbf{{ 'h\xc3\xa9' }}")
    assert load_template(str(path)) == ("{{ 'hé' }}", str(path))


@pytest.mark.parametrize("wanted", ["no-such", "", "a\0b", "line\nbreak"])
def test_neither_a_name_nor_a_file(wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_template(wanted)
    assert "neither a known template nor a file" in caught.value.message
    assert "\n" not in caught.value.message
    assert "chatml" in (caught.value.hint or "")


def test_a_folder_is_not_a_template(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither"):
        load_template(str(tmp_path))


def test_a_model_given_as_a_template(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" * 300_000)
    with pytest.raises(UsageError, match="larger than a template can be"):
        load_template(str(path))
