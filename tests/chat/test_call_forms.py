"""What models make of the syntaxes they were taught: what is read, and what stays text."""

from typing import Any

import pytest

from ds4tui.chat.toolcalls import marks
from tests.chat.test_call_syntaxes import SCHEMAS, dsml, events_of, said
from tests.chat.test_toolcalls import content, reasons

A = {"path": "a"}
_PARAMETER = '<｜DSML｜parameter name="path" string="true">a</｜DSML｜parameter>'
_INVOKE = f'<｜DSML｜invoke name="write">\n{_PARAMETER}\n</｜DSML｜invoke>'


def read(syntax: str, text: str) -> tuple[list[Any], str]:
    """The calls and the text, the same in any pieces."""
    events = events_of(syntax, list(text))
    assert events == events_of(syntax, [text]) == events_of(syntax, [text[:7], text[7:]])
    return said(events), content(events)


@pytest.mark.parametrize("mark", ["｜DSML｜", "｜DSML｜ ", "DSML｜", "|DSML|", ""])
@pytest.mark.parametrize("block", ["tool_calls", "function_calls", "calls"])
@pytest.mark.parametrize("syntax", ["dsml", "dsml-v4"])
def test_dsml_of_every_spelling(syntax: str, mark: str, block: str) -> None:
    if block == "calls" and not mark:
        return  # a tag of anybody's
    text = f"I look.\n\n{dsml('write', mark=mark, block=block, path='a', n=1)}"
    assert read(syntax, text) == ([("write", {**A, "n": 1})], "I look.")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"<｜DSML｜tool_calls>\n{_INVOKE}\n{_INVOKE}\n</｜DSML｜tool_calls>", [A, A]),
        (f"<｜DSML｜tool_calls>{_INVOKE}{_INVOKE}</｜DSML｜tool_calls>", [A, A]),
        # Without its own end, or that of the block, or both.
        (
            f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">{_PARAMETER}</｜DSML｜tool_calls>',
            [A],
        ),
        (f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">{_PARAMETER}\n{_INVOKE}', [A, A]),
        (f"<｜DSML｜tool_calls>\n{_INVOKE}", [A]),
        (f"<｜DSML｜tool_calls>\n{_INVOKE}\n</｜DSML｜tool_c", [A]),
        (f"{_INVOKE}\n</｜DSML｜tool_calls>", [A]),
        # The outer tag of the one with the other's end.
        (f"<｜DSML｜tool_calls>\n{_INVOKE}\n</｜DSML｜function_calls>", [A]),
        ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">\n\n</｜DSML｜invoke>\n', [{}]),
    ],
)
def test_blocks_of_dsml(text: str, found: list[Any]) -> None:
    assert read("dsml-v4", text) == ([("write", each) for each in found], "")


@pytest.mark.parametrize(
    "text",
    [
        "DeepSeek V4 opens its calls with <｜DSML｜tool_calls> and V3.2 with another.",
        "`<｜DSML｜tool_calls>` it is",
        f"```xml\n<x>\n{_INVOKE}\n```",
        '<invoke name="unheard">\n</invoke>',
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="write">\n<｜DSML｜parameter name="path" stri',
    ],
)
def test_what_is_no_call_in_dsml_is_text(text: str) -> None:
    assert read("dsml-v4", text) == ([], text)


_ARGUMENTS = '{"path": "a"}'
_V3 = f"function<｜tool▁sep｜>write\n```json\n{_ARGUMENTS}\n```"
_V31 = f"write<｜tool▁sep｜>{_ARGUMENTS}"


@pytest.mark.parametrize(
    "begin", ["tool▁calls▁begin", "tool calls begin", "tool_calls_begin", "tool▁calls"]
)
@pytest.mark.parametrize("call", [_V3, _V31, f"function<｜tool▁sep｜>write\n{_ARGUMENTS}"])
@pytest.mark.parametrize("syntax", ["deepseek-v3", "deepseek-v3.1"])
def test_deepseeks_of_both_kinds(syntax: str, call: str, begin: str) -> None:
    one = f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>"
    end = begin.replace("begin", "end") if "begin" in begin else "tool▁calls▁end"
    text = f"So.\n<｜{begin}｜>{one}\n{one}<｜{end}｜>"
    assert read(syntax, text) == ([("write", A)] * 2, "So.")
    assert read(syntax, f"<｜{begin}｜>{call}") == ([("write", A)], "")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{_V3}", A),
        (f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{_V3[:-4]}<｜tool▁call▁end｜>", A),
        (f"<｜tool▁call▁begin｜>{_V31}<｜tool▁call▁end｜>", A),
        (_V3, A),
        ("<｜tool▁calls▁begin｜>stop<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>", {}),
        (f"<｜tool▁calls▁begin｜>function<｜tool▁sep｜>{_ARGUMENTS}", A),  # a tool of that name
        ('<｜tool▁calls▁begin｜>{"name": "write", "arguments": {"path": "a"}}', A),
        ('<tool_call>{"name": "write", "arguments": {"path": "a"}}</tool_call>', A),
    ],
)
def test_what_models_make_of_deepseeks(text: str, arguments: Any) -> None:
    calls, left = read("deepseek-v3", text)
    assert [each for _, each in calls] == [arguments] and left == ""


@pytest.mark.parametrize(
    "text",
    [
        "V3 opens with <｜tool▁calls▁begin｜> and a name.",
        f"`<｜tool▁calls▁begin｜>{_V31}`",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\nof course",
        '<｜tool▁calls▁begin｜>write<｜tool▁sep｜>{"path": "a',
        "function<｜tool▁sep｜>unheard\n```json\n{}\n```",
    ],
)
def test_what_is_no_call_in_deepseeks_is_text(text: str) -> None:
    assert read("deepseek-v3.1", text) == ([], text)


@pytest.mark.parametrize(
    ("told", "arguments"),
    [
        ("{}", {}),
        ('{path:<|"|>a {b}, "c"\\n<|"|>}', {"path": 'a {b}, "c"\\n'}),
        ('{ path : <|"|>a<|"|> , n : 1 }', {"path": "a", "n": 1}),
        ('{items:[<|"|>x<|"|>,1,{k:true,<|"|>a b<|"|>:null}],n:-2.5e3}', None),
        (
            "{\"path\": \"a\\n\\u00e9\\ud83d\\ude00\", 'text': 'it\\'s'}",
            {"path": "a\né😀", "text": "it's"},
        ),
        ("{path:a b/c.txt,all:True}", {"path": "a b/c.txt", "all": True}),
        ("{path:12,n:12}", {"path": "12", "n": 12}),
        ("{n:1,}", {"n": 1}),
        ('{path=<|"|>a<|"|>}', None),
    ],
)
def test_gemmas_arguments(told: str, arguments: Any) -> None:
    text = f"<|tool_call>call:write{told}<tool_call|>"
    calls, left = read("gemma", text)
    if "=" in told:
        assert (calls, left) == ([], text)
    elif arguments is None:
        assert calls[0][1] == {"items": ["x", 1, {"k": True, "a b": None}], "n": -2500.0}
    else:
        assert (calls, left) == ([("write", arguments)], "")


def test_several_of_gemmas_and_what_models_add() -> None:
    one = '<|tool_call>call:write{path:<|"|>a<|"|>}<tool_call|>'
    assert read("gemma", f"Both.{one}{one}<|tool_response>") == ([("write", A)] * 2, "Both.")
    assert read("gemma", one.replace("call:", "call:google:fs:")) == ([("write", A)], "")
    assert read("gemma", one.replace("call:", "").removesuffix("<tool_call|>")) == (
        [("write", A)],
        "",
    )
    json_call = '<|tool_call>{"name": "write", "arguments": {"path": "a"}}<tool_call|>'
    assert read("gemma", json_call) == ([("write", A)], "")
    for text in ("Gemma has <|tool_call> for it.", f"`{one}`", "<|tool_call>call:write{path:<"):
        assert read("gemma", text) == ([], text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[write(path="a")]', [A]),
        ("[write(path='a'), stop()]", [A, {}]),
        ('```tool_code\nwrite(path="a")\n```', [A]),
        ('```tool_code\nprint(write(path="a"))\n```', [A]),
        ('```tool_code\n[write(path="a"), stop()]\n```', [A, {}]),
        ('\n[write(path="""a""", n=1, all=False, items=[1, None,],)]', None),
        ('```tool_call\n{"name": "write", "arguments": {"path": "a"}}\n```', [A]),
    ],
)
def test_gemma_3_calls_as_its_authors_have_it(text: str, found: Any) -> None:
    """It has no syntax of its own: its template knows no tools."""
    calls, left = read("hermes", text)
    if found is None:
        assert calls == [("write", {**A, "n": 1, "all": False, "items": [1, None]})]
    else:
        assert [each for _, each in calls] == found
    assert left == ""


@pytest.mark.parametrize(
    "text",
    [
        "[write it down]",
        '[unheard(path="a")]',
        "[write(path)]",
        '[write("a")]',
        "[write(path=open('x'))]",
        '```python\nwrite(path="a")\n```',
        'write(path="a")',
        'So: [write(path="a")]',
        '[write(path="a"',
        "```tool_code\nx = 1\n```",
        "[1, 2]",
    ],
)
def test_other_code_is_text(text: str) -> None:
    assert read("hermes", text) == ([], text)


def test_why_a_call_is_none_is_told() -> None:
    text = '<|tool_call>call:write{path:<|"|>a<|"|>,path:<|"|>b<|"|>}<tool_call|>'
    events = events_of("gemma", [text], SCHEMAS)
    assert reasons(events)[0] == "it has two of 'path'" and content(events) == text


def test_json_of_another_type_is_no_call() -> None:
    text = '{"type": "Feature", "name": "write", "arguments": {}}'
    assert read("hermes", text) == ([], text)
    assert read("hermes", text.replace("Feature", "function")) == ([("write", {})], "")


def test_the_marks_that_a_model_is_kept_from() -> None:
    """Each that is one token in some vocabulary."""
    assert marks("hermes") == marks(None) == ("<tool_call>",)
    assert {"｜DSML｜", "<tool_call>"} <= set(marks("dsml-v4"))
    assert {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"} <= set(marks("deepseek-v3"))
    assert "<|tool_call>" in marks("gemma")
