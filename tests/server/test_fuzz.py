"""Whatever is sent to whichever endpoint: an answer in the API's shape, and never a 500."""

import contextlib
import http.client
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ds4tui.assistant import Assistant
from ds4tui.chat.rendering import ChatFormat
from ds4tui.server import body as bodies
from tests.chat import formats
from tests.fakes import FakeAssistant
from tests.scale import scaled
from tests.server.conftest import Running

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)
CHAT: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}],
        },
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "logit_bias": {"5": -100},
    "logprobs": True,
    "top_logprobs": 2,
    "stop": ["x"],
    "seed": 3,
    "n": 2,
    "max_completion_tokens": 4,
    "stream_options": {"include_usage": True},
    "stream": True,
    "return_progress": True,
    "chat_template_kwargs": {"enable_thinking": False},
}
MESSAGES: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "t", "name": "look", "input": {"city": "Paris"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "is_error": True,
                    "content": [{"type": "text", "text": "Sunny."}],
                },
                {"type": "text", "text": "So?"},
            ],
        },
    ],
    "tools": [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "stop_sequences": ["x"],
    "stream": True,
}
RESPONSES: dict[str, Any] = {
    "model": "fake",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "Sunny."},
        {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "b", "output": "Done."},
    ],
    "tools": [
        {"type": "function", **FUNCTION},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "x"}},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
    ],
    "tool_choice": {"type": "function", "name": "look"},
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "reasoning": {"effort": "none", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "max_output_tokens": 4,
    "store": True,
    "stream": True,
}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "Hi", "max_tokens": 4, "logprobs": 2, "n": 2, "stream": True},
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": {k: v for k, v in MESSAGES.items() if k != "stream"},
    "/v1/responses": RESPONSES,
    "/tokenize": {"content": "Hi", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [72, 105]},
    "/v1/cache/pin": {"conversation": "x", "pinned": True},
    "/v1/cache/clear": {"pinned": False},
}
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**70, -(2**70), 0.5, -1e308, "", "x", "fake", "auto"),
    *("\ud83d", "\0", "é\u2028", "x" * 3000, "{", '{"a": ', "data:image/png;base64,!!", "<bos>"),
    *([], {}, [[]], [{}], [None], {"type": None}, {"type": "text"}, {"": {}}, [1, "x"], "1e999"),
    *({"type": "function"}, {"type": "object", "properties": 3}, {"$ref": "#"}, "function", "tool"),
]


def _deep(levels: int) -> Any:
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"properties": value, "type": "object"}
    return value


def changed(value: Any, draw: random.Random) -> Any:
    """`value` with something odd somewhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        at = draw.randrange(len(value))
        if draw.random() < 0.1:
            return [*value[:at], value[at], *value[at:]]
        return [*value[:at], changed(value[at], draw), *value[at + 1 :]]
    return _deep(draw.choice([3, 70, 90])) if draw.random() < 0.05 else draw.choice(ODD)


@pytest.fixture(scope="module", params=["fake", "template"])
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    assistant: Any = FakeAssistant("{}", context_tokens=20_000)
    if request.param == "template":
        made = ChatFormat(formats.tokenizer(tmp_path_factory.mktemp("v")), formats.HERMES)
        engine, info = assistant.engine, assistant.info
        assistant = Assistant(info, engine, made)
        assistant.engine = engine
    with contextlib.closing(Running(assistant)) as one:
        yield one


def check(running: Running, path: str, body: bytes, headers: dict[str, str]) -> int:
    answer = running.post(path, body, headers=headers)
    assert answer.status < 500, (answer.status, answer.body[:500], body[:2000])
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        assert b"Internal error" not in answer.body and b'"server_error"' not in answer.body
        return answer.status
    told = answer.json
    if answer.status != 200:
        assert told["error"]["message"]
        assert (told.get("type") == "error") == path.startswith("/v1/messages")
    return answer.status


@settings(
    max_examples=scaled(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(path=st.sampled_from(sorted(VALID)), seed=st.integers(0, 2**32), times=st.integers(1, 4))
def test_bodies_with_something_odd_in_them(
    running: Running, path: str, seed: int, times: int
) -> None:
    draw = random.Random(seed)
    body: Any = {k: v for k, v in VALID[path].items() if draw.random() < 0.8}
    for _ in range(times):
        body = changed(body, draw)
    check(running, path, json.dumps(body).encode(), {"Content-Type": "application/json"})


NAMES = sorted({*CHAT, *MESSAGES, *RESPONSES})
KINDS = ["application/json", "application/json; charset=utf-16", "text/plain", ""]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted({*CHAT, *MESSAGES, *RESPONSES})), inner, max_size=4
        )
    ),
    max_leaves=8,
)


@settings(
    max_examples=scaled(200),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    path=st.sampled_from(sorted(VALID)),
    body=JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40),
    kind=st.sampled_from(
        ["application/json", "application/json; charset=utf-16", "text/plain", ""]
    ),
)
@example("/v1/chat/completions", b"[" * 100_000, "application/json")
@example("/v1/responses", b'{"input":' + b"[" * 5000 + b"]" * 5000 + b"}", "application/json")
@example("/v1/messages", b'{"a":' * 3000, "application/json")
def test_bodies_of_anything(running: Running, path: str, body: bytes, kind: str) -> None:
    check(running, path, body, {"Content-Type": kind} if kind else {})


@pytest.mark.parametrize("path", sorted(VALID))
def test_what_is_valid_is_answered(path: str, running: Running) -> None:
    """Else the fuzzing would look at refusals only."""
    body = {k: v for k, v in VALID[path].items() if k not in ("response_format", "output_config")}
    if path == "/v1/chat/completions":
        body["messages"] = body["messages"][:-1]  # this model sees nothing
    status = check(running, path, json.dumps(body).encode(), {})
    # Nothing is kept on disk here; a call cannot be required of a vocabulary without grammar.
    assert status == (409 if "cache" in path else 200)


@pytest.mark.parametrize("path", sorted(VALID))
def test_many_small_values_are_refused_before_they_are_made(
    path: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_CONTAINERS", 1000)
    monkeypatch.setattr(bodies, "MAX_VALUES", 5000)
    monkeypatch.setattr(json, "loads", lambda *a, **k: pytest.fail("it was read"))
    for body in (b'{"x": [' + b"{}," * 1000 + b"1]}", b'{"x": [' + b"1," * 5001 + b"1]}"):
        connection = http.client.HTTPConnection("127.0.0.1", running.handle.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("POST", path, body)
            assert connection.getresponse().status == 413
