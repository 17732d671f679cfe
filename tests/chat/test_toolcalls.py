"""A reply's calls are found in any pieces of its text; what is none is content, all of it."""

import json
import random
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.chat import call_text, toolcalls
from ds4tui.chat.messages import ToolCall
from ds4tui.chat.toolcalls import (
    CallArguments,
    CallBegun,
    CallEnded,
    CallParser,
    CallRejected,
    ContentText,
    ToolEvent,
    parser_of,
)
from tests.scale import scaled


def numbered() -> Callable[[], str]:
    numbers = count()
    return lambda: f"call_{next(numbers)}"


OFFERED = ("f", "read")


def events_of(pieces: Sequence[str], offered: Sequence[str] = ()) -> list[ToolEvent]:
    """Deltas that follow each other are joined."""
    parser = CallParser(numbered(), offered)
    found: list[ToolEvent] = []
    for event in [*(e for piece in pieces for e in parser.push(piece)), *parser.finish()]:
        previous = found[-1] if found else None
        if isinstance(event, ContentText) and isinstance(previous, ContentText):
            found[-1] = ContentText(previous.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(previous, CallArguments):
            assert event.index == previous.index
            found[-1] = CallArguments(event.index, previous.text + event.text)
        else:
            found.append(event)
    return found


def content(events: Sequence[ToolEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, ContentText))


def calls(events: Sequence[ToolEvent]) -> list[tuple[str, str]]:
    return [(e.call.name, e.call.arguments) for e in events if isinstance(e, CallEnded)]


def reasons(events: Sequence[ToolEvent]) -> list[str]:
    return [e.reason for e in events if isinstance(e, CallRejected)]


READ = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'

PARTS = [
    *("<tool_call>", "</tool_call>", "<tool", "<", "\n", " ", "  \n\n ", "text", "`", "{", "}"),
    *('{"name": "f", "arguments": {', '"name"', '"arguments"', '"parameters": ', ": ", ", ", '"'),
    *('"x": 1', "[1, 2.5e-3]", "true", "nul", "\\", '\\"', "\\u00e9", "\\ud83d", "é😀", "\t"),
    *(READ, '{"name": "f"}', '{"arguments": {"a": [{}]}, "name": "g"}', '"arguments": "{}"'),
    *("```", "```json\n", "```js", "\n```\n", '{"name": "read", "arguments": {}}', '{"city": 1}'),
    *("{}}", "}}\n</tool_call>", '{"name": 3}', '{"name": ""}', " " * 70, "-", "01", "1e9999"),
]
texts = st.lists(st.sampled_from(PARTS), max_size=10).map("".join)


@settings(max_examples=scaled(1500), deadline=None)
@given(text=texts, seed=st.integers(0, 2**32), offered=st.sampled_from([(), OFFERED]))
@example(text=READ + "\n" + READ, seed=0, offered=())
@example(text='<tool_call>{"name": "f", "arguments": {"x": 1}, "name": "g"}', seed=0, offered=())
@example(text='<tool_call>{"name": "f", "arguments": {"x": 1}} x', seed=0, offered=())
@example(text='a<tool_call>{"arguments": "{", "name": "f"}', seed=0, offered=())
@example(text='```json\n{"name": "f", "arguments": {"x": 1}}\n```\nx', seed=0, offered=OFFERED)
@example(text='{"name": "f", "arguments": {"x": tru}}', seed=0, offered=OFFERED)
def test_events_do_not_depend_on_the_pieces(text: str, seed: int, offered: Sequence[str]) -> None:
    whole = events_of([text], offered)
    assert events_of(list(text), offered) == whole
    draw = random.Random(seed)
    cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert events_of(pieces, offered) == whole


@settings(max_examples=scaled(800), deadline=None)
@given(text=texts, offered=st.sampled_from([(), OFFERED]))
def test_events_are_in_order_and_nothing_is_lost(text: str, offered: Sequence[str]) -> None:
    events = events_of([text], offered)
    begun: dict[int, CallBegun] = {}
    arguments: dict[int, str] = {}
    over: set[int] = set()
    for event in events:
        if isinstance(event, CallBegun):
            assert event.index == len(begun)
            begun[event.index] = event
        elif isinstance(event, CallArguments):
            assert event.index in begun and event.index not in over
            arguments[event.index] = arguments.get(event.index, "") + event.text
        elif isinstance(event, CallEnded):
            known = begun[event.index]
            assert (known.id, known.name) == (event.call.id, event.call.name)
            assert json.loads(arguments[event.index]) == json.loads(event.call.arguments)
            over.add(event.index)
        elif isinstance(event, CallRejected) and event.index is not None:
            assert event.index in begun
            over.add(event.index)
    assert over == set(begun)
    if not any(isinstance(e, CallEnded) for e in events):
        assert content(events) == text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=scaled(400), deadline=None)
@given(
    name=st.text(min_size=1),
    arguments=st.dictionaries(st.text(), json_values, max_size=4),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
)
def test_any_call_comes_back(name: str, arguments: object, indent: int, ascii_only: bool) -> None:
    call = {"name": name, "arguments": arguments}
    body = json.dumps(call, indent=indent, ensure_ascii=ascii_only)
    events = events_of(list(f"Well.\n<tool_call>\n{body}\n</tool_call>"))
    assert content(events) == "Well." and not reasons(events)
    ((found, text),) = calls(events)
    assert found == name and json.loads(text) == arguments


def test_text_before_between_and_after_calls() -> None:
    events = events_of([f"I look.\n\n{READ}\n{READ}\n\nDone.\n"])
    assert events == [
        ContentText("I look."),
        CallBegun(0, "call_0", "read"),
        CallArguments(0, '{"path": "a.txt"}'),
        CallEnded(0, ToolCall("call_0", "read", '{"path": "a.txt"}')),
        CallBegun(1, "call_1", "read"),
        CallArguments(1, '{"path": "a.txt"}'),
        CallEnded(1, ToolCall("call_1", "read", '{"path": "a.txt"}')),
        ContentText("\n\nDone.\n"),
    ]


def test_blanks_after_the_last_call_are_no_content() -> None:
    assert content(events_of([READ + "\n\n"])) == ""
    assert content(events_of(["\n \n" + READ])) == ""
    assert content(events_of(["a\n\n"])) == "a\n\n"


def test_of_long_blanks_before_a_call_only_the_last_are_its_own() -> None:
    assert content(events_of(["a" + " " * 100 + READ])) == "a" + " " * 36
    assert content(events_of([READ + " " * 100])) == " " * 36
    unclosed = READ.removesuffix("\n</tool_call>") + " " * 100 + "</tool_call>"
    assert content(events_of([unclosed])) == " " * 100 + "</tool_call>"


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser(numbered())
    assert parser.push('<tool_call>{"name": "w", "arg') == []
    assert parser.push('uments": {"text": "o') == [
        CallBegun(0, "call_0", "w"),
        CallArguments(0, '{"text": "o'),
    ]
    assert parser.push("ne\n") == [CallArguments(0, "ne\\n")]
    assert parser.push('"}') == [CallArguments(0, '"}')]
    assert [type(e) for e in parser.push("}")] == [CallEnded]


def test_content_is_given_at_once_but_for_what_may_begin_a_call() -> None:
    parser = CallParser()
    pushed = [parser.push(piece) for piece in ("a < b", " <to", "ol> c", " ", "<tool_call", "s>")]
    assert [content(events) for events in pushed] == [
        "a < b",
        "",
        " <tool> c",
        "",
        "",
        " <tool_calls>",
    ]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"type": "function", "name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name":"f","arguments":{"b":1,"a":[ 2 ]}}', '{"b": 1, "a": [2]}'),
        ('{"name": "f", "arguments": {"a": "x\ty\n"}}', '{"a": "x\\ty\\n"}'),
        ('{"name": "f", "arguments": {"a": "\\ud83d\\ude00\\ud83d"}}', '{"a": "😀\ufffd"}'),
    ],
)
@pytest.mark.parametrize("closing", ["\n</tool_call>", "</tool_call>", ""])
def test_forms_that_models_write(body: str, wanted: str, closing: str) -> None:
    events = events_of(list(f"<tool_call>{body}{closing}"))
    assert calls(events) == [("f", wanted)] and content(events) == ""


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": <function-name>, "arguments": <args-json-object>}', "'<' begins no value"),
        ("{'name': 'f'}", '"\'" where something else must stand'),
        ('{"name": "f", "arguments": {"a": tru}}', "'tru' is no value"),
        ('{"name": "f", "arguments": {"a": 01}}', "'01' is no value"),
        ('{"name": "f", "arguments": {"a": "\\x"}}', r"\x is no escape"),
        ('{"name": "f", "arguments": {"a": "\\u12g4"}}', "'g' is no hexadecimal digit"),
        ('{"name": "f", "arguments": [1]}', "must be an object"),
        ('{"name": "f", "arguments": "no JSON"}', "are not JSON"),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {}}', "two of 'arguments'"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "no JSON"),
        ('{"name": 7, "arguments": {}}', "its name is no text"),
        ('{"arguments": {}}', "it has no name"),
        ("{}", "it has no name"),
        ('{"name": "f", "arguments": {"a": ' + "[" * 99 + "]" * 99 + "}}", "nested too deeply"),
        ('{"name": "f", "arguments": {"a": 1]}', "']'"),
        ('{"name": "f" "arguments": {}}', "where something else must stand"),
        ('{"name" "f"}', "where a colon must stand"),
        ('{"name": "f", "arguments": {"a": "never closed', "ended inside"),
        ('{"name": "f"', "ended inside"),
    ],
)
def test_what_is_no_call_is_content_and_says_why(body: str, reason: str) -> None:
    text = f"So:\n<tool_call>\n{body}\n</tool_call> x"
    if "ended inside" in reason:
        text = f"So:\n<tool_call>\n{body}"
    events = events_of([text])
    assert content(events) == text and calls(events) == []
    (found,) = reasons(events)
    assert reason in found


@pytest.mark.parametrize("after", ["", "`, then", "\n\nand more", "\nx = 1\n" * 50, " " * 100])
def test_a_marker_in_prose_or_code_is_content(after: str) -> None:
    text = f"print('<tool_call>{after}')"
    events = events_of(list(text))
    assert events == [ContentText(text)]


def test_a_marker_that_never_closes_holds_back_little() -> None:
    parser = CallParser()
    given, longest = "", 0
    text = "In code: <tool_call>\n" + '{"some": "JSON", "that": ["goes on"], "x": "' + "y " * 20_000
    for at, piece in enumerate(text):
        given += content(parser.push(piece))
        longest = max(longest, at + 1 - len(given))
    assert longest <= call_text.MAX_UNNAMED + 100
    assert given + content(parser.finish()) == text


def test_a_call_inside_what_was_no_call_is_found() -> None:
    events = events_of([f"<tool_call> like {READ}"])
    assert calls(events) == [("read", '{"path": "a.txt"}')]
    assert content(events) == "<tool_call> like"


def test_long_arguments_take_time_in_proportion() -> None:
    parser = CallParser()
    steps: list[ToolEvent] = parser.push('<tool_call>{"name": "w", "arguments": {"text": "')
    for _ in range(2000):
        steps += parser.push("word " * 10)
    steps += parser.push('"}}')
    assert sum(isinstance(e, CallArguments) for e in steps) == 2002
    assert isinstance(steps[-1], CallEnded) and len(steps[-1].call.arguments) > 100_000


BARE = '{"name": "read", "arguments": {"path": "a.txt"}}'


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        f"\n {BARE}\n",
        f"```json\n{BARE}\n```",
        f"```\n{BARE}\n```\n",
        f"```json\n{BARE}",
        f"{BARE}\n</tool_call>",
        '{"arguments": {"path": "a.txt"}, "name": "read"}',
        '{"type": "function", "name": "read", "parameters": {"path": "a.txt"}}',
        '{"name": "read", "arguments": "{\\"path\\": \\"a.txt\\"}"}',
        '{\n  "name": "read",\n  "arguments": {\n"path":\n"a.txt"}\n}',
    ],
)
def test_json_without_a_marker_calls_an_offered_tool(text: str) -> None:
    events = events_of(list(text), OFFERED)
    assert calls(events) == [("read", '{"path": "a.txt"}')] and content(events) == ""
    assert calls(events_of(list(text))) == []


def test_several_calls_without_markers() -> None:
    for text in (f"{BARE}\n{BARE}", f"```json\n{BARE}\n{BARE}\n```", f"{BARE}\n{READ}"):
        events = events_of(list(text), OFFERED)
        assert [name for name, _ in calls(events)] == ["read", "read"] and content(events) == ""


def test_text_behind_a_call_without_a_marker_is_content() -> None:
    events = events_of(list(f"```json\n{BARE}\n```\n\nThat reads it."), OFFERED)
    assert len(calls(events)) == 1 and content(events) == "\n\nThat reads it."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "write", "arguments": {"path": "a.txt"}}',
        f"So: {BARE}",
        f"```python\n{BARE}\n```",
        '{"city": "Paris", "name": "read", "arguments": {}}',
        '{"name": "read"}',
        '{"name": "read", "description": "reads", "arguments": {}}',
        '{"name": "read", "arguments": [1]}',
        '{"name": "read", "arguments": {"path": ',
        '{"name": "read", "arguments": {"path": tru}}',
        "```json\n[1, 2]\n```",
        '{"name": 3}',
        " " * 70 + BARE,
        "{",
        "``",
        "```json\n",
        " \n",
    ],
)
def test_other_json_is_text_to_the_byte(text: str) -> None:
    for pieces in (list(text), [text]):
        events = events_of(pieces, OFFERED)
        assert calls(events) == [] and content(events) == text


def test_json_that_is_no_call_is_held_back_up_to_its_first_key() -> None:
    parser = CallParser(numbered(), OFFERED)
    pushed = [content(parser.push(part)) for part in ('{"ci', 'ty"', ': "Pa', 'ris"}')]
    assert pushed == ["", '{"city"', ': "Pa', 'ris"}']
    parser = CallParser(numbered(), OFFERED)
    assert content(parser.push("Hello")) == "Hello"
    parser = CallParser(numbered(), OFFERED)
    assert content(parser.push('{"name": "Al')) == ""
    assert content(parser.push('ice", "age')) == '{"name": "Alice", "age'


def test_parsers_by_name() -> None:
    assert isinstance(parser_of("hermes"), CallParser)
    assert parser_of(None) is None and parser_of("unheard-of") is None
    assert isinstance(parser_of(None, ("f",)), CallParser)


def test_ids_differ() -> None:
    made = {toolcalls.new_call_id() for _ in range(100)}
    assert len(made) == 100 and all(i.startswith("call_") and i.isascii() for i in made)
