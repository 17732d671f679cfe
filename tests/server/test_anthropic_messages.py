"""POST /v1/messages as the official Anthropic client sends and reads it, over a real socket."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest

from ds4tui.chat.messages import Message
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import EngineError, RequestError
from ds4tui.server.anthropic_messages import parse_messages
from ds4tui.server.fields import Fields
from ds4tui.server.service import Service
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]
HELLO: list[Any] = [{"role": "user", "content": "Hello?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [{"name": "get_weather", "description": "Of a city.", "input_schema": SCHEMA}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PICTURE = {"type": "base64", "media_type": "image/png", "data": PIXEL}


def thinking(reply: str) -> FakeAssistant:
    assistant = FakeAssistant(reply)
    assistant.format.template = "fake <think>"
    return assistant


@pytest.fixture
def ask(serve: Serve) -> Iterator[Callable[..., Any]]:
    def asked(running: Running, messages: Any = HELLO, **more: Any) -> Any:
        fields = {"model": "fake", "max_tokens": 500, **more}
        with client(running) as connected:
            return connected.messages.create(messages=messages, **fields)

    yield asked


def client(running: Running, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=running.handle.url, api_key=key, max_retries=0, timeout=30)


def test_a_whole_reply(serve: Serve, ask: Callable[..., Any]) -> None:
    running = serve(FakeAssistant("Bonjour."))
    reply = ask(running, system="Be brief.", extra_body={"temperature": 0.5})
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", "fake")
    assert [(block.type, block.text) for block in reply.content] == [("text", "Bonjour.")]
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    prompt = len(running.engine.requests[0].timeline)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (prompt, 8)
    assert running.engine.requests[0].sampling.temperature == 0.5
    assert "Be brief." in running.prompts[0]
    assert reply.kv["evaluated"] == prompt


def test_reasoning_text_and_calls_are_blocks(serve: Serve, ask: Callable[..., Any]) -> None:
    running = serve(thinking(f"<think>Hm.</think>I look.\n{CALL}"))
    reply = ask(running, tools=TOOLS)
    thought, text, call = reply.content
    assert (thought.type, thought.thinking, text.text) == ("thinking", "Hm.", "I look.")
    assert (call.type, call.name, call.input) == ("tool_use", "get_weather", {"city": "Paris"})
    assert reply.stop_reason == "tool_use"


def test_a_stream_is_the_same_message(serve: Serve) -> None:
    running = serve(thinking(f"<think>Hm.</think>I look.\n{CALL}\n{CALL}"))
    with client(running) as connected:
        with connected.messages.stream(
            model="fake", max_tokens=500, messages=HELLO, tools=TOOLS
        ) as stream:
            events = list(stream)
            message = stream.get_final_message()
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[2].input == {"city": "Paris"}
    assert message.content[2].id != message.content[3].id
    assert message.stop_reason == "tool_use"
    prompt = len(running.engine.requests[0].timeline)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (prompt, 0)
    starts = [e.index for e in events if e.type == "content_block_start"]
    stops = [e.index for e in events if e.type == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    assert events[0].type == "message_start" and events[-1].type == "message_stop"


def test_no_block_is_opened_for_nothing(serve: Serve) -> None:
    running = serve(thinking(f"<think>Hm.</think>\n\n{CALL}"))
    with client(running) as connected:
        with connected.messages.stream(
            model="fake", max_tokens=500, messages=HELLO, tools=TOOLS
        ) as stream:
            kinds = [e.content_block.type for e in stream if e.type == "content_block_start"]
    assert kinds == ["thinking", "tool_use"]


def test_stop_reasons(serve: Serve, ask: Callable[..., Any]) -> None:
    running = serve(FakeAssistant("one two three"))
    assert ask(running, max_tokens=4).stop_reason == "max_tokens"
    stopped = ask(running, stop_sequences=[" three"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " three")
    assert stopped.content[0].text == "one two"


@pytest.mark.parametrize("streams", [False, True])
def test_cached_tokens_are_told_to_those_who_ask_for_caching(
    serve: Serve, ask: Callable[..., Any], streams: bool
) -> None:
    running = serve(FakeAssistant("Yes."))
    first = ask(running)
    again = [*HELLO, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "So?"}]
    prompt = first.usage.input_tokens + first.usage.output_tokens
    marked = [{"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}}]
    asked = [*again[:-1], {"role": "user", "content": marked}]
    if streams:
        with client(running) as connected:
            with connected.messages.stream(model="fake", max_tokens=500, messages=asked) as stream:
                usage = stream.get_final_message().usage
    else:
        usage = ask(running, asked).usage
    assert usage.cache_read_input_tokens >= prompt - 1
    total = len(running.engine.requests[-1].timeline)
    assert usage.input_tokens + usage.cache_read_input_tokens == total
    plain = ask(running, again)
    assert (plain.usage.input_tokens, plain.usage.cache_read_input_tokens) == (total, 0)
    assert plain.kv["kept"] == total - 1


def test_tool_results_errors_and_pictures_come_in(serve: Serve) -> None:
    service = Service(FakeAssistant(), SamplingDefaults())
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "is_error": True,
        "content": [{"type": "text", "text": "no net"}, {"type": "image", "source": PICTURE}],
    }
    said = {"type": "text", "text": "And now?"}
    body = {
        "max_tokens": 5,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f;"},
            {"type": "text", "text": "You are a helper."},
        ],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": ""},
                    {"type": "text", "text": "I look."},
                    use,
                ],
            },
            {"role": "user", "content": [result, said]},
        ],
    }
    system, asked, looked, answered, last = parse_messages(Fields(body), service).messages
    assert system == Message("system", "You are a helper.")
    assert (asked.text, last.text) == ("Weather?", "And now?")
    assert (looked.reasoning, looked.text) == ("Hm.", "I look.")
    [call] = looked.tool_calls
    assert (call.id, call.name, json.loads(call.arguments)) == (
        "t1",
        "get_weather",
        {"city": "Paris"},
    )
    assert (answered.role, answered.text) == ("tool", "Error: no net")
    assert (answered.tool_call_id, answered.name) == ("t1", "get_weather")
    [image] = answered.images
    assert (image.at, image.data[:4]) == (len(answered.text), b"\x89PNG")


@pytest.mark.parametrize(
    ("choice", "kind", "names", "several"),
    [
        ({"type": "auto"}, "auto", (), True),
        ({"type": "none"}, "none", (), True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", (), False),
        ({"type": "tool", "name": "get_weather"}, "required", ("get_weather",), False),
    ],
)
def test_choices(choice: Any, kind: str, names: tuple[str, ...], several: bool) -> None:
    service = Service(FakeAssistant(), SamplingDefaults())
    body = {"max_tokens": 5, "messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    read = parse_messages(Fields(body), service).choice
    assert (read.kind, read.names, read.several) == (kind, names, several)


def test_the_form_of_an_answer_and_thinking() -> None:
    service = Service(FakeAssistant(), SamplingDefaults())
    body: dict[str, Any] = {"max_tokens": 5, "messages": HELLO}
    for wanted in (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ):
        answer = parse_messages(Fields({**body, **wanted}), service).answer
        assert answer is not None and json.loads(answer.schema) == SCHEMA
    for sent, thinks in (("enabled", True), ("disabled", False), ("adaptive", None)):
        asked = {**body, "thinking": {"type": sent, "budget_tokens": 1024}}
        assert parse_messages(Fields(asked), service).thinking is thinks


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_tokens": None}, "max_tokens must be given"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0].type: blocks of type 'document'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].source",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
                        ],
                    }
                ]
            },
            "messages[0].content[0].source.url: pictures are not fetched",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.type"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], said: str) -> None:
    service = Service(FakeAssistant(), SamplingDefaults())
    body = {"max_tokens": 5, "messages": HELLO, **wrong}
    with pytest.raises(RequestError) as raised:
        parse_messages(Fields(body), service)
    assert said in str(raised.value)


def test_errors_have_anthropics_shape(serve: Serve, ask: Callable[..., Any]) -> None:
    running = serve(FakeAssistant("Yes.", context_tokens=64))
    with pytest.raises(anthropic.BadRequestError) as wrong:
        ask(running, [{"role": "user", "content": "x" * 200}])
    assert wrong.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": wrong.value.body["error"]["message"]},  # type: ignore[index,call-overload]
        "param": None,
    }
    assert "64" in str(wrong.value)
    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(running, model="claude-opus")
    assert "not_found_error" in str(unknown.value.body)


def test_the_key_in_anthropics_header(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."), api_key="secret")
    with client(running, "secret") as connected:
        reply = connected.messages.create(model="fake", max_tokens=9, messages=HELLO)
    assert reply.content[0].type == "text"
    with client(running, "wrong") as connected, pytest.raises(anthropic.AuthenticationError):
        connected.messages.create(model="fake", max_tokens=9, messages=HELLO)


def test_counting_is_what_the_request_would_have(serve: Serve, ask: Callable[..., Any]) -> None:
    running = serve(FakeAssistant("Yes."))
    with client(running) as connected:
        counted = connected.messages.count_tokens(
            model="fake", messages=HELLO, tools=TOOLS, system="Be brief."
        )
    assert running.engine.requests == []
    reply = ask(running, tools=TOOLS, system="Be brief.")
    assert counted.input_tokens == reply.usage.input_tokens


def test_an_error_in_a_stream_is_an_event(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes.", error=EngineError("broken"), fail_after=2))
    with client(running) as connected, pytest.raises(anthropic.APIStatusError, match="broken"):
        with connected.messages.stream(model="fake", max_tokens=9, messages=HELLO) as stream:
            list(stream)


def test_edits_of_the_history_are_not_made_and_that_is_said(serve: Serve) -> None:
    """Claude Code asks for them with every request."""
    running = serve()
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    asked: dict[str, Any] = {"model": "fake", "max_tokens": 50, "messages": HELLO}
    with client(running) as connected:
        told = connected.messages.create(**asked, extra_body={"context_management": edits})
        assert told.model_extra["context_management"] == {"applied_edits": []}
        assert "context_management" not in (connected.messages.create(**asked).model_extra or {})
        more = {"context_management": edits}
        events = list(connected.messages.create(**asked, stream=True, extra_body=more))
    ended = next(event for event in events if event.type == "message_delta")
    assert ended.model_extra["context_management"] == {"applied_edits": []}
    assert len(set(running.prompts)) == 1


def test_a_tool_is_strict_if_it_says_so() -> None:
    service = Service(FakeAssistant(), SamplingDefaults())
    tools = [{**TOOLS[0], "strict": True}, {**TOOLS[0], "name": "other"}]
    body = {"max_tokens": 5, "messages": HELLO, "tools": tools}
    assert [tool.strict for tool in parse_messages(Fields(body), service).tools] == [True, False]
