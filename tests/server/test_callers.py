"""Web pages cannot use the server: what their requests look like is sent by hand."""

import json
import socket
from collections.abc import Callable

import pytest

from ds4tui.errors import UsageError
from ds4tui.server.callers import LocalCallers
from ds4tui.server.runner import ServerHandle
from tests.fakes import FakeAssistant
from tests.server.conftest import Answer, Running

Serve = Callable[..., Running]
CHAT = "/v1/chat/completions"
GOOD = b'{"messages": [{"role": "user", "content": "Hello"}]}'
JSON = {"Content-Type": "application/json"}


def refused(answer: Answer, code: str) -> str:
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (answer.status, error["type"], error["code"]) == (403, "invalid_request_error", code)
    message: str = error["message"]
    return message


def test_what_any_page_can_send_is_refused(serve: Serve) -> None:
    """Raw, as a browser sends a form of plain text after its page's name was made to point here."""
    running = serve()
    sock = running.connect()
    sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: evil.example\r\n"
        b"Origin: http://evil.example\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        + f"Content-Length: {len(GOOD)}\r\n\r\n".encode()
        + GOOD
    )
    answer = sock.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 403")
    assert b"access-control" not in answer.lower()
    assert running.engine.requests == []


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8484", "localhost.evil.example", "localhost:80:80", "",
     "10.0.0.1", "127.0.0.1.evil.example", "[::2]", "[::1", "localhost:x", "xlocalhost"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/nowhere"])
def test_a_foreign_host_is_refused(serve: Serve, host: str, path: str) -> None:
    message = refused(serve().get(path, headers={"Host": host}), "host_not_allowed")
    assert repr(host) in message and "localhost" in message


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.:8484", "127.0.0.1:8484", "127.0.0.1", "[::1]:8484",
     "[::1]"],
)  # fmt: skip
def test_this_machine_is_served_by_any_of_its_names(serve: Serve, host: str) -> None:
    assert serve().post(CHAT, GOOD, headers={**JSON, "Host": host}).status == 200


def test_no_host_at_all_is_no_browser(serve: Serve) -> None:
    sock = serve().connect()
    sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
    assert sock.makefile("rb").read().startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://localhost.evil.example", "null", "", "http://[", "file://",
     "http://localhost@evil.example", "http://10.0.0.1:8484"],
)  # fmt: skip
def test_a_page_from_elsewhere_is_refused(serve: Serve, origin: str) -> None:
    running = serve()
    answer = running.post(CHAT, GOOD, headers={**JSON, "Origin": origin})
    assert "API key" in refused(answer, "origin_not_allowed")
    assert running.engine.requests == []


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:1"])
def test_a_page_of_this_machine_is_served(serve: Serve, origin: str) -> None:
    assert serve().post(CHAT, GOOD, headers={**JSON, "Origin": origin}).status == 200


def test_a_page_that_has_the_key_is_served(serve: Serve) -> None:
    running = serve(api_key="secret")
    page = {**JSON, "Origin": "http://ui.example"}
    assert running.post(CHAT, GOOD, headers=page).status == 401
    with_key = {**page, "Authorization": "Bearer secret"}
    assert running.post(CHAT, GOOD, headers=with_key).status == 200
    assert running.post(CHAT, GOOD, headers={**with_key, "Host": "ui.example"}).status == 403


def own(host: str, header: str, needs_key: bool = False) -> bool:
    async def unused(*given: object) -> None:
        raise AssertionError

    return LocalCallers(unused, host, needs_key)._is_own(header)


def test_a_server_open_to_the_network_goes_by_the_machines_names() -> None:
    assert own("0.0.0.0", f"{socket.gethostname()}:8484")
    assert own("0.0.0.0", "192.168.1.5:8484")
    assert own("0.0.0.0", "localhost")
    assert own("model.lan", "MODEL.lan:8484")
    assert own("::", "[fe80::1]:8484")
    assert not own("0.0.0.0", "evil.example")
    assert own("0.0.0.0", "model.example", needs_key=True)


@pytest.mark.parametrize(
    "named",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
     "application/jsonp", "text/plain; application/json"],
)  # fmt: skip
def test_a_body_that_is_not_called_json_is_refused(serve: Serve, named: str) -> None:
    running = serve()
    answer = running.post(CHAT, GOOD, headers={"Content-Type": named})
    assert answer.status == 415
    assert "-H 'Content-Type: application/json'" in answer.json["error"]["message"]
    assert running.engine.requests == []


@pytest.mark.parametrize("named", ["application/json; charset=utf-8", "Application/JSON"])
def test_other_spellings_of_json_are_taken(serve: Serve, named: str) -> None:
    assert serve().post(CHAT, GOOD, headers={"Content-Type": named}).status == 200


@pytest.mark.parametrize("given", ["abc ", "\tabc\n"])
def test_a_key_with_white_space_around_it_locks_nobody_out(serve: Serve, given: str) -> None:
    running = serve(api_key=given)
    good = {**JSON, "Authorization": "Bearer abc"}
    assert running.post(CHAT, GOOD, headers=good).status == 200
    assert running.post(CHAT, GOOD, headers=JSON).status == 401


def test_a_blank_key_is_refused() -> None:
    with pytest.raises(UsageError, match="API key"):
        ServerHandle.start(FakeAssistant(), "127.0.0.1", 0, "  ")


def test_a_number_of_thousands_of_digits_is_told_in_plain_words(serve: Serve) -> None:
    body = json.loads(GOOD)
    answer = serve().post(CHAT, (json.dumps(body)[:-1] + ', "seed": ' + "9" * 5000 + "}").encode())
    message = answer.json["error"]["message"]
    assert answer.status == 400
    assert message.endswith("is too large.") and "sys." not in message and len(message) < 100


def test_a_missing_role_is_told_so(serve: Serve) -> None:
    message = serve().post(CHAT, b'{"messages": [{"content": "x"}]}').json["error"]["message"]
    assert message.startswith("messages[0].role must be one of system")
    assert message.endswith("it is not given.")
