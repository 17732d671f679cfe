"""Calls in the syntaxes of families: read in any pieces, of any values; what is none stays text."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.toolcalls import (
    SYNTAXES,
    CallArguments,
    CallBegun,
    CallParser,
    ContentText,
    ToolEvent,
)
from tests.chat import formats
from tests.chat.test_toolcalls import calls, content, numbered, reasons
from tests.scale import scaled

SCHEMAS: Mapping[str, str] = {
    "write": json.dumps(
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "text": {"type": ["string", "null"]},
                "n": {"type": "integer"},
                "all": {"type": "boolean"},
                "items": {"type": "array"},
                "where": {"anyOf": [{"type": "object"}, {"type": "null"}]},
            },
        }
    ),
    "stop": "",
}


def qwen(name: str, **arguments: Any) -> str:
    told = "".join(
        f"<parameter={key}>\n{_spelt(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{told}</function>\n</tool_call>"


def glm(name: str, /, end: str = "\n", **arguments: Any) -> str:
    told = "".join(
        f"<arg_key>{key}</arg_key>{end}<arg_value>{_spelt(value)}</arg_value>{end}"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{end}{told}</tool_call>"


def glm5(name: str, **arguments: Any) -> str:
    return glm(name, end="", **arguments)


def dsml(
    name: str, /, mark: str = "｜DSML｜", block: str = "function_calls", **arguments: Any
) -> str:
    told = "".join(
        f'<{mark}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{_spelt(value)}</{mark}parameter>\n"
        for key, value in arguments.items()
    )
    call = f'<{mark}invoke name="{name}">\n{told}</{mark}invoke>'
    return f"<{mark}{block}>\n{call}\n</{mark}{block}>"


def dsml_v4(name: str, **arguments: Any) -> str:
    return dsml(name, block="tool_calls", **arguments)


def deepseek_v3(name: str, **arguments: Any) -> str:
    told = f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```"
    call = f"<｜tool▁call▁begin｜>{told}<｜tool▁call▁end｜>"
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"


def deepseek_v31(name: str, **arguments: Any) -> str:
    told = f"{name}<｜tool▁sep｜>{json.dumps(arguments, ensure_ascii=False)}"
    call = f"<｜tool▁call▁begin｜>{told}<｜tool▁call▁end｜>"
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"


def gemma(name: str, **arguments: Any) -> str:
    return f"<|tool_call>call:{name}{_gemmas(arguments)}<tool_call|>"


def _gemmas(value: Any) -> str:
    if isinstance(value, dict):
        quoted = (key if key.isidentifier() else f'<|"|>{key}<|"|>' for key in value)
        pairs = zip(quoted, map(_gemmas, value.values()), strict=True)
        return "{" + ",".join(f"{key}:{told}" for key, told in pairs) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_gemmas, value))}]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _spelt(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


WRITERS = {
    "qwen-xml": qwen,
    "glm": glm,
    "glm-5": glm5,
    "dsml": dsml,
    "dsml-v4": dsml_v4,
    "deepseek-v3": deepseek_v3,
    "deepseek-v3.1": deepseek_v31,
    "gemma": gemma,
}


def events_of(
    syntax: str, pieces: Sequence[str], offered: Mapping[str, str] = SCHEMAS
) -> list[ToolEvent]:
    """Deltas that follow each other are joined."""
    parser = CallParser(numbered(), offered, SYNTAXES[syntax])
    found: list[ToolEvent] = []
    for event in [*(e for piece in pieces for e in parser.push(piece)), *parser.finish()]:
        last = found[-1] if found else None
        if isinstance(event, ContentText) and isinstance(last, ContentText):
            found[-1] = ContentText(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            found[-1] = CallArguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def said(events: Sequence[ToolEvent]) -> list[Any]:
    return [(name, json.loads(arguments)) for name, arguments in calls(events)]


# How the families' templates write a call, among other things.
_CALL = "{%- set call = m.tool_calls[0].function %}"
_GEMMA = """{%- macro told(value) %}{% if value is string %}{{ '<|"|>' ~ value ~ '<|"|>' }}
{%- elif value is sequence %}[{% for item in value %}{{ told(item) }}
{{- ',' if not loop.last }}{% endfor %}]{% else %}{{ value|tojson }}{% endif %}{% endmacro %}"""
TEMPLATES = {
    "qwen-xml": _CALL
    + """<tool_call>\n<function={{ call.name }}>\n{% for key, value in call.arguments|items %}
{{- '<parameter=' ~ key ~ '>\n' ~ (value if value is string else value|tojson) }}
{{- '\n</parameter>\n' }}{% endfor %}</function>\n</tool_call>""",
    "glm": _CALL
    + """<tool_call>{{ call.name }}\n{% for key, value in call.arguments|items %}
{{- '<arg_key>' ~ key ~ '</arg_key>\n<arg_value>' }}
{{- (value if value is string else value|tojson) ~ '</arg_value>\n' }}{% endfor %}</tool_call>""",
    "dsml": _CALL
    + """<｜DSML｜function_calls>\n<｜DSML｜invoke name="{{ call.name }}">\n
{%- for key, value in call.arguments|items %}{{ '\n<｜DSML｜parameter name="' ~ key }}
{{- '" string="' ~ ('true' if value is string else 'false') ~ '">' }}
{{- (value if value is string else value|tojson) ~ '</｜DSML｜parameter>' }}{% endfor %}
</｜DSML｜invoke>\n</｜DSML｜function_calls>""",
    "deepseek-v3": _CALL
    + """<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ m.tool_calls[0].type }}
{{- '<｜tool▁sep｜>' ~ call.name }}
```json\n{{ call.arguments|tojson }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>""",
    "deepseek-v3.1": _CALL
    + """{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + call.name + '<｜tool▁sep｜>' }}
{{- call.arguments + '<｜tool▁call▁end｜><｜tool▁calls▁end｜>' }}""",
    "gemma": _GEMMA
    + _CALL
    + """<|tool_call>call:{{ call.name }}{
{%- for key, value in call.arguments|dictsort %}
{{- ',' if not loop.first }}{{ key ~ ':' ~ told(value) }}
{%- endfor %}}<tool_call|>""",
    "llama3": _CALL
    + """{{ '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments|tojson ~ '}' }}""",
    "hermes": _CALL
    + """{{ '<tool_call>\n{"name": "' ~ call.name ~ '", "arguments": ' }}
{{- call.arguments|tojson ~ '}\n</tool_call>' }}""",
}


TEMPLATES["glm-5"] = TEMPLATES["glm"].replace("\n", "")
TEMPLATES["dsml-v4"] = "\n\n" + TEMPLATES["dsml"].replace("function_calls", "tool_calls")


@pytest.mark.parametrize("syntax", sorted(SYNTAXES))
def test_the_template_says_the_syntax_and_what_it_writes_is_read(
    syntax: str, tmp_path: Path
) -> None:
    turn = "{% if m.tool_calls %}" + TEMPLATES[syntax] + "{% else %}{{ m.content }}{% endif %}"
    template = (
        "{% for tool in tools or [] %}{{ tool|tojson }}{% endfor %}"
        + formats.roles("<|{{ m.role }}|>", turn, "<|end|>")
        + "<|assistant|>"
    )
    made = ChatFormat(formats.tokenizer(tmp_path), template)
    assert made.tool_syntax == made.abilities.tool_syntax == syntax
    arguments = {"path": "a b.txt", "n": 3, "all": True, "items": [1, "x"], "text": "a\n\n b"}
    call = ToolCall("call_1", "write", json.dumps(arguments))
    asked = [Message("user", "Hi"), Message("assistant", "", tool_calls=(call,))]
    tools = [Tool(name, "", schema or "{}") for name, schema in SCHEMAS.items()]
    written = made.render_text(asked, tools).rpartition("Hi<|end|><|assistant|>")[2]
    events = events_of(syntax, list(written.partition("<|end|>")[0]))
    assert said(events) == [("write", arguments)] and content(events) == ""


VALUES = {
    "path": st.sampled_from(["a.txt", "", " b ", "é😀", 'say "x"\\', "a\nb\n", "<tool_call>"])
    | st.text(max_size=30),
    "text": st.sampled_from(
        ["</parameter>", "x </parameter> y", "</function>", "\n", "</arg_value>", "<parameter=n>"]
    ),
    "n": st.integers(),
    "all": st.booleans(),
    "items": st.lists(st.integers() | st.text(max_size=5), max_size=3),
    "where": st.none()
    | st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False)),
}


@settings(max_examples=scaled(300), deadline=None)
@given(
    syntax=st.sampled_from(sorted(WRITERS)),
    arguments=st.fixed_dictionaries({}, optional=VALUES),
    before=st.sampled_from(["", "I write it.\n"]),
    seed=st.integers(0, 2**32),
)
@example("qwen-xml", {"text": "x </parameter> y", "n": 1}, "", 0)
def test_what_is_written_is_read_in_any_pieces(
    syntax: str, arguments: dict[str, Any], before: str, seed: int
) -> None:
    arguments = {key: _kept(value) for key, value in arguments.items()}
    text = before + WRITERS[syntax]("write", **arguments)
    whole = events_of(syntax, [text])
    assert said(whole) == [("write", arguments)]
    assert content(whole).strip() == before.strip()
    told = "".join(event.text for event in whole if isinstance(event, CallArguments))
    assert json.loads(told) == arguments
    assert events_of(syntax, list(text)) == whole
    assert events_of(syntax, _cut(text, seed)) == whole


def _kept(value: Any) -> Any:
    """Texts that no reader can tell from tags are left out."""
    ends = ("</parameter>", "</arg_value>", "</｜DSML｜parameter>")
    is_open = isinstance(value, str) and any(value.strip().endswith(end) for end in ends)
    return value + "!" if is_open else value


def _cut(text: str, seed: int) -> list[str]:
    draw = random.Random(seed)
    cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


PARTS = [
    *("<tool_call>", "</tool_call>", "<function=write>", "<function=", "</function>", "<", "\n"),
    *("<parameter=path>", "<parameter=n>", "</parameter>", "a.txt", "12", "true", " " * 70, "x"),
    *("write", "<arg_key>path</arg_key>", "<arg_value>", "</arg_value>", "<arg_key>", "stop\n"),
    *(
        "<｜DSML｜function_calls>",
        '<｜DSML｜invoke name="write">',
        "</｜DSML｜invoke>",
        "<｜DSML｜",
        "<｜DSML｜tool_calls>",
        "</｜DSML｜tool_calls>",
        "<tool_calls>",
        '<invoke name="write">',
        "</invoke>",
    ),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>write\n```json\n"),
    *(
        "stop<｜tool▁sep｜>{}",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁sep｜>",
        "{}",
    ),
    *("<|tool_call>call:write{", "<tool_call|>", "<|tool_call>", 'path:<|"|>', '<|"|>', ",n:1}"),
    *("n:[1,{a:true}]", "text:oh no,", "'it\\'s'", '"""a"""', "[write(", "print(stop())"),
    *("```tool_code\n", "path='a', n=1)", "stop()", "]", ", ", '"\\ud83d\\ude00"', "where:"),
    *('<｜DSML｜parameter name="path" string="true">', "</｜DSML｜parameter>", '" string="false">'),
    *("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    *('{"name": "write", "arguments": {}}', "<|python_tag|>", "; "),
    *('{"name": "stop", "parameters": {"a": 1}}', "y" * 450, '{"function": "stop"}', "```"),
]


@settings(max_examples=scaled(1200), deadline=None)
@given(
    syntax=st.sampled_from(sorted(SYNTAXES)),
    text=st.lists(st.sampled_from(PARTS), max_size=12).map("".join),
    seed=st.integers(0, 2**32),
)
def test_events_do_not_depend_on_the_pieces(syntax: str, text: str, seed: int) -> None:
    whole = events_of(syntax, [text])
    assert events_of(syntax, list(text)) == whole
    assert events_of(syntax, _cut(text, seed)) == whole
    begun = [event.index for event in whole if isinstance(event, CallBegun)]
    assert begun == sorted(set(begun))
    for _, arguments in calls(whole):
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("syntax", sorted(WRITERS))
def test_several_calls(syntax: str) -> None:
    write = WRITERS[syntax]
    text = f"Both.\n{write('write', path='a')}\n{write('stop')}"
    events = events_of(syntax, [text])
    assert said(events) == [("write", {"path": "a"}), ("stop", {})]
    assert content(events) == "Both."


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("qwen-xml", "In Qwen's XML a call is `<tool_call>` and <function=name> within."),
        ("qwen-xml", "<function=unheard>\n<parameter=a>\n1\n</parameter>\n</function>"),
        ("qwen-xml", "<tool_call>\n<function=write>\n<parameter=path>\nnever ends"),
        ("glm", "Write <tool_call> and then the name, as in <tool_call>a b</tool_call>."),
        ("dsml", "The marker is <｜DSML｜function_calls> and no more."),
        ("llama3", 'A call is {"name": "write", "parameters": {}} in Llama.'),
        ("llama3", '{"city": "Paris"}'),
    ],
)
def test_what_is_no_call_is_text_all_of_it(syntax: str, text: str) -> None:
    events = events_of(syntax, list(text))
    assert content(events) == text and not calls(events)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<function=write>\n<parameter=path>\na\n</parameter>\n</function>", {"path": "a"}),
        ("<tool_call>\n<function=write>\n<parameter=path>a</parameter></function>", {"path": "a"}),
        ("<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n", {"path": "a"}),
        ("<tool_call><function=write><parameter=n>1</parameter>", {"n": 1}),
        (
            "<tool_call>\n<function=write>\n<parameter=all>\nTrue\n</parameter>\n</fun",
            {"all": True},
        ),
        ("<tool_call><function=write><parameter=n>a few</parameter></function>", {"n": "a few"}),
        ("<tool_call><function=write><parameter=new>1</parameter></function>", {"new": "1"}),
        ('<tool_call>{"name": "write", "arguments": {"n": 1}}</tool_call>', {"n": 1}),
        ('{"name": "write", "arguments": {"n": 1}}', {"n": 1}),
    ],
)
def test_what_models_make_of_qwens(text: str, arguments: dict[str, Any]) -> None:
    events = events_of("qwen-xml", list(text))
    assert said(events) == [("write", arguments)]
    assert content(events).strip() == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "write", "parameters": {"n": 1}}',
        '{"type": "function", "name": "write", "parameters": {"n": 1}}',
        '{"type": "function", "function": {"name": "write", "arguments": {"n": 1}}}',
        '{"function": "write", "parameters": {"n": 1}}',
        '<|python_tag|>{"name": "write", "parameters": {"n": 1}}<|eom_id|>',
        '\n\n{"name": "write", "parameters": "{\\"n\\": 1}"}',
        '<tool_call>\n{"name": "write", "arguments": {"n": 1}}\n</tool_call>',
    ],
)
def test_what_models_make_of_llamas(text: str) -> None:
    """T91: a variant that was read as nothing at all."""
    events = events_of("llama3", list(text))
    assert said(events) == [("write", {"n": 1})]
    assert content(events) == ""


def test_llama_puts_semicolons_between_calls() -> None:
    call = '{"name": "write", "parameters": {"n": 1}}'
    events = events_of("llama3", [f"{call}; {call};\n{call}"])
    assert said(events) == [("write", {"n": 1})] * 3 and content(events) == ""
    events = events_of("llama3", [f"{call}; and then?"])
    assert said(events) == [("write", {"n": 1})] and content(events).strip() == "; and then?"


def test_a_call_of_the_same_argument_twice_is_text() -> None:
    text = "<tool_call><function=write>" + "<parameter=n>1</parameter>" * 2 + "</function>"
    events = events_of("qwen-xml", [text])
    assert not calls(events) and content(events) == text
    assert set(reasons(events)) == {"it has two of 'n'"}


HERMES_CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("Qwen writes `", "` for a call."),
        ('For instance:\n```python\nprint("', '")\n```\nSo it is.'),
        ("For instance:\n```\nsome code\n\n", "\n```"),
        ("``", "``"),
    ],
)
@pytest.mark.parametrize("syntax", sorted(SYNTAXES))
def test_calls_in_code_are_text(syntax: str, before: str, behind: str) -> None:
    call = WRITERS[syntax]("stop", path="a") if syntax in WRITERS else HERMES_CALL
    text = before + call + behind
    events = events_of(syntax, list(text))
    assert events == [ContentText(text)] == events_of(syntax, [text])


@pytest.mark.parametrize(
    "before", ["```\ncode\n```\n", "It is `code`: ", "For you:\n```xml\n", "a `b` c\n", "```\n\n"]
)
def test_calls_behind_code_are_calls(before: str) -> None:
    events = events_of("hermes", list(before + HERMES_CALL))
    assert said(events) == [("stop", {})] and content(events).strip() == before.strip()
