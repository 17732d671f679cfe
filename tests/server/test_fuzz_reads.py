"""Whatever is asked of what can be read or removed: an answer, the right one, and never a 500."""

import contextlib
import json
import random
import re
import socket
import string
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fakes import FakeAssistant
from tests.scale import scaled
from tests.server.conftest import Running

FIXED = ("/", "/health", "/metrics", "/v1/cache", "/v1/models")
BELOW = ("/v1/models/", "/v1/responses/")
METHODS = ("GET", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH", "POST", "TRACE", "get", "G\0T", "")
# What a client, a proxy or an attacker may put there; some break HTTP itself.
HEADERS = (
    b"Accept: text/html", b"Accept:", b"Range: bytes=0-1", b"If-None-Match: *",
    b"Expect: 100-continue", b"Content-Length: 3", b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c",
    b"Authorization: Bearer \xff\xfe", b"X-Api-Key: ", b"Cookie: a=b; \x01", b"Accept-Encoding: br",
    b"User-Agent: \xf0\x9f\x98\x80", b"Origin: http://localhost",
    b"Host: localhost", b"Host: evil.example",
    b"X: " + b"y" * 9000, b": nameless", b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13",
)  # fmt: skip
METRIC = re.compile(r"(# (HELP|TYPE) ds4tui_\w+ .+)|(ds4tui_\w+(\{\w+=\"[^\"\n]*\"\})? \S+)")

SETTINGS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture],
}
NAMES = (
    st.text(max_size=12).map(lambda text: quote(text.encode("utf-8", "replace"), safe=""))
    | st.binary(max_size=6).map(lambda raw: quote(raw, safe=""))
    | st.text("/%.?#&=~" + string.ascii_letters, max_size=12)
    | st.sampled_from(
        [
            "fake",
            "..",
            "%2e%2e%2f",
            "resp_0",
            "%00",
            "%ff",
            "%",
            "%zz",
            "x" * 5000,
            "a/b/",
            "//",
            "?",
        ]
    )
)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with contextlib.closing(Running(FakeAssistant("Hi."))) as one:
        yield one


def exchange(running: Running, request: bytes) -> bytes:
    """All that comes back until the server closes: a hang is a failure."""
    received = b""
    with contextlib.closing(running.connect()) as sock:
        with contextlib.suppress(ConnectionError):  # it may answer before it has read all
            sock.sendall(request)
        with contextlib.suppress(OSError):  # it has closed already
            sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                received += piece
    return received


def check(received: bytes, path: str) -> int:
    """The status of an answer that is as it should be; 0 if there is none: half a request."""
    if not received:
        return 0
    head, _, body = received.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert found, received[:300]
    status = int(found[1])
    assert status < 500, received[:1000]
    if b"application/json" in head and body:
        said = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert (status < 400) is ("error" not in said), said
        if status >= 400:
            assert said["error"]["message"]
    elif status == 200 and path == "/metrics":
        assert all(METRIC.fullmatch(line) for line in body.decode().splitlines())
    return status


@settings(max_examples=scaled(250), **SETTINGS)
@given(
    method=st.sampled_from(METHODS[:3]) | st.sampled_from(METHODS),
    path=st.sampled_from(FIXED) | st.builds(str.__add__, st.sampled_from(BELOW), NAMES),
    query=st.sampled_from(["", "?", "?stream=true", "?include[]=x", "?%ff=%00", "?a=b&a=b"]),
    headers=st.lists(st.sampled_from(HEADERS), max_size=3),
    body=st.sampled_from([b"", b"{}", b"0\r\n\r\n", b"\0" * 40]),
)
@example("GET", "/v1/responses/" + "x" * 70_000, "", [], b"")
@example("DELETE", "/v1/responses/", "", [], b"")
@example("GET", "/v1/models/%ed%a0%80", "", [], b"")
def test_reads_of_anything(
    running: Running, method: str, path: str, query: str, headers: list[bytes], body: bytes
) -> None:
    line = f"{method} {path}{query} HTTP/1.1".encode("latin-1", "replace")
    usual = [b"Host: localhost", b"Connection: close"]
    lines = b"\r\n".join([line, *usual, *headers])
    check(exchange(running, lines + b"\r\n\r\n" + body), path)
    assert running.get("/health").status == 200


@settings(max_examples=scaled(40), **SETTINGS)
@given(seed=st.integers(0, 2**32), moves=st.lists(st.sampled_from("mgdGD"), max_size=12))
def test_kept_responses_are_there_until_they_are_removed(
    running: Running, seed: int, moves: list[str]
) -> None:
    draw = random.Random(seed)
    there: dict[str, str] = {}  # what was asked, by id
    gone: list[str] = []
    for number, move in enumerate(moves):
        if move == "m":
            asked = {"input": f"{seed} {number}", "store": True}
            made = running.post("/v1/responses", json.dumps(asked).encode()).json
            there[made["id"]] = made["output"][0]["content"][0]["text"]
        elif move in "gd" and there:
            name = draw.choice(sorted(there))
            path = f"/v1/responses/{name}"
            answer = running.ask("GET" if move == "g" else "DELETE", path)
            assert answer.status == 200 and answer.json["id"] == name
            if move == "g":
                assert answer.json["output"][0]["content"][0]["text"] == there[name]
            else:
                gone.append(name)
                del there[name]
        elif move in "GD":
            name = draw.choice([*gone, "resp_of_nobody"])
            answer = running.ask("GET" if move == "G" else "DELETE", f"/v1/responses/{name}")
            assert answer.status == 404 and answer.json["error"]["code"] == "response_not_found"


@settings(max_examples=scaled(30), **SETTINGS)
@given(asked=st.lists(st.sampled_from(FIXED), min_size=1, max_size=6))
def test_reads_while_a_reply_is_written(running: Running, asked: list[str]) -> None:
    with running.client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hi"}], stream=True
    ) as stream:
        for path in asked:
            assert running.get(path).status == 200
        assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "Hi."
