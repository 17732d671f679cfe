"""A real small model calls a tool over HTTP, gets the result and answers with it.

Qwen2.5-Coder-0.5B writes its calls as bare JSON, whatever its template asks for; llama.cpp shows
the same text. It would call again and again if nobody asked for an answer.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4tui.config import Settings
from ds4tui.opening import open_assistant
from tests.server.conftest import Running

pytestmark = pytest.mark.dev_models

SYSTEM = (
    "You are a helpful assistant. Use the tools when you need them. "
    "When you have a tool's result, answer in one sentence."
)
ASKED: list[Any] = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is the weather in Paris?"},
]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS}
RESULT = json.dumps({"temperature_celsius": 18, "sky": "sunny"})


@pytest.fixture
def qwen(
    dev_model: Callable[[str], Path], serve: Callable[..., Running], tmp_path: Path
) -> Iterator[Running]:
    settings = replace(Settings(), data_dir=tmp_path)
    assistant = open_assistant(str(dev_model("qwen")), settings, lambda words: None)
    try:
        yield serve(assistant)
    finally:
        assistant.close()


def ask(running: Running, messages: list[Any]) -> Any:
    return running.client.chat.completions.create(
        model=running.assistant.info.name,
        messages=messages,
        tools=[{"type": "function", "function": WEATHER}],
        temperature=0,
        max_tokens=48,
    )


def test_the_model_calls_the_tool_and_answers_with_its_result(qwen: Running) -> None:
    first = ask(qwen, ASKED)
    [choice] = first.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}

    # As a client sends it that keeps arguments as an object.
    function = {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
    sent = [{"id": call.id, "type": "function", "function": function}]
    answer = ask(
        qwen,
        [
            *ASKED,
            {"role": "assistant", "content": "", "tool_calls": sent},
            {"role": "tool", "tool_call_id": call.id, "content": RESULT},
            {"role": "user", "content": "So how is it?"},
        ],
    )
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert "18" in choice.message.content and "sunny" in choice.message.content

    # All of the first request is resident but its last token, which is fed by the second.
    usage = answer.usage
    assert usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens - 1
    assert answer.kv["evaluated"] == usage.prompt_tokens - first.usage.total_tokens + 1
    assert answer.kv["kind"] == "extend"
