"""A client that leaves stops its job in every phase, and what was prefilled is kept."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ds4tui.server.app import create_app
from tests.fakes import FakeAssistant
from tests.server.conftest import Running, wait_until

Serve = Callable[..., Running]


def request_bytes(stream: bool, content: str = "x" * 300) -> bytes:
    body = json.dumps(
        {"stream": stream, "messages": [{"role": "user", "content": content}]}
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def send(running: Running, stream: bool) -> socket.socket:
    """Send a chat request; returns once its job is submitted."""
    before = len(running.engine.jobs)
    sock = running.connect()
    sock.sendall(request_bytes(stream))
    running.wait_for_jobs(before + 1)
    if stream:
        received = b""
        while b"\n\n" not in received.partition(b"\r\n\r\n")[2]:
            received += sock.recv(4096)
        assert received.startswith(b"HTTP/1.1 200")
        assert b'"role":"assistant"' in received
    return sock


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_queue(serve: Serve, stream: bool) -> None:
    running = serve()
    running.engine.hold()
    first = send(running, stream)
    waiting = send(running, stream)
    waiting.close()
    wait_until(lambda: running.engine.jobs[1].is_cancelled)
    assert not running.engine.jobs[0].is_cancelled
    running.engine.release()
    assert running.engine.jobs[0].wait(20) and running.engine.jobs[1].wait(20)
    assert first.recv(1)


@pytest.mark.parametrize("stream", [False, True])
def test_in_a_silent_prefill_which_is_kept(serve: Serve, stream: bool) -> None:
    running = serve(FakeAssistant(chunk_tokens=64))
    running.engine.hold()
    sock = send(running, stream)
    running.engine.release(3)  # the plan and two chunks; then silence
    wait_until(lambda: running.assistant.stats.resident_tokens == 128)
    sock.close()
    assert running.engine.jobs[0].wait(20)
    assert running.engine.jobs[0].is_cancelled
    assert running.assistant.stats.resident_tokens == 128
    running.engine.release()
    reply = running.client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "x" * 300}]
    )
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 128


@pytest.mark.parametrize("stream", [False, True])
def test_in_decode(serve: Serve, stream: bool) -> None:
    running = serve(FakeAssistant("0123456789" * 100, chunk_tokens=1000))
    running.engine.hold()
    sock = send(running, stream)
    running.engine.release(3 + 5)
    wait_until(lambda: running.assistant.stats.usage.completion_tokens == 5)
    sock.close()
    assert running.engine.jobs[0].wait(20)
    assert running.engine.jobs[0].is_cancelled


@pytest.mark.parametrize("stream", [False, True])
def test_by_the_openai_client(serve: Serve, stream: bool) -> None:
    running = serve()
    running.engine.hold()
    with running.client.with_options(timeout=0.3) as impatient:
        with pytest.raises(Exception, match="timed out") as raised:
            reply: Any = impatient.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "Hello"}], stream=stream
            )
            with reply:
                list(reply)
    assert "Timeout" in type(raised.value).__name__
    wait_until(lambda: running.engine.jobs[0].is_cancelled)


def test_closing_a_stream_early(serve: Serve) -> None:
    running = serve(FakeAssistant("0123456789" * 100))
    running.engine.hold()
    stream = running.client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hello"}], stream=True
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: running.engine.jobs[0].is_cancelled)


def test_while_the_prompt_is_rendered(serve: Serve) -> None:
    """No job starts for nobody: it would rewind what is resident for somebody else."""
    running = serve()
    running.engine.hold()
    rendering, go_on = threading.Event(), threading.Event()
    render = running.assistant.format.laid_out

    def slow_render(*arguments: Any) -> Any:
        rendering.set()
        assert go_on.wait(20)
        return render(*arguments)

    running.assistant.format.laid_out = slow_render
    sock = running.connect()
    sock.sendall(request_bytes(stream=False))
    assert rendering.wait(20)
    sock.close()
    assert running.get("/health").status == 200  # the loop is free meanwhile
    wait_until(lambda: all(events._abandoned for events in running.active_jobs._active))
    assert len(running.active_jobs) == 1
    go_on.set()
    wait_until(lambda: not len(running.active_jobs))
    assert running.engine.jobs == []


def test_the_log_says_that_the_client_left(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ds4tui.server")
    running = serve()
    running.engine.hold()
    send(running, stream=True).close()
    wait_until(lambda: "client left during queue; its job was cancelled" in caplog.text)


class FakeChannel:
    """ASGI channels of one chat request, by a server of the given ASGI version."""

    def __init__(self, stream: bool, send_raises: bool = False) -> None:
        body = {"stream": stream, "messages": [{"role": "user", "content": "Hello"}]}
        self._messages = [
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        ]
        self._send_raises = send_raises
        self.left = asyncio.Event()

    async def receive(self) -> Any:
        if self._messages:
            return self._messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._send_raises and message["type"] == "http.response.body":
            raise OSError("the peer has gone")


def chat_scope(spec_version: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": spec_version},
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [],
    }


@pytest.fixture
def held() -> Iterator[FakeAssistant]:
    assistant = FakeAssistant()
    assistant.engine.hold()
    yield assistant
    assistant.close()


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@pytest.mark.parametrize("stream", [False, True])
def test_silence_is_watched_in_every_asgi_version(
    held: FakeAssistant, spec_version: str, stream: bool
) -> None:
    """Servers of version 2.4 and later tell only whoever sends, which a prefill does not."""

    async def leave_during_silence() -> None:
        channel = FakeChannel(stream)
        app = create_app(held)(chat_scope(spec_version), channel.receive, channel.send)
        answering = asyncio.create_task(app)
        while not held.engine.jobs:
            await asyncio.sleep(0.005)
        channel.left.set()
        await asyncio.wait_for(answering, 20)

    asyncio.run(leave_during_silence())
    assert held.engine.jobs[0].is_cancelled


def test_a_send_that_raises_is_a_client_that_left(held: FakeAssistant) -> None:
    async def write_into_nothing() -> None:
        channel = FakeChannel(stream=True, send_raises=True)
        app = create_app(held)(chat_scope("2.4"), channel.receive, channel.send)
        await asyncio.wait_for(app, 20)

    asyncio.run(write_into_nothing())
    assert held.engine.jobs[0].is_cancelled
