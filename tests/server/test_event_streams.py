"""The bytes of a stream: framing, keep-alive comments, slow readers."""

import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ds4tui.events import Event, Finished, TokenText, Usage
from ds4tui.server import jobs
from ds4tui.server.app import create_app
from ds4tui.server.openai_reply import ChatDialect
from ds4tui.server.sse import EventWriter
from ds4tui.server.streaming import ReplyStream
from tests.fakes import FakeAssistant
from tests.server.conftest import Running, wait_until

Serve = Callable[..., Running]


def open_stream(running: Running, receive_bytes: int | None = None, **fields: Any) -> socket.socket:
    fields = {"stream": True, "messages": [{"role": "user", "content": "x" * 200}], **fields}
    body = json.dumps(fields).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    sock = running.connect(receive_bytes)
    sock.sendall(head.encode() + body)
    return sock


def read_until(sock: socket.socket, wanted: bytes) -> bytes:
    received = b""
    deadline = time.monotonic() + 20
    while wanted not in received:
        assert time.monotonic() < deadline, received
        received += sock.recv(4096)
    return received


def read_to_end(sock: socket.socket, received: bytes = b"") -> tuple[bytes, bytes]:
    while chunk := sock.recv(65536):
        received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    return head, unchunked(body)


def unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
        if size == b"0":
            return found
    raise AssertionError("the response did not end properly")


@pytest.fixture
def eager_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment after 50 ms of silence."""

    def impatient(*args: Any, **options: Any) -> Any:
        return create_app(*args, **options, keep_alive_s=0.05)

    monkeypatch.setattr("ds4tui.server.runner.create_app", impatient)


def test_framing(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    head, body = read_to_end(open_stream(running, stream_options={"include_usage": True}))
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 200 ok"
    assert b"content-type: text/event-stream; charset=utf-8" in lines
    assert b"cache-control: no-cache" in lines
    assert body.endswith(b"\n\n")
    events = body[:-2].split(b"\n\n")
    assert events[-1] == b"data: [DONE]"
    assert all(e.startswith(b"data: {") and b"\n" not in e for e in events[:-1])
    assert b"\r" not in body


def test_an_error_ends_a_stream_without_done(serve: Serve) -> None:
    running = serve(FakeAssistant("Hello", error=RuntimeError("a bug"), fail_after=2))
    _, body = read_to_end(open_stream(running))
    last = json.loads(body.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert last["error"]["type"] == "server_error"
    assert b"[DONE]" not in body


@pytest.mark.usefixtures("eager_keep_alive")
def test_silence_is_filled_with_comments_that_tell_the_progress(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes.", chunk_tokens=64))
    running.engine.hold()
    sock = open_stream(running)
    received = read_until(sock, b": queue\n\n")
    running.engine.release(2)
    received += read_until(sock, b": prefill 64/203\n\n")
    running.engine.release()
    _, body = read_to_end(sock, received)
    events = body.split(b"\n\n")
    assert events[0].startswith(b'data: {"id"')  # a comment first confuses clients
    assert events[-2:] == [b"data: [DONE]", b""]
    assert b'"content":""' not in b"".join(events[1:])
    assert not any(line.startswith((b"id:", b"event:")) for line in b"\n".join(events).split(b"\n"))


@pytest.mark.usefixtures("eager_keep_alive")
def test_the_openai_client_reads_over_comments(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes.", token_delay_s=0.12))
    with running.client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hello"}], stream=True
    ) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "Yes."


class Flowing:
    """JobEvents of a reply whose events come after so many seconds each, on a clock of its own."""

    decision = None
    phase = "decode"

    def __init__(self, texts: list[str], gap_s: float) -> None:
        self.now_s = 0.0
        self._gap_s = gap_s
        self._next_s = gap_s
        usage = Usage(1, 0, 1, len(texts))
        tokens = [TokenText("j", text, (1,)) for text in texts]
        self._events: list[Event] = [*tokens, Finished("j", "stop", usage)]

    async def next(self, timeout_s: float | None) -> Event | None:
        if timeout_s is not None and self.now_s + timeout_s < self._next_s:
            self.now_s += timeout_s
            return None
        self.now_s, self._next_s = self._next_s, self._next_s + self._gap_s
        return self._events.pop(0)


@pytest.mark.parametrize(
    ("texts", "gap_s", "comments"),
    [
        (["flowing "] * 10, 4.0, 0),  # 40 s, but never silent for 5
        (["a", "", "", "b"], 4.0, 2),  # tokens without text are silence: at 9 and at 14 s
        (["slow "] * 3, 11.0, 4 * 2),
    ],
)
async def test_no_comment_while_text_flows(
    texts: list[str], gap_s: float, comments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = Flowing(texts, gap_s)
    clock = SimpleNamespace(monotonic=lambda: reply.now_s)
    monkeypatch.setattr("ds4tui.server.streaming.time", clock)
    monkeypatch.setattr("ds4tui.server.sse.time", clock)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message["body"])

    async def jobs() -> AsyncGenerator[Any, None]:
        yield reply

    stream = ReplyStream(ChatDialect("m"), jobs, keep_alive_s=5.0)
    await stream.write(EventWriter(send))
    assert sum(frame.startswith(b":") for frame in sent) == comments
    assert "".join(texts) == "".join(
        json.loads(frame[6:])["choices"][0]["delta"].get("content", "")
        for frame in sent
        if frame.startswith(b"data: {")
    )


def test_a_slow_reader_neither_blocks_the_engine_nor_fills_the_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_WAITING_EVENTS", 50)
    # Far more than the sockets' own buffers hold.
    running = serve(FakeAssistant("x" * 60_000, context_tokens=100_000))
    sock = open_stream(running, receive_bytes=4096)  # and nobody reads from it
    running.wait_for_jobs(1)
    wait_until(lambda: running.engine.jobs[0].is_cancelled, timeout_s=60)
    assert running.engine.jobs[0].wait(20)
    with running.client.with_options(timeout=30) as other:
        assert other.models.list().data  # the loop lives
    _, body = read_to_end(sock)
    last = json.loads(body.strip().split(b"\n\n")[-1].removeprefix(b"data: "))
    assert "did not read" in last["error"]["message"]


def test_too_many_waiting_requests_are_told_to_wait(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve()
    running.engine.hold()
    monkeypatch.setattr(running.active_jobs, "_limit", 2)
    open_stream(running), open_stream(running)
    running.wait_for_jobs(2)
    answer = running.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}')
    assert answer.status == 429
    assert answer.json["error"]["code"] == "queue_full"
    assert answer.headers["retry-after"] == "1"
    running.engine.release()
    wait_until(lambda: len(running.active_jobs) == 0)
    again = running.post("/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}')
    assert again.status == 200


def test_log_lines(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ds4tui.server")
    running = serve(FakeAssistant("Yes."))
    assert running.get("/health").status == 200
    assert running.get("/v1/nowhere%0Aforged").status == 404
    forging = (
        b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"\\n0:00 forged": 1}}'
    )
    assert running.post("/v1/chat/completions", forging).status == 400
    read_to_end(open_stream(running))
    wait_until(lambda: "finish=stop" in caplog.text)
    lines = [r.getMessage() for r in caplog.records if r.name == "ds4tui.server.requestlog"]
    assert len(lines) == 3  # not /health
    assert not any("\n" in line for line in lines)
    assert lines[0].startswith("GET /v1/nowhere%0Aforged 404 ")
    assert lines[2].startswith("POST /v1/chat/completions 200 ")
    assert "prompt=203 cached=0 evaluated=203 completion=4" in lines[2]
