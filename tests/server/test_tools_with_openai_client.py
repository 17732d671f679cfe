"""Tools, tool calls and reasoning, as the official OpenAI client sends and reads them."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]

ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Paris"}}\n</tool_call>'
ROME = CALL.replace("Paris", "Rome")


def thinking(reply: str) -> FakeAssistant:
    assistant = FakeAssistant(reply)
    assistant.format.template = "fake <think>"
    return assistant


def ask(running: Running, messages: list[Any] = ASKED, **options: Any) -> Any:
    options = {"tools": TOOLS, **options}
    return running.client.chat.completions.create(model="fake", messages=messages, **options)


def test_a_call_comes_whole(serve: Serve) -> None:
    running = serve(thinking(f"<think>\nHm.\n</think>\n\n{CALL}\n{ROME}"))
    [choice] = ask(running).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.reasoning_content == "Hm."
    first, second = choice.message.tool_calls
    assert (first.type, first.function.name) == ("function", "get_weather")
    assert first.function.arguments == '{"city": "Paris"}'
    assert json.loads(second.function.arguments) == {"city": "Rome"}
    assert first.id != second.id
    [prompt] = running.prompts
    assert "properties" in prompt


def test_a_call_is_streamed_as_it_is_written(serve: Serve) -> None:
    running = serve(thinking(f"<think>Hm.</think>I look.\n{CALL}\n{ROME}"))
    chunks = [c for c in ask(running, stream=True) if c.choices]
    deltas = [c.choices[0].delta for c in chunks]
    assert "".join(d.content or "" for d in deltas) == "I look."
    thoughts = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert thoughts == "Hm."
    pieces = [t for d in deltas for t in d.tool_calls or []]
    begun = [t for t in pieces if t.id]
    assert [(t.index, t.type, t.function.name) for t in begun] == [
        (0, "function", "get_weather"),
        (1, "function", "get_weather"),
    ]
    for index, city in enumerate(["Paris", "Rome"]):
        parts = [t.function.arguments for t in pieces if t.index == index]
        assert len(parts) > 5  # a byte a token here
        assert json.loads("".join(parts)) == {"city": city}
    ends = [c.choices[0].finish_reason for c in chunks]
    assert ends == [None] * (len(ends) - 1) + ["tool_calls"]


def test_the_clients_own_stream_helper_puts_it_together(serve: Serve) -> None:
    running = serve(FakeAssistant(f"I look.\n{CALL}"))
    options: dict[str, Any] = {"model": "fake", "messages": ASKED, "tools": TOOLS}
    with running.client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        [choice] = stream.get_final_completion().choices
    assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    [call] = choice.message.tool_calls or []
    assert call.function.name == "get_weather" and call.function.arguments == '{"city":"Paris"}'
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")


def as_sent(message: Any) -> Any:
    return message.model_dump(exclude_none=True)


def reordered(message: Any) -> Any:
    """As clients that keep a model of their own of it send it back."""
    [call] = message.tool_calls
    arguments = json.dumps(json.loads(call.function.arguments), indent=2)
    function = {"arguments": arguments, "name": call.function.name}
    return {
        "tool_calls": [{"function": function, "type": "function", "id": "another"}],
        "content": " I look.\n ",
        "role": "assistant",
    }


def as_object(message: Any) -> Any:
    sent = as_sent(message)
    [call] = sent["tool_calls"]
    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    del sent["reasoning_content"]
    return sent


@pytest.mark.parametrize("send_back", [as_sent, reordered, as_object])
def test_what_was_called_is_resident_when_the_result_comes(serve: Serve, send_back: Any) -> None:
    def reply(request: Any) -> str:
        return (
            "It is sunny."
            if b"18 C" in bytes(i for i in request.timeline.ids if i < 256)
            else (f"<think>Hm.</think>I look.\n{CALL}")
        )

    assistant = thinking("")
    assistant.engine.reply = reply
    running = serve(assistant)
    first = ask(running)
    message = send_back(first.choices[0].message)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "18 C"}
    second = ask(running, [*ASKED, message, result])
    assert second.choices[0].message.content == "It is sunny."
    assert second.choices[0].finish_reason == "stop"
    cached = second.usage.prompt_tokens_details.cached_tokens
    # All but the last sampled token, which is fed with what follows it.
    assert cached == first.usage.total_tokens - 1
    third = ask(running, [*ASKED, as_sent(replaced(first, "Rome")), result])
    assert third.usage.prompt_tokens_details.cached_tokens < first.usage.total_tokens - 1


def replaced(completion: Any, city: str) -> Any:
    message = completion.choices[0].message.model_copy(deep=True)
    message.tool_calls[0].function.arguments = json.dumps({"city": city})
    return message


def test_json_without_markers_is_a_call_only_of_an_offered_tool(serve: Serve) -> None:
    bare = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
    running = serve(FakeAssistant(f"```json\n{bare}\n```"))
    [choice] = ask(running).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    other = [{"type": "function", "function": {"name": "other", "parameters": PARAMETERS}}]
    for options in ({"tools": other}, {"tools": []}, {"tool_choice": "none"}):
        [choice] = ask(running, **options).choices
        assert choice.message.content == f"```json\n{bare}\n```"
        assert choice.finish_reason == "stop" and choice.message.tool_calls is None
    called, _, _, not_called = running.prompts
    assert called == not_called  # what is resident stays so


def test_a_call_that_is_cut_off_is_no_call(serve: Serve) -> None:
    running = serve(FakeAssistant(CALL))
    [choice] = ask(running, max_tokens=60).choices
    assert (choice.finish_reason, choice.message.content) == ("length", CALL[:60])
    chunks = [c.choices[0] for c in ask(running, max_tokens=60, stream=True)]
    assert chunks[-1].finish_reason == "length"


def test_logprobs_are_of_all_sampled_tokens(serve: Serve) -> None:
    reply = f"<think>Hm.</think>I look.\n{CALL}"
    running = serve(thinking(reply))
    [choice] = ask(running, logprobs=True).choices
    assert "".join(one.token for one in choice.logprobs.content) == reply
    streamed = [c.choices[0].logprobs for c in ask(running, logprobs=True, stream=True)]
    told = [one.token for logprobs in streamed if logprobs for one in logprobs.content]
    assert "".join(told) == reply


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("always", "or name a function"),
        ({"type": "function", "function": {"name": "x"}}, 'no tool "x"'),
    ],
)
def test_a_choice_that_cannot_be_obeyed_is_a_400(serve: Serve, choice: Any, said: str) -> None:
    running = serve(FakeAssistant("Yes."))
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        ask(running, tool_choice=choice)
    assert refused.value.param == "tool_choice"


def test_thinking_is_switched_by_the_request(serve: Serve) -> None:
    running = serve(thinking("Hm.</think>Yes."))
    on = {"chat_template_kwargs": {"enable_thinking": True}}
    message = ask(running, extra_body=on).choices[0].message
    assert (message.reasoning_content, message.content) == ("Hm.", "Yes.")
    message = ask(running).choices[0].message
    assert message.content == "Hm.</think>Yes."
