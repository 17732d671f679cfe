"""Reading a chat request: every wrong field is named, nothing that matters is dropped."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.grammars import ANY_OBJECT, AnswerFormat, ToolChoice
from ds4tui.chat.messages import Message, ToolCall
from ds4tui.engine.sampling_defaults import OwnSampling, SamplingDefaults
from ds4tui.errors import RequestError
from ds4tui.server.body import parse_object
from ds4tui.server.call import Call
from ds4tui.server.fields import Fields
from ds4tui.server.openai_chat import parse_chat
from tests.scale import scaled
from tests.server.test_body import JSON

VOCAB = 1000
NAMED = {"type": "function", "function": {"name": "read"}}
READ = {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {}}}
HELLO = [{"role": "user", "content": "Hello"}]


def _fields(body: bytes) -> Fields:
    return Fields(parse_object(body))


def parsed(**fields: Any) -> Call:
    body = {"messages": HELLO, **fields}
    return parse_chat(_fields(json.dumps(body).encode()), SamplingDefaults(), VOCAB)


def calling(call: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


def test_a_minimal_request_is_the_defaults() -> None:
    defaults = SamplingDefaults({"stop": ("x",)}, OwnSampling({"temperature": 0.2, "top_k": 20}))
    call = parse_chat(_fields(json.dumps({"messages": HELLO}).encode()), defaults, VOCAB)
    assert call == Call(None, defaults.params(), (Message("user", "Hello"),))
    assert (call.sampling.temperature, call.sampling.top_k, call.sampling.min_p) == (0.2, 20, 0)


def test_null_means_not_given() -> None:
    names = (
        "model temperature top_p top_k min_p repetition_penalty frequency_penalty "
        "presence_penalty logit_bias seed stop max_tokens max_completion_tokens stream "
        "stream_options logprobs top_logprobs n tools functions tool_choice response_format "
        "audio modalities user"
    ).split()
    assert parsed(**dict.fromkeys(names)) == parsed()


@pytest.mark.parametrize(
    "harmless",
    [
        {"tools": []},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"n": 1},
        {"store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True},
        {"stream_options": {"include_usage": False, "new": 1}},
        {"logprobs": False, "top_logprobs": 0},
    ],
)
def test_fields_that_change_nothing_are_accepted(harmless: dict[str, Any]) -> None:
    assert parsed(**harmless) == parsed()


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "Use tools"),
        ({"tool_choice": "any"}, "tool_choice", "or name a function"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "or name a function"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode", "'required' only"),
        ({"response_format": {}}, "response_format.type", "json_object or json_schema"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema.schema",
            "must be given",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format.json_schema.schema",
            "must be an object",
        ),
        ({"n": 17}, "n", "between 1 and 16"),
        ({"n": 0}, "n", "between 1 and 16"),
        ({"audio": {"voice": "x"}}, "audio", "Audio"),
        ({"modalities": ["text", "audio"]}, "audio", "Audio"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(fields: dict[str, Any], param: str, said: str) -> None:
    with pytest.raises(RequestError) as raised:
        parsed(**fields)
    assert raised.value.param == param
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": [0.5]}, "min_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 10**30}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": {}}, "presence_penalty"),
        ({"seed": 1.0}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": 1}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1000": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": None}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": True}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tools": {}}, "tools"),
        ({"n": "1"}, "n"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [*HELLO, "Hello"]}, "messages[1]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].function"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (calling({"id": "x"}), "messages[0].tool_calls[0].function"),
        (calling({"type": "custom", "function": {}}), "messages[0].tool_calls[0].function"),
        (calling({"function": {}}), "messages[0].tool_calls[0].function.name"),
        (
            calling({"function": {"name": "f", "arguments": 5}}),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            calling({"function": {"name": "f", "arguments": "{"}}),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        parsed(**fields)
    assert raised.value.param == param
    assert param.split("[")[0].split(".")[0] in str(raised.value)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "a data URI without data"),
        ({"type": "input_audio"}, "'input_audio'"),
        ({"type": "file"}, "'file'"),
        ({}, "None"),
        ({"type": "text"}, "must be a string"),
        ({"type": "text", "text": 5}, "must be a string"),
    ],
)
def test_parts_that_are_not_text_are_refused(part: dict[str, Any], said: str) -> None:
    content = [{"type": "text", "text": "What is this?"}, part]
    with pytest.raises(RequestError) as raised:
        parsed(messages=[{"role": "user", "content": content}])
    assert raised.value.param is not None
    assert raised.value.param.startswith("messages[0].content[1]")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"tool_choice": "required"}, ToolChoice("required")),
        ({"tool_choice": NAMED}, ToolChoice("required", ("read",), several=False)),
        ({"parallel_tool_calls": False}, ToolChoice("auto", several=False)),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [NAMED]},
                }
            },
            ToolChoice("required", ("read",)),
        ),
    ],
)
def test_how_a_call_is_chosen(sent: dict[str, Any], read: ToolChoice) -> None:
    assert parsed(tools=[READ], **sent).choice == read


def test_the_form_of_an_answer() -> None:
    assert parsed(response_format={"type": "json_object"}).answer == AnswerFormat(
        ANY_OBJECT, "a JSON object", "response_format"
    )
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema, "strict": True}}
    answer = parsed(response_format=form).answer
    assert answer is not None and json.loads(answer.schema) == schema
    assert (answer.what, answer.param) == (
        "the schema 'sum'",
        "response_format.json_schema.schema",
    )


def test_tools_are_described_and_called_unless_the_choice_is_none() -> None:
    [tool] = parsed(tools=[READ]).tools
    assert parsed(tools=[READ]).choice == ToolChoice("auto")
    assert (tool.name, tool.description) == ("read", "Reads.")
    assert json.loads(tool.parameters) == {"type": "object", "properties": {}}
    assert parsed(tools=[READ], tool_choice="auto").tools == (tool,)
    none = parsed(tools=[READ], tool_choice="none")
    assert none.tools == (tool,) and none.choice.kind == "none"
    half = {"type": "function", "function": {"name": "r\ud83d", "description": "\ud83d"}}
    assert parsed(tools=[half]).tools[0].name == "r\ufffd"


@pytest.mark.parametrize("arguments", ['{"path":"a.txt"}', {"path": "a.txt"}])
def test_calls_and_results_are_messages(arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Text."}]},
    ]
    assert parsed(messages=messages).messages == (
        Message("user", "Hello"),
        Message(
            "assistant",
            "",
            reasoning="Hm.",
            tool_calls=(ToolCall("c1", "read", '{"path": "a.txt"}'),),
        ),
        Message("tool", "Text.", tool_call_id="c1", name="read"),
    )


def test_thinking_can_be_switched() -> None:
    assert parsed().thinking is None
    assert parsed(chat_template_kwargs={"enable_thinking": False}).thinking is False
    assert parsed(chat_template_kwargs={"enable_thinking": True, "new": 1}).thinking is True


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert parsed(max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7


def test_surrogate_pairs_stay_and_halves_are_replaced() -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude42 \\ude42 \\ud83d"}]}'
    call = parse_chat(_fields(body), SamplingDefaults(), VOCAB)
    assert call.messages[0].text == "\U0001f642 \ufffd \ufffd"


FIELD_NAMES = st.sampled_from(
    "model messages temperature top_p top_k min_p seed stop max_tokens stream stream_options "
    "logprobs top_logprobs logit_bias n tools response_format tool_choice audio".split()
)
CONTENT = JSON | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": JSON}))
FUNCTION = st.fixed_dictionaries({"name": st.text() | JSON}, optional={"arguments": JSON})
CALL = st.fixed_dictionaries({"function": FUNCTION}, optional={"id": JSON, "type": JSON})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool", "x"]) | JSON},
    optional={
        "content": CONTENT,
        "tool_calls": st.lists(CALL | JSON) | JSON,
        "tool_call_id": JSON,
        "name": JSON,
        "reasoning_content": JSON,
    },
)
REQUEST = st.builds(
    lambda fields, messages: {**fields, "messages": messages},
    st.dictionaries(FIELD_NAMES, JSON, max_size=4),
    st.lists(MESSAGE, max_size=3) | JSON,
)


@settings(max_examples=scaled(200), deadline=None)
@given(REQUEST)
def test_any_json_is_a_call_or_a_clear_error(request: dict[str, Any]) -> None:
    try:
        call = parse_chat(_fields(json.dumps(request).encode()), SamplingDefaults(), VOCAB)
    except RequestError as error:
        assert error.param and error.message
    else:
        for message in call.messages:
            message.text.encode()  # no tokenizer can take what this raises on


@pytest.mark.parametrize(("said", "strict"), [(True, True), (False, False), (None, False)])
def test_a_tool_is_strict_if_it_says_so(said: bool | None, strict: bool) -> None:
    tool = {"type": "function", "function": {**READ["function"], "strict": said}}
    assert [each.strict for each in parsed(tools=[tool]).tools] == [strict]
