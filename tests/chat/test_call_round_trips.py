"""What a template writes of a call is read as that call, and the call as read is written alike; a
reply that was sampled stays what it was when its call comes back."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.replay import ReplayMemory
from ds4tui.chat.toolcalls import SYNTAXES, CallEnded, CallParser, ContentText
from ds4tui.engine.tokenizer import Tokenizer
from tests.chat import formats
from tests.engine.vocabularies import CONTROL, USER_DEFINED, tokenizer_of

SPECIALS = (
    ("<bos>", CONTROL),
    ("<eos>", CONTROL),
    *((f"<|{role}|>", CONTROL) for role in ("system", "user", "assistant", "tool")),
    ("<|turn>", CONTROL),
    ("<turn|>", CONTROL),
    # As converters have it: those with a bar at either end are control tokens.
    *((f"<｜tool▁{name}｜>", CONTROL) for name in ("calls▁begin", "calls▁end", "sep")),
    *((f"<｜tool▁{name}｜>", CONTROL) for name in ("call▁begin", "call▁end", "output▁end")),
    ("<｜tool▁output▁begin｜>", CONTROL),
    *((mark, USER_DEFINED) for mark in ("<|tool_call>", "<tool_call|>", '<|"|>', "｜DSML｜")),
    *((mark, USER_DEFINED) for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>")),
    *((f"<{mark}>", USER_DEFINED) for mark in ("arg_key", "/arg_key", "arg_value", "/arg_value")),
)

_TURNS = formats.roles(
    "{% if m.tool_calls %}<|assistant|>{{ m.content or '' }}CALLS<eos>",
    "{% elif m.role == 'tool' %}RESULT{% else %}<|{{ m.role }}|>{{ m.content }}",
    "{% if m.role == 'assistant' %}<eos>{% endif %}{% endif %}",
)
_OPENED = "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|assistant|>{% endif %}"


def _template(calls: str, result: str, before: str = "", tools: bool = True) -> str:
    told = "{% if tools %}<|system|>{% for t in tools %}{{ t|tojson }}{% endfor %}{% endif %}"
    turns = _TURNS.replace("CALLS", calls).replace("RESULT", result)
    return before + "{{ bos_token }}" + told * tools + turns + _OPENED


_EACH = "{% for c in m.tool_calls %}{{ JOINT }}{% set f = c.function %}"
_DEEPSEEK_RESULT = "<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>"
_GEMMA = """{%- macro told(v) %}{% if v is string %}{{ '<|"|>' ~ v ~ '<|"|>' }}
{%- elif v is mapping %}{{ '{' }}{% for key, value in v|dictsort %}{{ key ~ ':' ~ told(value) }}
{{- ',' if not loop.last }}{% endfor %}{{ '}' }}{% elif v is sequence %}[{% for item in v %}
{{- told(item) ~ (',' if not loop.last else '') }}{% endfor %}]{% else %}{{ v|tojson }}{% endif %}
{%- endmacro %}"""
TEMPLATES = {
    "deepseek-v3": _template(
        "<｜tool▁calls▁begin｜>"
        + _EACH.replace("JOINT", "'' if loop.first else '\n'")
        + "{{ '<｜tool▁call▁begin｜>' + c.type + '<｜tool▁sep｜>' + f.name + '\n```json\n' }}"
        "{{ f.arguments + '\n```<｜tool▁call▁end｜>' }}{% endfor %}<｜tool▁calls▁end｜>",
        _DEEPSEEK_RESULT,
        tools=False,
    ),
    "deepseek-v3.1": _template(
        "<｜tool▁calls▁begin｜>"
        + _EACH.replace("JOINT", "''")
        + "{{ '<｜tool▁call▁begin｜>' + f.name + '<｜tool▁sep｜>' + f.arguments }}"
        "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
        _DEEPSEEK_RESULT,
        tools=False,
    ),
    "dsml-v4": _template(
        "{{ '\n\n<｜DSML｜tool_calls>\n' }}"
        + _EACH.replace("JOINT", "''")
        + "{{ '<｜DSML｜invoke name=\"' ~ f.name ~ '\">\n' }}"
        "{% for k, v in f.arguments.items() %}"
        "{{ '<｜DSML｜parameter name=\"' ~ k ~ '\" string=\"' }}"
        "{{ 'true' if v is string else 'false' }}"
        "{{ '\">' ~ (v if v is string else v|tojson) ~ '</｜DSML｜parameter>\n' }}{% endfor %}"
        "{{ '</｜DSML｜invoke>\n' }}{% endfor %}</｜DSML｜tool_calls>",
        "<|user|><tool_result>{{ m.content }}</tool_result><|assistant|>",
    ),
    "glm-5": _template(
        _EACH.replace("JOINT", "''")
        + "<tool_call>{{ f.name }}{% for k, v in f.arguments.items() %}"
        "<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v|tojson }}</arg_value>"
        "{% endfor %}</tool_call>{% endfor %}",
        "<|tool|><tool_response>{{ m.content }}</tool_response><|assistant|>",
    ),
    "gemma": _template(
        _EACH.replace("JOINT", "''") + "<|tool_call>call:{{ f.name }}{{ told(f.arguments) }}"
        "<tool_call|>{% endfor %}",
        "<|tool_response>response:x{value:{{ told(m.content) }}}<tool_response|>",
        before=_GEMMA,
    ),
}

TOOLS = (
    Tool(
        "write",
        "Write a file.",
        json.dumps(
            {
                "type": "object",
                "properties": {
                    "items": {"type": "array"},
                    "n": {"type": "integer"},
                    "path": {"type": "string"},
                },
            }
        ),
    ),
    Tool("stop", "", '{"type": "object", "properties": {}}'),
)
ARGUMENTS: dict[str, Any] = {"items": [1, "a, b"], "n": 2, "path": 'é "x"\n  y'}
CALLS = (
    ToolCall("c1", "write", json.dumps(ARGUMENTS, ensure_ascii=False)),
    ToolCall("c2", "stop", "{}"),
)
ASKED = [Message("user", "Write it.")]
RESULTS = [Message("tool", "Done.", tool_call_id="c1"), Message("tool", "Ok.", tool_call_id="c2")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    return tokenizer_of(folder, *SPECIALS, bos_token_id=257, eos_token_id=258)


def reply_of(made: ChatFormat, calls: tuple[ToolCall, ...] = CALLS) -> tuple[str, list[int]]:
    """What the template makes of a reply with these calls, as text and in tokens."""
    said = Message("assistant", "I do.", tool_calls=calls)
    before = made.render(ASKED, TOOLS).ids.tolist()
    whole = made.render([*ASKED, said, *RESULTS], TOOLS).ids.tolist()
    assert whole[: len(before)] == before
    ids = whole[len(before) : whole.index(258, len(before))]
    return made.tokenizer.decode(ids), ids


def read(made: ChatFormat, text: str) -> tuple[tuple[ToolCall, ...], str]:
    parser = CallParser(
        offered={t.name: t.parameters for t in TOOLS}, syntax=SYNTAXES[made.tool_syntax or ""]
    )
    events = [*(event for character in text for event in parser.push(character)), *parser.finish()]
    content = "".join(event.text for event in events if isinstance(event, ContentText))
    return tuple(event.call for event in events if isinstance(event, CallEnded)), content


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_is_read_as_it_is_written_and_written_as_it_is_read(
    tokenizer: Tokenizer, name: str
) -> None:
    made = ChatFormat(tokenizer, TEMPLATES[name])
    assert made.tool_syntax == name
    text, _ = reply_of(made)
    calls, content = read(made, text)
    assert content == "I do."
    assert [(c.name, json.loads(c.arguments)) for c in calls] == [
        ("write", ARGUMENTS),
        ("stop", {}),
    ]
    assert reply_of(made, calls)[0] == text


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_sampled_reply_is_replayed_when_its_call_comes_back(
    tokenizer: Tokenizer, name: str
) -> None:
    made, memory = ChatFormat(tokenizer, TEMPLATES[name]), ReplayMemory()
    _, ids = reply_of(made)
    # Letter by letter, as no encoder writes it.
    sampled = [part for i in ids for part in (tokenizer.token_bytes(i) if i < 257 else [i])]
    calls, content = read(made, tokenizer.decode(sampled))
    assert not tokenizer.has_silent(sampled)
    memory.remember(ASKED, content, sampled, calls)
    again = [
        replace(c, arguments=json.dumps(json.loads(c.arguments), sort_keys=True)) for c in calls
    ]
    sent = [*ASKED, Message("assistant", content, tool_calls=tuple(again)), *RESULTS]
    before = made.render(ASKED, TOOLS).ids.tolist()
    whole = made.render(memory.recall(sent), TOOLS).ids.tolist()
    assert whole[: len(before) + len(sampled)] == [*before, *sampled]


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.1"])
def test_deepseeks_tools_are_told_in_the_system_text(tokenizer: Tokenizer, name: str) -> None:
    made = ChatFormat(tokenizer, TEMPLATES[name])
    told = made.render_text([Message("system", "Be brief."), *ASKED], TOOLS)
    system = told.partition("<|user|>")[0]
    assert system.startswith("<bos><|system|>Be brief.\n\n")
    assert "### write\nDescription: Write a file.\n\nParameters: {" in system
    assert "<tool_call>" not in told and "tool▁calls▁begin" in system


def test_a_reply_with_calls_only_is_written_once(tokenizer: Tokenizer) -> None:
    """R1's template writes content that is not none once more, behind the calls."""
    calls = TEMPLATES["deepseek-v3"]
    twice = calls.replace(
        "<｜tool▁calls▁end｜><eos>",
        "<｜tool▁calls▁end｜><eos>{% if m.content is not none %}<|assistant|>{{ m.content }}<eos>"
        "{% endif %}",
    )
    assert twice != calls
    said = Message("assistant", "", tool_calls=CALLS)
    for template in (calls, twice):
        written = ChatFormat(tokenizer, template).render_text([*ASKED, said, *RESULTS], TOOLS)
        assert written.count("<|assistant|>") == 1


def test_gemma_stops_where_it_waits_for_a_result(tmp_path: Path) -> None:
    made = tokenizer_of(tmp_path, *SPECIALS, ("<|tool_response>", USER_DEFINED))
    waits = made.user_defined_texts["<|tool_response>"]
    assert waits in ChatFormat(made, TEMPLATES["gemma"]).stop_token_ids
