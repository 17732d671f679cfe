"""The server beside an app: ports, addresses, stopping, and a process that survives it."""

import concurrent.futures
import logging
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from ds4tui.errors import UsageError
from ds4tui.server.listening import bind
from ds4tui.server.runner import ServerHandle
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def test_a_busy_port_is_named_and_the_process_lives(serve: Serve) -> None:
    running = serve()
    with pytest.raises(UsageError) as raised:
        ServerHandle.start(running.assistant, "127.0.0.1", running.handle.port)
    assert str(running.handle.port) in raised.value.message
    assert "another port" in raised.value.hint
    assert running.get("/health").status == 200


def test_a_port_is_taken_from_the_moment_it_is_bound() -> None:
    [other] = bind("127.0.0.1", 0)
    try:
        with pytest.raises(UsageError, match="busy"):
            bind("127.0.0.1", other.getsockname()[1])
    finally:
        other.close()


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("no.such.host.invalid", 0, "no host"),
        ("", 0, "Cannot listen"),
        ("127.0.0.1", 70000, "port from 0 to 65535"),
        ("127.0.0.1", -1, "port from 0 to 65535"),
        ("192.0.2.1", 0, "not an address of this machine"),  # a documentation address
        ("x" * 300, 0, "no host"),
    ],
)
def test_wrong_addresses(host: str, port: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ServerHandle.start(FakeAssistant(), host, port)


def test_ipv6() -> None:
    assistant = FakeAssistant("Yes.")
    handle = ServerHandle.start(assistant, "::1", 0)
    try:
        assert handle.url == f"http://[::1]:{handle.port}"
        with openai.OpenAI(base_url=handle.url + "/v1", api_key="none") as client:
            reply = client.chat.completions.create(model="fake", messages=HELLO)
        assert reply.choices[0].message.content == "Yes."
    finally:
        handle.stop()
        assistant.close()


@pytest.mark.parametrize(
    ("host", "api_key", "warned"),
    [
        ("127.0.0.1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", "secret", False),
        ("0.0.0.0", None, True),
        ("0.0.0.0", "", True),
    ],
)
def test_a_server_open_to_the_network_says_so(
    host: str, api_key: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    handle = ServerHandle.start(FakeAssistant(), host, 0, api_key)
    handle.stop()
    assert ("can be reached from the network" in handle.warning) is warned
    assert ("can be reached from the network" in caplog.text) is warned
    assert handle.url.startswith(("http://127.0.0.1:", "http://localhost:"))


def test_all_addresses_of_a_name_get_the_same_port() -> None:
    [first] = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    first.close()
    sockets = bind("localhost", port)
    try:
        assert {s.getsockname()[1] for s in sockets} == {port}
        assert len(sockets) == len({s.getsockname()[0] for s in sockets}) >= 1
    finally:
        for sock in sockets:
            sock.close()


def test_stopping_frees_the_port_and_may_be_repeated(serve: Serve) -> None:
    running = serve()
    assert running.get("/health").status == 200
    assert running.handle.is_running
    assert running.handle.stop()
    assert running.handle.stop()
    assert not running.handle.is_running
    with pytest.raises(ConnectionRefusedError):
        running.connect()
    again = ServerHandle.start(running.assistant, "127.0.0.1", running.handle.port)
    assert again.stop()


def test_the_process_keeps_its_signals_and_its_loggers(
    serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    root_handlers = list(logging.getLogger().handlers)
    running = serve()
    running.get("/health")
    running.handle.stop()
    assert {s: signal.getsignal(s) for s in handlers} == handlers
    assert logging.getLogger().handlers == root_handlers
    assert logging.getLogger("uvicorn").handlers == []
    assert capfd.readouterr() == ("", "")


def test_starting_and_stopping_many_times_leaves_no_thread() -> None:
    assistant = FakeAssistant()
    before = threading.active_count()
    for _ in range(5):
        assert ServerHandle.start(assistant, "127.0.0.1", 0).stop()
    assert threading.active_count() == before


@pytest.mark.parametrize("stream", [False, True])
def test_stopping_ends_open_replies_as_incomplete(serve: Serve, stream: bool) -> None:
    running = serve()
    running.engine.hold()  # even an engine that does not react holds nothing up

    def ask() -> str:
        reply: Any = running.client.chat.completions.create(
            model="fake", messages=HELLO, stream=stream
        )
        return "".join(str(chunk) for chunk in reply)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        running.wait_for_jobs(1)
        started = time.monotonic()
        assert running.handle.stop(timeout_s=5.0)
        with pytest.raises(openai.APIError) as raised:
            asked.result(20)
    assert time.monotonic() - started < 4.0
    assert "The server is stopping." in raised.value.message
    assert running.engine.jobs[0].is_cancelled


def test_stopping_drops_a_client_that_does_not_read(serve: Serve) -> None:
    running = serve(FakeAssistant("x" * 60_000, context_tokens=100_000))
    sock = running.connect(receive_bytes=4096)
    body = b'{"stream": true, "messages": [{"role": "user", "content": "Hello"}]}'
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    sock.sendall(head.encode() + body)
    running.wait_for_jobs(1)
    assert running.engine.jobs[0].wait(60)
    assert running.handle.stop(timeout_s=0.5)


def test_stopping_while_a_prompt_is_rendered(serve: Serve) -> None:
    """Rendering cannot be interrupted: no job comes of it."""
    running = serve()
    running.engine.hold()
    rendering, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    render, chat = running.assistant.format.laid_out, running.assistant.chat

    def told_chat(*arguments: Any) -> Any:
        try:
            return chat(*arguments)
        finally:
            ended.set()

    def slow_render(*arguments: Any) -> Any:
        rendering.set()
        assert go_on.wait(20)
        return render(*arguments)

    running.assistant.format.laid_out, running.assistant.chat = slow_render, told_chat
    sock = running.connect()
    body = b'{"messages": [{"role": "user", "content": "Hello"}]}'
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    sock.sendall(head.encode() + body)
    assert rendering.wait(20)
    assert running.handle.stop(timeout_s=0.3)
    go_on.set()
    assert ended.wait(20)
    assert running.engine.jobs == []


def test_idle_connections_do_not_delay_a_stop(serve: Serve) -> None:
    running = serve()
    running.client.models.list()  # its pool keeps the connection
    running.connect()  # and one that never says a word
    started = time.monotonic()
    assert running.handle.stop(timeout_s=10.0)
    assert time.monotonic() - started < 5.0


class Latecomer:
    """A connection accepted just after uvicorn told all others to close."""

    def __init__(self, connections: set[Any]) -> None:
        self.transport = SimpleNamespace(is_closing=lambda: False, abort=lambda: None)
        self._missed = False
        self._connections = connections
        connections.add(self)

    def shutdown(self) -> None:
        if self._missed:
            self._connections.discard(self)
        self._missed = True


def test_a_connection_in_the_moment_of_a_stop_does_not_delay_it(serve: Serve) -> None:
    running = serve()
    Latecomer(running.handle._server.server_state.connections)
    started = time.monotonic()
    assert running.handle.stop(timeout_s=10.0)
    assert time.monotonic() - started < 5.0


def test_a_server_that_fails_says_so_and_the_process_lives(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ds4tui.errors import EngineError
    from ds4tui.server import runner

    def fail(self: Any, sockets: Any = None) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(runner._Server, "run", fail)
    with pytest.raises(EngineError, match="did not start"):
        ServerHandle.start(FakeAssistant(), "127.0.0.1", 0)
    assert "the HTTP server failed" in caplog.text
