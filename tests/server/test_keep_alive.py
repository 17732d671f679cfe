"""What silent streams say: by setting, by client, and never something that is no event."""

import itertools
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ds4tui.errors import ConfigError
from ds4tui.server import runner
from ds4tui.server.app import create_app
from ds4tui.server.keep_alive import STYLES, KeepAlives
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]
HELLO = [{"role": "user", "content": "Hello?"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "stream": True},
    "/v1/completions": {"prompt": "Hello?", "stream": True},
    "/v1/responses": {"input": "Hello?", "stream": True},
    "/v1/messages": {"messages": HELLO, "max_tokens": 99, "stream": True},
}
# The events that say nothing new, by path.
EMPTY = {
    "/v1/chat/completions": lambda e: e["choices"] and e["choices"][0]["delta"] == {},
    "/v1/completions": lambda e: e["choices"] and e["choices"][0]["text"] == "",
    "/v1/responses": lambda e: e["type"] == "response.in_progress",
    "/v1/messages": lambda e: e["type"] == "ping",
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager_app(*arguments: Any, **options: Any) -> Any:
        return create_app(*arguments, **options, keep_alive_s=0.02)

    monkeypatch.setattr(runner, "create_app", eager_app)


def opened(running: Running, path: str, agent: str) -> socket.socket:
    """A stream that waits for its engine."""
    running.engine.hold()
    body = json.dumps(BODIES[path]).encode()
    sock = running.connect()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: {agent}\r\n"
    sock.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
    sock.sendall(body)
    return sock


def frames_of(running: Running, path: str, agent: str, wanted: int) -> list[str]:
    """The frames of a reply that begins once `wanted` of them have come."""
    sock = opened(running, path, agent)
    received = bytearray()
    while received.count(b"\n\n") < wanted:
        received += sock.recv(65536)
    running.engine.release()
    while more := sock.recv(65536):
        received += more
    text = received.partition(b"\r\n\r\n")[2].decode()
    return [line for line in text.splitlines() if line.startswith((":", "data: "))]


def styles_in(path: str, lines: Sequence[str]) -> tuple[int, int]:
    """How many comments there are before the reply's first text, and events that say nothing
    behind the stream's opening."""
    events = [json.loads(x[6:]) for x in lines if x.startswith("data: {")]
    empty = sum(bool(EMPTY[path](event)) for event in events)
    return sum(line.startswith(":") for line in lines), empty


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("style", "agent", "comments", "events"),
    [
        ("usual", "x/1", True, False),
        ("usual", "Codex_exec/0.171.0 (Debian)", False, True),
        ("comment", "codex_exec/0.171.0", True, False),
        ("event", "x/1", False, True),
    ],
)
def test_the_style_is_the_settings_and_the_clients(
    serve: Serve, path: str, style: str, agent: str, comments: bool, events: bool
) -> None:
    running = serve(keep_alives=KeepAlives.of(style, ()))
    quiet = styles_in(path, frames_of(serve(keep_alives=KeepAlives.of("none", ())), path, "y", 1))
    opening = 3 if path in ("/v1/responses",) else 2
    told = styles_in(path, frames_of(running, path, agent, opening + 4))
    if style == "usual" and path == "/v1/messages":
        comments, events = False, True  # its API has an event for this
    assert (told[0] > 0) == comments
    assert (told[1] > quiet[1]) == events
    assert quiet[0] == 0


@pytest.mark.parametrize("path", BODIES)
def test_none_is_silence(serve: Serve, path: str) -> None:
    running = serve(keep_alives=KeepAlives.of("comment", ["quiet=none"]))
    quiet = opened(running, path, "quiet/1")
    running.wait_for_jobs(1)
    # While another client is told four times that its stream lives.
    assert styles_in(path, frames_of(running, path, "loud/1", 6))[0] >= 3
    told = b""
    while more := quiet.recv(65536):
        told += more
    lines = [x for x in told.decode().splitlines() if x.startswith((":", "data: "))]
    alone = frames_of(serve(keep_alives=KeepAlives.of("none", ())), path, "x", 1)
    assert styles_in(path, lines) == styles_in(path, alone)


def test_a_comment_is_never_first(serve: Serve) -> None:
    lines = frames_of(serve(), "/v1/chat/completions", "x", 4)
    assert lines[0].startswith("data: {") and lines[1].startswith(":")


def test_the_official_clients_read_events_that_say_nothing(serve: Serve) -> None:
    running = serve(FakeAssistant("Bonjour."), keep_alives=KeepAlives.of("event", ()))
    running.engine.hold()
    chat = running.client.chat.completions.create(model="fake", messages=HELLO, stream=True)  # type: ignore[call-overload]
    first = list(itertools.islice(chat, 4))
    running.engine.release()
    said = "".join(c.choices[0].delta.content or "" for c in [*first, *chat])
    assert said == "Bonjour."
    running.engine.hold()
    events = running.client.responses.create(model="fake", input="Hi", stream=True)
    begun = list(itertools.islice(events, 5))
    assert {event.type for event in begun[2:]} == {"response.in_progress"}
    running.engine.release()
    rest = list(events)
    assert rest[-1].type == "response.completed"
    numbers = [event.sequence_number for event in [*begun, *rest]]
    assert numbers == list(range(len(numbers)))


def test_progress_is_told_to_who_asks(serve: Serve) -> None:
    running = serve(FakeAssistant(chunk_tokens=16))
    body = {**BODIES["/v1/chat/completions"], "return_progress": True}
    body["messages"] = [{"role": "user", "content": "x" * 60}]
    told = []
    for asked in (body, body, {**body, "return_progress": False}):
        answer = running.post("/v1/chat/completions", json.dumps(asked).encode())
        events = [json.loads(line[6:]) for line in answer.body.splitlines() if b"{" in line]
        told.append([e["prompt_progress"] for e in events if "prompt_progress" in e])
    first, again, unasked = told
    assert unasked == []
    total = len(running.engine.requests[0].timeline)
    assert [p["total"] for p in first] == [total] * len(first)
    assert [p["processed"] for p in first] == [0, 16, 32, 48, total - 1, total]
    assert all(p["cache"] == 0 and isinstance(p["time_ms"], int) for p in first)
    assert again[0]["cache"] == again[0]["processed"] > 0 and again[-1]["processed"] == total


@pytest.mark.parametrize("text", ["codex", "=event", "codex=loud", ""])
def test_a_wrong_table_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=STYLE"):
        KeepAlives.of("usual", [text])


def test_the_longest_name_counts() -> None:
    table = KeepAlives.of("comment", ["open=none", "opencode/2=event", "Claude=usual"])
    assert table.style_for("opencode/1") == "none"
    assert table.style_for("OpenCode/2.1") == "event"
    assert table.style_for("curl") == "comment"
    assert table.style_for("claude-cli/2") == "usual"
    assert set(STYLES) == {"usual", "comment", "event", "none"}
