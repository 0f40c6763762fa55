"""The filters of chat templates give what Jinja's and transformers' give."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcli.base.errors import ModelError
from llmcli.engine.template import ChatTemplate, Message


def render(source: str, **extra: Any) -> str:
    template = ChatTemplate(source, bos_text="", eos_text="", name="t")
    return template.render([Message("user", "trial-user-7f3a")], extra=extra)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("{'a': '<é>', 'b': [1, none]} | tojson", '{"a": "<é>", "b": [1, null]}'),
        ("{'b': 'é', 'a': 1} | tojson(indent=2, sort_keys=true)", '{\n  "a": 1,\n  "b": "é"\n}'),
        ("'é' | tojson(ensure_ascii=true)", '"\\u00e9"'),
        ("[1, 2] | tojson(separators=(',', ':'))", "[1,2]"),
        ("['<', 'b'] | map('upper') | join('+')", "<+B"),
        ("[{'a': 1}] | join(attribute='a')", "1"),
        ("'x<' | safe ~ '<'", "x<<"),
        ("'<' | e ~ ('&' | escape)", "&lt;&amp;"),
        ("'%d-%s' | format(3, 'x')", "3-x"),
        ("'%(x)s' | format(x=1)", "1"),
        ("'x' | center(5) ~ '|'", "  x  |"),
        ("' x ' | trim ~ ('xax' | trim('x'))", "xa"),
        ("'a\nb' | indent(2)", "a\n  b"),
        ("'a\nb' | indent('>', first=true)", ">a\n>b"),
        ("[1, 2, 3] | batch(2, 0) | list", "[[1, 2], [3, 0]]"),
        ("[1, 2, 3] | slice(2) | list", "[[1, 2], [3]]"),
        ("[1, 2] | sum", "3"),
        ("[{'a': 1}, {'a': 2}] | sum(attribute='a', start=4)", "7"),
        ("2.567 | round(1) ~ ' ' ~ (2.1 | round(method='ceil'))", "2.6 3.0"),
        ("'12' | int + ('0x1f' | int(base=16)) + ('x' | int(7))", "50"),
        ("'aXa' | replace('a', 'b', 1)", "bXa"),
        ("[{'a': 1}, {'a': 2}] | selectattr('a', 'gt', 1) | map(attribute='a') | list", "[2]"),
        ("[3, 1] | sort | first ~ ([1, 2] | last) ~ ([1, 1] | unique | list)", "12[1]"),
        ("[{'k': 1, 'v': 2}] | groupby('k') | map(attribute='list') | list", "[[{'k': 1, 'v': 2}]]"),
        ("none | default('d') ~ (missing | default('e')) ~ ('' | d('f', true))", "Noneef"),
        ("'ab' | list | reverse | list | length", "2"),
        ("(1, 2) | string ~ ('x' | upper)", "(1, 2)X"),
        ("range(3) | map('string') | list", "['0', '1', '2']"),
    ],
)
def test_what_filters_give(expression: str, text: str) -> None:
    assert render("{{ " + expression + " }}") == text


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(plain, st.booleans(), st.sampled_from([None, 0, 3]))
def test_tojson_is_that_of_python(value: Any, ascii_only: bool, indent: int | None) -> None:
    source = "{{ value | tojson(ensure_ascii=ascii_only, indent=indent) }}"
    expected = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert render(source, value=value, ascii_only=ascii_only, indent=indent) == expected


@pytest.mark.parametrize("name", ["urlize", "striptags", "xmlattr", "pprint", "random", "wordwrap", "urlencode"])
def test_filters_for_web_pages_are_not_there(name: str) -> None:
    with pytest.raises(ModelError, match=f"No filter named '{name}'"):
        render("{{ 'x' | " + name + " }}")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("[[1]] | sum(start=[])", "adds up numbers only"),
        ("nothing | tojson", "Undefined is not JSON serializable"),
        ("1 | length", "has no len"),
    ],
)
def test_wrong_use_is_a_failure_of_the_template(expression: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        render("{{ " + expression + " }}")
