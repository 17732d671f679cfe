"""Arguments and tools are read strictly, written in one way, and what is wrong is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds4tui.chat.messages import Tool, ToolCall
from ds4tui.chat.tools import canonical_arguments, order_free, tool_of
from ds4tui.errors import RequestError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(arguments=st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_text_and_object_in_any_layout_are_one(arguments: dict[str, Any]) -> None:
    wanted = canonical_arguments(arguments)
    assert json.loads(wanted) == arguments and list(json.loads(wanted)) == list(arguments)
    for text in (json.dumps(arguments, indent=3), json.dumps(arguments, ensure_ascii=False)):
        assert canonical_arguments(f" {text}\n") == wanted
    assert canonical_arguments(wanted) == wanted


@pytest.mark.parametrize("nothing", [None, "", " \n", {}, "{}"])
def test_no_arguments(nothing: Any) -> None:
    assert canonical_arguments(nothing) == "{}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{'a': 1}", "not JSON: .*'a'"),
        ('{"a": ', "not JSON"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ('{"a": 1e999}', "no JSON"),
        ("[1]", "must be an object"),
        ([], "must be an object"),
        (0, "must be an object"),
        ('"text"', "must be an object"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "nested too deeply"),
        ('{"a": ' + "[" * 100_000, "not JSON.*nested too deeply|not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_what_is_wrong_is_named(arguments: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        canonical_arguments(arguments, "messages.3")
    assert caught.value.param == "messages.3" and len(caught.value.message) < 300


def test_lone_surrogates_become_characters() -> None:
    assert canonical_arguments('{"a": "\\ud800"}') == '{"a": "\ufffd"}'


def test_a_tool_in_openai_form() -> None:
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    assert tool_of({"type": "function", "function": function}) == Tool(
        "f", "d", '{"type": "object", "properties": {"é": {"type": "string"}}}'
    )
    bare = tool_of({"function": {"name": "f", "description": None}})
    assert bare == Tool("f", "", '{"type": "object", "properties": {}}')


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"type": "web_search"}, "must be a function, not 'web_search'"),
        ({"type": "function"}, "function must be an object"),
        ({"function": {"name": ""}}, "must have a name"),
        ({"function": {"name": 3}}, "must have a name"),
        ({"function": {"name": "f", "description": 3}}, "description of 'f' must be a string"),
        ({"type": "function", "name": "f", "parameters": {}}, "go inside it"),
        ({}, "go inside it"),
        ({"function": {"name": "f", "parameters": "x"}}, "'f' must be a JSON Schema"),
        ({"function": {"name": "f", "parameters": {"a": float("nan")}}}, "'f' are no JSON"),
        ({"function": {"name": "f", "parameters": {"a": {1}}}}, "'f' are no JSON"),
    ],
)
def test_what_is_no_tool_is_named(value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        tool_of(value, "tools.0")
    assert caught.value.param == "tools.0"


def test_order_free() -> None:
    one = ToolCall("1", "f", '{"a": 1, "b": {"c": 2, "d": 3}}')
    other = ToolCall("2", "f", '{"b":{"d":3,"c":2},"a":1}')
    assert order_free(one) == order_free(other)
    assert order_free(one) != order_free(ToolCall("1", "f", '{"a": 1, "b": {"c": 3, "d": 2}}'))
    assert order_free(ToolCall("1", "f", "no JSON")) == "f no JSON"


def test_order_free_leaves_out_what_a_client_adds_to_a_call() -> None:
    """Claude Code sends `replace_all: false` back with edits that did not say it."""
    said = ToolCall("1", "edit", '{"old": "a"}')
    assert order_free(ToolCall("1", "edit", '{"all": false, "old": "a", "n": null}')) == (
        order_free(said)
    )
    for other in ('{"all": true, "old": "a"}', '{"old": ""}', '{"old": "a", "n": 0}'):
        assert order_free(ToolCall("1", "edit", other)) != order_free(said)
