"""A real small model is held to a schema and to calls over HTTP, and what was said is reused."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from ds4tui.config import Settings
from ds4tui.opening import open_assistant
from tests.server.conftest import Running

pytestmark = pytest.mark.dev_models

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "country": {"type": "string"},
        "people_millions": {"type": "integer", "minimum": 0, "maximum": 50},
    },
    "required": ["city", "country", "people_millions"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
ASKED: list[Any] = [{"role": "user", "content": "Which city is the capital of France?"}]
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time", "parameters": NOTHING}},
]


@pytest.fixture(scope="module")
def model(dev_model: Callable[[str], Path]) -> Path:
    return dev_model("qwen")


@pytest.fixture
def qwen(model: Path, serve: Callable[..., Running], tmp_path: Path) -> Iterator[Running]:
    settings = replace(Settings(), data_dir=tmp_path, kv_disk="off")
    assistant = open_assistant(str(model), settings, lambda words: None)
    try:
        yield serve(assistant)
    finally:
        assistant.close()


def ask(running: Running, messages: list[Any], **more: Any) -> Any:
    return running.client.chat.completions.create(
        model=running.assistant.info.name, messages=messages, temperature=0, **more
    )


def test_forms_over_http(qwen: Running) -> None:
    free = ask(qwen, ASKED, max_tokens=30)
    assert "{" not in free.choices[0].message.content
    held = ask(qwen, ASKED, response_format=SCHEMA, max_tokens=100)
    [choice] = held.choices
    said = json.loads(choice.message.content)
    assert choice.finish_reason == "stop"
    assert (said["city"], said["country"]) == ("Paris", "France")
    assert held.kv["evaluated"] == 1, "a form changes nothing in the prompt"

    # Cut short it says so, and is what the whole begins with.
    cut = ask(qwen, ASKED, response_format=SCHEMA, max_tokens=6)
    assert cut.choices[0].finish_reason == "length"
    assert choice.message.content.startswith(cut.choices[0].message.content)

    # What was held to a form is replayed like any reply.
    answer = {"role": "assistant", "content": json.dumps(said, indent=None)}
    again = [*ASKED, {"role": "assistant", "content": choice.message.content}]
    assert json.loads(answer["content"]) == said
    more = ask(qwen, [*again, {"role": "user", "content": "And of Spain?"}], max_tokens=4)
    assert more.kv["kind"] in ("extend", "rewind", "restore")
    assert more.kv["kept"] >= held.usage.total_tokens - 2


def test_a_call_is_made_when_it_is_required(qwen: Running) -> None:
    asked: list[Any] = [{"role": "user", "content": "Tell me a joke about cats."}]
    free = ask(qwen, asked, tools=TOOLS, tool_choice="none", max_tokens=20)
    assert free.choices[0].finish_reason in ("length", "stop")
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice, names in (("required", {"get_time", "get_weather"}), (named, {"get_time"})):
        stream = ask(qwen, asked, tools=TOOLS, tool_choice=choice, max_tokens=200, stream=True)
        deltas = [chunk.choices[0] for chunk in stream if chunk.choices]
        calls = [call for one in deltas for call in one.delta.tool_calls or ()]
        assert calls[0].function.name in names
        assert isinstance(json.loads("".join(c.function.arguments or "" for c in calls)), dict)
        assert deltas[-1].finish_reason == "tool_calls"
        assert not any(one.delta.content for one in deltas)


ODD = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["KELVIN", "RANKINE"]},
        "days": {"type": "integer", "minimum": 3, "maximum": 5},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}


def test_strict_tools_are_called_by_their_schema_and_their_calls_replayed(qwen: Running) -> None:
    asked: list[Any] = [
        {"role": "user", "content": "What is the weather in Paris for 1 day? Use the tool."}
    ]
    function = {"name": "get_weather", "description": "The weather of a city.", "parameters": ODD}
    tools = [{"type": "function", "function": {**function, "strict": True}}]
    reply = ask(qwen, asked, tools=tools, max_tokens=120)
    [choice] = reply.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit", "days"}
    assert arguments["unit"] in ("KELVIN", "RANKINE") and arguments["days"] in (3, 4, 5)

    # Written anew, in another order, it is what was sampled; with another value it is not.
    def sent_back(values: dict[str, Any]) -> Any:
        told = {"name": "get_weather", "arguments": json.dumps(values, indent=1)}
        calls = [{"id": call.id, "type": "function", "function": told}]
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        messages = [*asked, {"role": "assistant", "content": None, "tool_calls": calls}, result]
        return ask(qwen, messages, tools=tools, max_tokens=1)

    again = sent_back(dict(reversed(arguments.items())))
    assert again.kv["kept"] >= reply.usage.total_tokens - 1
    other = sent_back({**arguments, "days": 99})
    assert other.kv["kept"] < reply.usage.total_tokens - 1


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "strange"}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_forms_that_cannot_be_had_are_a_400(qwen: Running, more: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(qwen, ASKED, **more)
    assert param in (raised.value.param or "")
