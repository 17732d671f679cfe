"""POST /v1/responses as the official client sends and reads it, over a real socket."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from ds4tui.chat.messages import Message
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import EngineError, RequestError
from ds4tui.server.fields import Fields
from ds4tui.server.openai_responses import parse_responses
from ds4tui.server.service import Service
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def thinking(reply: str) -> FakeAssistant:
    assistant = FakeAssistant(reply)
    assistant.format.template = "fake <think>"
    return assistant


def ask(running: Running, given: Any = "Hello?", **more: Any) -> Any:
    return running.client.responses.create(model="fake", input=given, **more)


def test_a_whole_response(serve: Serve) -> None:
    running = serve(FakeAssistant("Bonjour."))
    reply = ask(running, instructions="Be brief.", temperature=0.5, max_output_tokens=50)
    assert (reply.object, reply.status, reply.model) == ("response", "completed", "fake")
    assert reply.output_text == "Bonjour."
    assert (reply.instructions, reply.temperature) == ("Be brief.", 0.5)
    prompt = len(running.engine.requests[0].timeline)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (prompt, 8)
    assert reply.usage.total_tokens == prompt + 8
    assert reply.kv["evaluated"] == prompt
    assert "Be brief." in running.prompts[0]


def test_reasoning_text_and_calls_are_items(serve: Serve) -> None:
    running = serve(thinking(f"<think>Hm.</think>I look.\n{CALL}"))
    thought, message, call = ask(running, tools=[TOOL]).output
    assert (thought.type, thought.content[0].text) == ("reasoning", "Hm.")
    assert message.content[0].text == "I look."
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "get_weather",
        {"city": "Paris"},
    )


def test_reasoning_is_counted_in_a_whole_response_as_in_a_stream(serve: Serve) -> None:
    running = serve(thinking("<think>Hm.</think>Yes."))
    whole = ask(running).usage.output_tokens_details.reasoning_tokens
    *_, ended = ask(running, stream=True)
    assert whole == ended.response.usage.output_tokens_details.reasoning_tokens > 0


PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin"'},
}
AGENTS: dict[str, Any] = {
    "type": "namespace",
    "name": "agents",
    "description": "Sub-agents.",
    "tools": [{**TOOL, "name": "stop"}],
}


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_custom_tools_take_free_text(serve: Serve) -> None:
    """Codex offers its patches so."""
    text = '*** Begin\n+ a "b"'
    running = serve(FakeAssistant(calling("apply_patch", input=text)))
    [call] = ask(running, tools=[PATCH]).output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", text)
    assert "All that is said to the tool" in running.prompts[0]
    events = list(ask(running, tools=[PATCH], stream=True))
    kinds = [event.type for event in events]
    assert "response.function_call_arguments.delta" not in kinds
    assert [e.delta for e in events if e.type.endswith("input.delta")] == [text]
    assert [e.input for e in events if e.type.endswith("input.done")] == [text]
    [item] = events[-1].response.output
    assert (item.type, item.input, item.status) == ("custom_tool_call", text, "completed")

    output = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done!"}
    sent = [{"role": "user", "content": "Hello?"}, item.model_dump(exclude_none=True), output]
    ended = ask(running, sent, tools=[PATCH])
    assert ended.kv["kind"] == "extend" and ended.usage.input_tokens_details.cached_tokens


@pytest.mark.parametrize("said", ['{"patch": "x"}', '{"a": "x", "b": 1}', "{}", '{"input": {}}'])
def test_what_a_model_says_to_a_custom_tool_arrives_whatever_it_calls_it(
    serve: Serve, said: str
) -> None:
    running = serve(FakeAssistant(calling("apply_patch", **json.loads(said))))
    [call] = ask(running, tools=[PATCH]).output
    assert call.input == ("x" if said == '{"patch": "x"}' else said)


def test_tools_of_a_namespace_go_by_both_names(serve: Serve) -> None:
    running = serve(FakeAssistant(calling("agents__stop", city="Paris")))
    [call] = ask(running, tools=[AGENTS, TOOL]).output
    assert (call.type, call.name, call.namespace) == ("function_call", "stop", "agents")
    again = call.model_dump(exclude_none=True)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Done!"}
    sent = [{"role": "user", "content": "Hello?"}, again, output]
    assert ask(running, sent, tools=[AGENTS, TOOL]).kv["kind"] == "extend"
    named = read(
        tools=[AGENTS], tool_choice={"type": "function", "name": "stop", "namespace": "agents"}
    )
    assert named.choice.names == ("agents__stop",)
    within = read(tools=[{**AGENTS, "name": "mcp__files__"}])
    assert [tool.name for tool in within.tools] == ["mcp__files__stop"]


def test_a_stream_begins_and_ends_with_the_whole_response(serve: Serve) -> None:
    running = serve(thinking(f"<think>Hm.</think>I look.\n{CALL}"))
    events = list(ask(running, tools=[TOOL], stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.id == events[-1].response.id
    assert events[0].response.status == "in_progress" and events[0].response.output == []
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.type for item in done] == ["reasoning", "message", "function_call"]
    assert [item.id for item in events[-1].response.output] == [item.id for item in done]
    said = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(said) == "I look."
    written = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(written)) == {"city": "Paris"}
    assert done[2].arguments == '{"city": "Paris"}'
    indexes = [e.output_index for e in events if e.type == "response.output_item.added"]
    assert indexes == [0, 1, 2]
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens > 0


def test_the_clients_own_reading_of_a_stream(serve: Serve) -> None:
    running = serve(FakeAssistant("One two."))
    with running.client.responses.stream(model="fake", input="Count.") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "One two."


def test_a_response_that_is_cut_says_so(serve: Serve) -> None:
    running = serve(FakeAssistant("one two three"))
    reply = ask(running, max_output_tokens=4)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert list(ask(running, max_output_tokens=4, stream=True))[-1].type == "response.incomplete"


def test_a_failure_in_a_stream_is_a_failed_response(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes.", error=EngineError("broken"), fail_after=2))
    last = list(ask(running, stream=True))[-1]
    assert last.type == "response.failed" and last.response.status == "failed"
    assert "broken" in last.response.error.message


@pytest.mark.parametrize("streams", [False, True])
def test_going_on_from_a_response_evaluates_only_what_is_new(serve: Serve, streams: bool) -> None:
    running = serve(FakeAssistant("Yes."))
    first = ask(running, "Hello?", instructions="Be brief.", stream=streams)
    name = list(first)[-1].response.id if streams else first.id
    again = ask(running, "So?", instructions="Be brief.", previous_response_id=name)
    before = running.engine.requests[0].timeline
    assert again.usage.input_tokens_details.cached_tokens >= len(before) + 3
    assert running.prompts[1].count("Be brief.") == 1
    assert "Hello?" in running.prompts[1] and "Yes." in running.prompts[1]
    kept = running.client.responses.retrieve(again.id)
    assert kept.output_text == "Yes."
    running.client.responses.delete(again.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        running.client.responses.retrieve(again.id)


def test_what_is_not_stored_cannot_be_gone_on_from(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    reply = ask(running, store=False)
    with pytest.raises(openai.NotFoundError, match="whole conversation") as raised:
        ask(running, previous_response_id=reply.id)
    assert raised.value.param == "previous_response_id"


def read(**body: Any) -> Any:
    return parse_responses(
        Fields({"input": "Hi", **body}), Service(FakeAssistant(), SamplingDefaults())
    )


def test_items_of_the_assistant_are_one_turn() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"b":1,"a":2}'}
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [
                {"type": "input_text", "text": "2"},
                {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
            ],
        },
    ]
    system, user, said, first, second = read(input=items).messages
    assert (system, user) == (Message("system", "Be kind."), Message("user", "Go."))
    assert (said.reasoning, said.text) == ("Hm", "I look.")
    assert [(c.id, c.arguments) for c in said.tool_calls] == [
        ("c1", '{"b": 1, "a": 2}'),
        ("c2", '{"b": 1, "a": 2}'),
    ]
    assert (first.role, first.tool_call_id, first.name) == ("tool", "c1", "f")
    assert len(second.images) == 1 and second.text == "2"


def test_forms_choices_and_thinking() -> None:
    form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
    assert json.loads(read(text={"format": form}).answer.schema) == SCHEMA
    assert read(text={"format": {"type": "text"}}).answer is None
    named = read(tools=[TOOL], tool_choice={"type": "function", "name": "get_weather"}).choice
    assert (named.kind, named.names) == ("required", ("get_weather",))
    assert read(reasoning={"effort": "none"}).thinking is False
    assert read(reasoning={"effort": "high"}).thinking is None
    assert read(tools=[{"type": "web_search"}, TOOL]).tools[0].name == "get_weather"


@pytest.mark.parametrize(
    ("more", "field", "told"),
    [
        ({}, "image_url", "must be given"),
        ({"image_url": ""}, "image_url", "is empty"),
        ({"file_id": "file-1"}, "file_id", "no files are kept here"),
        ({"image_url": None, "file_id": "file-1"}, "file_id", "no files are kept here"),
    ],
)
def test_a_picture_that_is_not_in_the_request_is_told_by_what_was_given(
    more: dict[str, Any], field: str, told: str
) -> None:
    part = {"type": "input_image", **more}
    with pytest.raises(RequestError, match=told) as raised:
        read(input=[{"role": "user", "content": [part]}])
    assert raised.value.param == f"input[0].content[0].{field}" and "base64" in raised.value.hint


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": [{"type": "strange"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": ""}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "{"}]},
            "input[0].arguments",
        ),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 30}, "top_logprobs"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.type"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        read(**wrong)
    assert raised.value.param == param


def test_a_tool_is_strict_if_it_says_so() -> None:
    service = Service(FakeAssistant(), SamplingDefaults())
    tools = [{"type": "function", "name": name, "strict": name == "a"} for name in ("a", "b")]
    read = parse_responses(Fields({"input": "Hi", "tools": tools}), service).tools
    assert [tool.strict for tool in read] == [True, False]
