"""Whatever a model wants to say, what a family's grammar lets through is read as calls of the tools
that were offered, with arguments of their schemas."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat import call_grammars
from ds4tui.chat.call_grammars import Family
from ds4tui.chat.forms import Forms
from ds4tui.chat.grammars import ToolChoice, reply_grammar
from ds4tui.chat.messages import Tool
from ds4tui.chat.thinking import THINK, ReasoningPiece, ThinkingMarks, ThinkingParser, marks_in
from ds4tui.chat.toolcalls import SYNTAXES, CallEnded, CallParser, ContentText
from ds4tui.chat.tools import tool_of
from ds4tui.engine.constraint import Constraint, GrammarTokens
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import RequestError
from tests.chat.test_call_syntaxes import WRITERS
from tests.engine.vocabularies import CONTROL, USER_DEFINED, tokenizer_of
from tests.scale import scaled

CHANNEL = ThinkingMarks("<|channel>thought", "<channel|>")
# What ends texts is a token, so that a model without a plan comes to an end.
ENDS = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>", '<|"|>', "</think>", "<channel|>")
CALL_MARKS = (
    "<tool_call>",
    "<|tool_call>call:",
    "<｜tool▁calls▁begin｜>",
    "<｜DSML｜tool_calls>",
    "<｜DSML｜function_calls>",
    '{"name": "look_up", "arguments": {',
    "[look_up(",
)
MARKS = ("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "｜DSML｜")

FULL = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["r", "w</"], "description": "as open() has it"},
        "count": {"type": "integer", "minimum": 1, "maximum": 20},
        "all": {"type": "boolean"},
        "lines": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        "Where": {
            "type": "object",
            "properties": {
                "deep": {"type": "string", "enum": ["x", "y"]},
                "on": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
            },
            "required": ["deep"],
            "additionalProperties": False,
        },
        "code": {"type": "string", "pattern": "^[a-f]{2,4}$"},
        "short": {"type": "string", "minLength": 1, "maxLength": 6},
        "colour": {"$ref": "#/$defs/Colour"},
        "either": {"anyOf": [{"const": "none"}, {"type": "string", "maxLength": 3}]},
    },
    "required": ["path", "mode", "lines"],
    "additionalProperties": False,
    "$defs": {"Colour": {"type": "string", "enum": ["red", "green"]}},
}
LOOK = Tool("look", "", json.dumps(FULL))
NUMBER = {
    "properties": {"n": {"type": "number", "minimum": -2, "maximum": 99}},
    "additionalProperties": False,
}
LOOK_UP = Tool("look_up", "", json.dumps({"type": "object", **NUMBER}))
STOP = Tool("stop", "", '{"type": "object", "properties": {}, "additionalProperties": false}')
TOOLS = (LOOK, LOOK_UP, STOP)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("grammars")
    marks = ((each, USER_DEFINED) for each in (*ENDS, *MARKS, *CALL_MARKS))
    return tokenizer_of(folder, ("<|im_end|>", CONTROL), *marks, merges=['{ "', "t r", "tr u"])


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> GrammarTokens:
    return GrammarTokens(tokenizer, tokenizer.end_ids)


def sampled(tokenizer: Tokenizer, wanted: Constraint, seed: int, eager: bool = False) -> str:
    """What a model with random logits is made to say; an eager one likes to call."""
    random, matcher = np.random.default_rng(seed), wanted.matcher()
    end = [ord('"'), *(tokenizer.user_defined_texts[each] for each in ENDS)]
    marks = [tokenizer.user_defined_texts[each] for each in CALL_MARKS]
    ids: list[int] = []
    while len(ids) < 3000:
        logits = random.normal(size=tokenizer.vocab_size)
        logits[marks] += 2 * eager
        logits[end] += 2
        logits[sorted(tokenizer.end_ids)] += len(ids) / 50 - 1
        logits[~matcher.allowed(tokenizer.vocab_size)] = -np.inf
        token = int(logits.argmax())
        assert np.isfinite(logits[token]), tokenizer.decode(ids)
        if token in tokenizer.end_ids:
            return tokenizer.decode(ids)
        matcher.accept(token)
        ids.append(token)
    raise AssertionError(f"it never ended: {tokenizer.decode(ids)[-200:]!r}")


def follows(tokenizer: Tokenizer, wanted: Constraint, text: str) -> bool:
    matcher = wanted.matcher()
    for token in tokenizer.encode(text):
        if not matcher.allowed(tokenizer.vocab_size)[token]:
            return False
        matcher.accept(token)
    return matcher.is_satisfied


def calls_in(text: str, syntax: str) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    offered = {tool.name: tool.parameters for tool in TOOLS}
    parser = CallParser(offered=offered, syntax=SYNTAXES[syntax])
    events = [*(event for c in text for event in parser.push(c)), *parser.finish()]
    calls = [event.call for event in events if isinstance(event, CallEnded)]
    content = "".join(event.text for event in events if isinstance(event, ContentText))
    return [(call.name, json.loads(call.arguments)) for call in calls], content


KINDS = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}


def is_valid(schema: Any, value: Any, root: Any = FULL) -> bool:
    """By as much of JSON Schema as the tools above use."""
    if "$ref" in schema:
        return is_valid(root["$defs"][schema["$ref"].rpartition("/")[2]], value)
    if "anyOf" in schema:
        return any(is_valid(way, value) for way in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    kind = schema["type"]
    if kind == "object":
        known, required = schema["properties"], schema.get("required", ())
        return set(required) <= set(value) <= set(known) and all(
            is_valid(known[key], each) for key, each in value.items()
        )
    if kind == "array":
        fits = schema["minItems"] <= len(value) <= schema["maxItems"]
        return fits and all(is_valid(schema["items"], each) for each in value)
    if not isinstance(value, KINDS[kind]) or isinstance(value, bool) != (kind == "boolean"):
        return False
    if kind == "string":
        fits = re.search(schema.get("pattern", ""), value) is not None
        return fits and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**6)
    least, most = schema.get("minimum", -np.inf), schema.get("maximum", np.inf)
    return kind not in ("integer", "number") or least <= value <= most


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(12), deadline=None)
@pytest.mark.parametrize("syntax", sorted(SYNTAXES))
def test_what_a_grammar_lets_through_is_read_as_calls(
    tokenizer: Tokenizer, tokens: GrammarTokens, syntax: str, seed: int
) -> None:
    forms = Forms(tokenizer, tokenizer.end_ids, syntax)
    choice = ToolChoice("required", several=bool(seed % 2))
    wanted = forms.constraint(None, choice, TOOLS, "none")
    assert wanted is not None
    text = sampled(tokenizer, wanted, seed)
    calls, content = calls_in(text, syntax)
    assert calls and content.strip() == "", text
    assert len(calls) == 1 or choice.several
    for name, arguments in calls:
        tool = next(tool for tool in TOOLS if tool.name == name)
        schema = json.loads(tool.parameters)
        assert is_valid(schema, arguments), arguments


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(6), deadline=None)
@pytest.mark.parametrize("marks", [THINK, CHANNEL])
@pytest.mark.parametrize("syntax", ["gemma", "deepseek-v3.1", "qwen-xml"])
def test_reasoning_stands_between_the_familys_marks(
    tokenizer: Tokenizer, syntax: str, marks: ThinkingMarks, seed: int
) -> None:
    forms = Forms(tokenizer, tokenizer.end_ids, syntax)
    choice = ToolChoice("required", ("look_up",), several=False)
    wanted = forms.constraint(None, choice, TOOLS, "begun", marks)
    assert wanted is not None
    thinking = ThinkingParser(True, marks)
    pieces = [*thinking.push(sampled(tokenizer, wanted, seed)), *thinking.finish()]
    content = "".join(piece.text for piece in pieces if not isinstance(piece, ReasoningPiece))
    calls, left = calls_in(content, syntax)
    assert [name for name, _ in calls] == ["look_up"] and left.strip() == ""


@pytest.mark.parametrize("marks", [THINK, CHANNEL])
def test_reasoning_may_be_there_or_not(
    tokenizer: Tokenizer, tokens: GrammarTokens, marks: ThinkingMarks
) -> None:
    grammar = reply_grammar(None, [STOP], False, "maybe", "gemma", marks).text
    wanted = Constraint.of(grammar, "it", tokens, "it")
    call = "<|tool_call>call:stop{}<tool_call|>"
    assert follows(tokenizer, wanted, call)
    assert follows(tokenizer, wanted, f"{marks.opening}\nHm.{marks.closing}\n{call}")
    other = THINK if marks is CHANNEL else CHANNEL
    assert not follows(tokenizer, wanted, f"{other.opening}\nHm.{other.closing}\n{call}")


def test_the_marks_are_the_templates() -> None:
    assert marks_in("{{ '<think>' }}") == THINK and marks_in("{{ content }}") is None
    assert marks_in("<|channel>thought\n<channel|>") == CHANNEL


WHOLE = ThinkingMarks("<|channel>thought", "<channel|>")


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(60))
def test_thoughts_in_a_channel_come_in_any_pieces(seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = ["<|channel>", "thought", "\n", "<channel|>", "a", "<|", "<channel", " ", "<think>"]
    text = "".join(random.choice(parts, size=8))

    def said(pieces: Sequence[str]) -> tuple[str, str]:
        parser = ThinkingParser(marks=WHOLE)
        found = [*(each for piece in pieces for each in parser.push(piece)), *parser.finish()]
        thought = "".join(each.text for each in found if isinstance(each, ReasoningPiece))
        return thought, "".join(e.text for e in found if not isinstance(e, ReasoningPiece))

    assert said(list(text)) == said([text])
    if not text.lstrip().startswith("<|channel>thought"):
        assert said([text]) == ("", text)


UNWRITABLE = [
    ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "its parameters have 'anyOf'"),
    ({"additionalProperties": {"type": "integer"}}, "its parameters may have any name"),
    ({"required": ["a"]}, "the required argument 'a' is not described"),
    (
        {"properties": {"a": {"type": "string", "pattern": "a|^b$"}}},
        "an argument has the pattern 'a|^b$'",
    ),
]


@pytest.mark.parametrize(("more", "reason"), UNWRITABLE)
@pytest.mark.parametrize("syntax", ["qwen-xml", "glm-5", "dsml-v4", "gemma"])
def test_what_a_familys_grammar_cannot_say_is_json_and_told(
    tokenizer: Tokenizer, tokens: GrammarTokens, syntax: str, more: dict[str, Any], reason: str
) -> None:
    odd = Tool("odd", "", json.dumps({"type": "object", **more}))
    made = reply_grammar(None, [odd, STOP], True, "none", syntax)
    assert made.held_as_json == (("odd", reason),)
    wanted = Constraint.of(made.text, "it", tokens, "it")
    arguments = {"a": "b"} if "properties" in more else {"a": 1}
    assert follows(tokenizer, wanted, hermes("odd", arguments))
    assert not follows(tokenizer, wanted, hermes("stop", {}))


def hermes(name: str, arguments: dict[str, Any]) -> str:
    told = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{told}\n</tool_call>"


def test_what_the_library_cannot_follow_is_json_and_told(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Family(*[lambda tool, rules: "no_such_rule"] * 2, mark="<tool_call>")
    monkeypatch.setattr(call_grammars, "FAMILIES", {"glm": broken})
    caplog.set_level("INFO", logger="ds4tui.chat.forms")
    forms = Forms(tokenizer, tokenizer.end_ids, "glm")
    wanted = forms.constraint(None, ToolChoice("required"), [STOP], "none")
    assert wanted is not None and follows(tokenizer, wanted, hermes("stop", {}))
    assert "calls are held to JSON" in caplog.text


NAMED = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/Tree"}},
    "required": ["tree"],
    "$defs": {
        "Tree": {
            "type": "object",
            "properties": {
                "leaf": {"type": "boolean"},
                "more": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "maxItems": 2},
            },
            "required": ["leaf"],
        }
    },
}


@pytest.mark.parametrize("syntax", sorted(SYNTAXES))
def test_schemas_that_name_themselves(tokenizer: Tokenizer, syntax: str) -> None:
    forms = Forms(tokenizer, tokenizer.end_ids, syntax)
    tree = {"tree": {"leaf": True, "more": [{"leaf": False}, {"leaf": True, "more": []}]}}
    tools = [Tool("plant", "", json.dumps(NAMED)), Tool("cut", "", json.dumps(NAMED))]
    wanted = forms.constraint(None, ToolChoice("required"), tools, "none")
    assert wanted is not None
    texts = {
        "hermes": hermes("cut", tree),
        "llama3": f'{{"name": "cut", "parameters": {json.dumps(tree)}}}',
        **{name: write("cut", **tree) for name, write in WRITERS.items()},
    }
    assert follows(tokenizer, wanted, texts[syntax])
    wrong = texts[syntax].replace("false", "1").replace("False", "1")
    assert wrong != texts[syntax] and not follows(tokenizer, wanted, wrong)


STRICT = tuple(replace(tool, strict=True) for tool in TOOLS)
LOOSE = Tool("loose", "", '{"type": "object"}')


@given(st.integers(0, 2**32))
@settings(max_examples=scaled(4), deadline=None)
@pytest.mark.parametrize("syntax", sorted(SYNTAXES))
def test_strict_tools_are_called_by_their_schemas_or_not_at_all(
    tokenizer: Tokenizer, syntax: str, seed: int
) -> None:
    forms = Forms(tokenizer, tokenizer.end_ids, syntax)
    wanted = forms.constraint(None, ToolChoice(several=bool(seed % 2)), STRICT, "none")
    assert wanted is not None and wanted.what == "strict arguments"
    calls, _ = calls_in(sampled(tokenizer, wanted, seed, eager=True), syntax)
    assert len(calls) <= 1 or seed % 2
    for name, arguments in calls:
        tool = next(tool for tool in TOOLS if tool.name == name)
        assert is_valid(json.loads(tool.parameters), arguments), arguments


@pytest.mark.parametrize("syntax", sorted(SYNTAXES))
def test_with_strict_tools_a_reply_may_be_anything_else(tokenizer: Tokenizer, syntax: str) -> None:
    forms = Forms(tokenizer, tokenizer.end_ids, syntax)
    wanted = forms.constraint(None, ToolChoice(), [*STRICT[1:], LOOSE], "maybe")
    assert wanted is not None
    bare = '{"name": "look_up", "arguments": {"n": 3}}'
    write = WRITERS.get(syntax, lambda name, **values: hermes(name, values))
    for text in (
        *("", "Hello.", "  <b>1</b> ", "[1, 2]", '{"city": "Paris"}', '{"name": "Paris"}', "{}"),
        *("Write `<tool_call>` for it.", '{"type": "Feature", "name": 1}', "```json\n{}\n```"),
        *(bare, f"```json\n{bare}\n```", "<think>\nHm.</think>\n\nYes."),
        *("```python\nlook_up(path='a')\n```", f"I do. {write('look_up', n=3)} Done."),
        write("stop"),
        write("loose", anything="x"),
    ):
        assert follows(tokenizer, wanted, text), text
    for text in (
        bare.replace("3", '"3"'),
        "[look_up(path='a')]",
        "```tool_code\nlook_up(path='a')\n```",
        '{"type": "function", "name": "look_up", "parameters": {}}',
        write("look_up", n="x"),
        write("stop", n=1),
        write("unheard"),
        f"<think></think>{write('look_up', n='x')}",
    ):
        assert not follows(tokenizer, wanted, text), text


def test_tools_are_strict_only_if_they_say_so(tokenizer: Tokenizer) -> None:
    forms = Forms(tokenizer, tokenizer.end_ids)
    assert forms.constraint(None, ToolChoice(), TOOLS, "none") is None
    assert forms.constraint(None, ToolChoice("none"), STRICT, "none") is None
    function = {"name": "stop", "parameters": {"type": "object"}, "strict": True}
    assert tool_of({"function": function}).strict
    assert not tool_of({"function": {**function, "strict": None}}).strict
    wrong = Tool("odd", "", '{"type": "object", "properties": {"a": {"type": "no"}}}', strict=True)
    with pytest.raises(RequestError, match="tools: strict arguments cannot be required"):
        forms.constraint(None, ToolChoice(), [wrong], "none")


def test_strictness_is_no_part_of_what_a_model_is_told() -> None:
    assert STRICT == TOOLS and hash(STRICT[0]) == hash(TOOLS[0])
