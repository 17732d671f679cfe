"""`ds4tui serve` as a process: what it says, how signals end it. The model is a fake one."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from ds4tui import serve
from ds4tui.agents import Agents
from ds4tui.chat.ledger import ConversationLedger
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings, load_settings
from ds4tui.errors import ModelNotFound, UsageError
from tests.fakes import FakeAssistant
from tests.server.conftest import wait_until

PROGRAM = """
import sys, threading
from ds4tui import logs, serve
from ds4tui.config import load_settings
from tests.fakes import FakeAssistant

def open_model(name, progress):
    progress("loading " + name)
    {while_loading}
    assistant = FakeAssistant("x" * 2000, token_delay_s=0.01)
    {once_open}
    return assistant

settings = load_settings({{"model": "fake", "port": 0, "log_level": "info"}})
with logs.logging_set_up("info", to_stderr=True):
    sys.exit(serve.run(settings, open_model))
"""


class Process:
    """A running program and what it has said on standard error."""

    def __init__(self, program: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", program], stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.said = ""

    def read_until(self, pattern: str) -> str:
        assert self.popen.stderr is not None
        while not (found := re.search(pattern, self.said)):
            line = self.popen.stderr.readline()
            assert line, f"it ended and had said: {self.said}"
            self.said += line.decode()
        return found[found.re.groups]

    def end(self, number: int) -> int:
        """Send a signal; the exit code."""
        self.popen.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        out, said = self.popen.communicate(timeout=30)
        self.said += said.decode()
        assert out == b""
        return self.popen.returncode


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as started:

        def one(while_loading: str = "pass", once_open: str = "pass") -> Process:
            process = Process(PROGRAM.format(while_loading=while_loading, once_open=once_open))
            started.enter_context(process.popen)
            started.callback(process.popen.kill)
            return process

        yield one


def open_stream(url: str) -> socket.socket:
    """A streaming reply that has begun."""
    found = re.match(r"http://([\d.]+):(\d+)", url)
    assert found
    sock = socket.create_connection((found[1], int(found[2])), timeout=20)
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "Hello"}]})
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    received = b""
    while b'"content":"x"' not in received:
        received += sock.recv(4096)
    return sock


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_a_reply_open(start: Start, number: int, code: int) -> None:
    process = start()
    url = process.read_until(r"is served on (http://\S+/v1)")
    with contextlib.closing(open_stream(url)) as sock:
        assert process.end(number) == code
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
    assert b"The server is stopping." in received and received.endswith(b"0\r\n\r\n")
    assert "loading fake\n" in process.said
    assert "fake computes on fake\n" in process.said
    assert f"stopping ({signal.Signals(number).name})\n" in process.said
    assert "POST /v1/chat/completions 200" in process.said
    assert "Traceback" not in process.said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_model_loads(start: Start, number: int, code: int) -> None:
    process = start(while_loading="threading.Event().wait()")
    process.read_until("loading fake\n")
    assert process.end(number) == code
    assert "Traceback" not in process.said


HANGS = "assistant.close = lambda timeout_s: threading.Event().wait()"


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    process = start(once_open=HANGS)
    process.read_until(r"is served on (http://\S+/v1)")
    process.popen.send_signal(signal.SIGTERM)
    process.read_until(r"stopping \(SIGTERM\)\n")
    began = time.monotonic()
    assert process.end(signal.SIGINT) in (-signal.SIGINT, 130)
    assert time.monotonic() - began < serve.DEADLINE_S / 2


def test_the_deadline_ends_what_hangs(start: Start) -> None:
    process = start(once_open=HANGS + "; serve.DEADLINE_S = 0.5")
    process.read_until(r"is served on (http://\S+/v1)")
    assert process.end(signal.SIGTERM) == -signal.SIGALRM


def test_an_engine_that_does_not_close_in_time_is_left(start: Start) -> None:
    process = start(once_open="assistant.close = lambda timeout_s: None")
    process.read_until(r"is served on (http://\S+/v1)")
    assert process.end(signal.SIGTERM) == 0
    assert "the engine is still at a step" in process.said


def test_the_openai_client_is_served(start: Start) -> None:
    process = start()
    url = process.read_until(r"is served on (http://\S+/v1)")
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "Hello"}], max_tokens=3
        )
    assert reply.choices[0].message.content == "xxx"
    process.read_until("finish=length prompt=")


def never_opened(name: str, progress: Callable[[str], None]) -> Any:
    raise AssertionError("the port was known to be busy before")


def test_a_busy_port_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} on 127.0.0.1 is busy"):
            serve.run(Settings(port=port), never_opened)


def test_signals_are_given_back_when_a_model_does_not_open() -> None:
    def not_there(name: str, progress: Callable[[str], None]) -> Any:
        raise ModelNotFound("There is no model 'x'.", "Run: ds4tui pull x")

    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with pytest.raises(ModelNotFound):
        serve.run(load_settings({"port": 0}), not_there)
    after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    assert after == before


def test_a_server_that_dies_ends_it_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []

    def start_and_stop(assistant: Any, settings: Settings, agents: Any) -> Any:
        started.append(serve.ServerHandle.start(assistant, "127.0.0.1", 0))
        started[0].stop()
        return started[0]

    monkeypatch.setattr(serve, "start_server", start_and_stop)
    assistant = FakeAssistant()
    assert serve.run(load_settings({"port": 0}), lambda name, progress: assistant) == 1
    assert "the HTTP server failed" in capsys.readouterr().err
    wait_until(lambda: assistant.stats.state == "closed")


def test_an_engine_that_dies_ends_it_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assistant = FakeAssistant()
    assistant.close()
    assert serve.run(load_settings({"port": 0}), lambda name, progress: assistant) == 1
    assert "the engine failed" in capsys.readouterr().err


def test_the_settings_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(port=0, api_key="secret", temperature=0.1, max_tokens=7)
    assistant = FakeAssistant()
    server = serve.start_server(assistant, settings)
    try:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="secret") as client:
            client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "Hello"}]
            )
        with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong") as stranger:
            with pytest.raises(openai.AuthenticationError):
                stranger.models.list()
    finally:
        server.stop()
        assistant.close()
    [request] = assistant.engine.requests
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.1, 7)


def test_what_agents_say_is_kept_where_the_app_keeps_conversations() -> None:
    settings = load_settings({"port": 0})
    store = ConversationStore(settings.database_path)
    agents = Agents(ConversationLedger(store))
    assistant = FakeAssistant("Hello.")
    server = serve.start_server(assistant, settings, agents)
    try:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
            client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "hi"}]
            )
    finally:
        server.stop()
        assistant.close()
        agents.close()
        store.close()
    store = ConversationStore(settings.database_path)
    [kept] = store.list()
    store.close()
    assert (kept.title, kept.origin, kept.client) == ("hi", "agent", "OpenAI")
