"""Requests that no client library would send: the server answers, or drops them, and lives."""

import json
import socket
from collections.abc import Callable

import pytest

from ds4tui.server import body as body_module
from tests.fakes import FakeAssistant
from tests.server.conftest import Running, wait_until

Serve = Callable[..., Running]
CHAT = "/v1/chat/completions"
GOOD = b'{"messages": [{"role": "user", "content": "Hello"}]}'


def exchange(running: Running, request: bytes, half_close: bool = False) -> bytes:
    """All that comes back until the server closes the connection."""
    sock = running.connect()
    sock.sendall(request)
    if half_close:
        sock.shutdown(socket.SHUT_WR)
    received = b""
    try:
        while chunk := sock.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def assert_lives(running: Running) -> None:
    assert running.post(CHAT, GOOD).status == 200
    assert len(running.active_jobs) == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"complete nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # a TLS client
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: nine\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET /health HTTP/1.1\r\n\r\n",  # no Host
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * 200_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nnot a size\r\n",
    ],
)
def test_what_is_no_http_is_refused(serve: Serve, request_bytes: bytes) -> None:
    running = serve()
    answer = exchange(running, request_bytes)
    assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert running.engine.requests == []
    assert_lives(running)


def test_a_body_that_ends_early_starts_no_job(serve: Serve) -> None:
    running = serve()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(GOOD) + 1}\r\n\r\n"
    exchange(running, head.encode() + GOOD, half_close=True)
    assert running.engine.requests == []
    assert_lives(running)


def test_a_head_that_never_ends_holds_nothing_up(serve: Serve) -> None:
    running = serve()
    running.connect().sendall(b"POST /v1/chat/compl")
    running.connect().sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    )
    assert_lives(running)
    assert running.handle.stop(timeout_s=1.0)


def test_a_chunked_body(serve: Serve) -> None:
    running = serve()
    answer = running.ask("POST", CHAT, body=iter([GOOD[:10], GOOD[10:]]), encode_chunked=True)
    assert answer.status == 200


def test_a_body_in_single_bytes(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    sock = running.connect()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(GOOD)}\r\n\r\n"
    for byte in head.encode() + GOOD:
        sock.sendall(bytes([byte]))
    assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_two_requests_on_one_connection_at_once(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(GOOD)}\r\n"
    first = f"{head}\r\n".encode() + GOOD
    second = f"{head}Connection: close\r\n\r\n".encode() + GOOD
    assert exchange(running, first + second).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_over_the_limit_is_told_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, declared: bool
) -> None:
    monkeypatch.setattr(body_module, "MAX_BODY_BYTES", 2**20)
    running = serve()
    big = b'{"x": "' + b"x" * (4 * 2**20) + b'"}'
    if declared:
        answer = running.post(CHAT, big)
    else:
        parts = iter([big[i : i + 65536] for i in range(0, len(big), 65536)])
        answer = running.ask("POST", CHAT, body=parts, encode_chunked=True)
    assert answer.status == 413
    assert "larger than 1 MiB" in answer.json["error"]["message"]
    assert_lives(running)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": NaN}', b"\xff\xfe"])
def test_a_wrong_body_is_a_clear_400(serve: Serve, body: bytes) -> None:
    running = serve()
    answer = running.post(CHAT, body)
    error = answer.json["error"]
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("The body ")


def test_unknown_paths_and_methods(serve: Serve) -> None:
    running = serve()
    nowhere = running.get("/v1/embeddings")
    assert nowhere.status == 404
    assert nowhere.json["error"]["code"] == "unknown_endpoint"
    assert "/v1/chat/completions" in nowhere.json["error"]["message"]
    wrong = running.get(CHAT)
    assert wrong.status == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json["error"]["code"] == "method_not_allowed"
    assert running.ask("DELETE", "/v1/models").status == 405


@pytest.mark.parametrize("host", ["[", "a b", "x:y:z", "\xff"])
def test_no_host_header_confuses_an_error(serve: Serve, host: str) -> None:
    assert serve().get("/v1/nowhere", headers={"Host": host}).status in (400, 403)


@pytest.mark.parametrize("path", ["/health/", "/v1/chat/completions/", "/%2e%2e/health", "//"])
def test_paths_are_taken_as_they_are(serve: Serve, path: str) -> None:
    assert serve().get(path).status == 404


def test_the_root_tells_who_is_here(serve: Serve) -> None:
    running = serve()
    assert running.get("/").json == {"server": "ds4tui", "model": "fake"}
    assert running.ask("HEAD", "/").status == 200


def test_health_and_cache(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    assert running.get("/health").json == {"status": "ok"}
    before = running.get("/v1/cache").json
    assert (before["state"], before["resident_tokens"], before["decision"]) == ("idle", 0, None)
    reply = running.post(CHAT, GOOD).json
    wait_until(lambda: running.assistant.stats.state == "idle")
    after = running.get("/v1/cache").json
    assert after["resident_tokens"] > 0
    assert after["decision"]["reason"] == reply["kv"]["reason"]
    assert after["total_evaluated_tokens"] == reply["usage"]["prompt_tokens"]
    json.dumps(after, allow_nan=False)
    running.assistant.close()
    closed = running.get("/health")
    assert (closed.status, closed.json) == (503, {"status": "closed"})
    refused = running.post(CHAT, GOOD)
    assert (refused.status, refused.json["error"]["code"]) == (503, "engine_closed")
