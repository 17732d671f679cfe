"""A real server on a real socket, around an assistant without weights."""

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from ds4tui.server.jobs import ActiveJobs
from ds4tui.server.runner import ServerHandle
from tests.fakes import FakeAssistant, FakeEngine


def wait_until(predicate: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running:
    """A served FakeAssistant and ways to talk to it; closed by its fixture."""

    def __init__(self, assistant: Any, **options: Any) -> None:
        self._closing = contextlib.ExitStack()
        self.assistant = assistant
        self.api_key = options.get("api_key")
        self.handle = ServerHandle.start(assistant, "127.0.0.1", 0, **options)
        self._closing.callback(assistant.close)
        self._closing.callback(self.handle.stop)
        self.client = self._closing.enter_context(
            openai.OpenAI(
                base_url=self.handle.url + "/v1",
                api_key=self.api_key or "none",
                max_retries=0,
                timeout=30,
            )
        )

    @property
    def engine(self) -> FakeEngine:
        engine: FakeEngine = self.assistant.engine
        return engine

    @property
    def active_jobs(self) -> ActiveJobs:
        jobs: ActiveJobs = self.handle._app.state.service.jobs
        return jobs

    def connect(self, receive_bytes: int | None = None) -> socket.socket:
        """A raw connection; `receive_bytes` sizes its receive buffer."""
        sock = socket.socket()
        self._closing.callback(sock.close)
        if receive_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", self.handle.port))
        return sock

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: bytes, **options: Any) -> Answer:
        return self.ask("POST", path, body=body, **options)

    def ask(self, method: str, path: str, **options: Any) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.handle.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, **options)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())

    def wait_for_jobs(self, count: int) -> None:
        wait_until(lambda: len(self.engine.jobs) >= count)

    @property
    def prompts(self) -> list[str]:
        """What was submitted, as text with its control tokens."""
        decode = self.assistant.format.tokenizer.decode
        timelines = [request.timeline.ids.tolist() for request in self.engine.requests]
        return [decode(ids, skip_special=False) for ids in timelines]

    def close(self) -> None:
        self._closing.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """`serve(assistant, **options of ServerHandle.start)`; closed after the test."""
    with contextlib.ExitStack() as running:

        def start(assistant: Any = None, **options: Any) -> Running:
            one = Running(assistant or FakeAssistant(), **options)
            running.callback(one.close)
            return one

        yield start
