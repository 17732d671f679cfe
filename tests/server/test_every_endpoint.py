"""What holds for each endpoint that there is, also for those that are still to come."""

import json
from collections.abc import Callable

import pytest

from ds4tui.server.app import ROUTES
from ds4tui.server.auth import OPEN_PATHS
from tests.server.conftest import Running

Serve = Callable[..., Running]
PLACES = {"{model_id:path}": "fake", "{response_id}": "r"}
ASKED = [
    (method, "/".join(PLACES.get(part, part) for part in route.path.split("/")))
    for route in ROUTES
    for method in sorted((route.methods or set()) - {"HEAD"})
]
POSTED = [(method, path) for method, path in ASKED if method == "POST"]
WRONG_KEYS = ["", "Bearer wrong", "Bearer secre", "Bearer secret2", "Basic secret"]
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(("method", "path"), ASKED)
@pytest.mark.parametrize("key", WRONG_KEYS)
def test_no_answer_without_the_key(serve: Serve, method: str, path: str, key: str) -> None:
    running = serve(api_key="secret")
    headers = {**JSON, "Authorization": key} if key else JSON
    answer = running.ask(method, path, body=b"{}", headers=headers)
    assert answer.status == (200 if path in OPEN_PATHS else 401)
    assert path in OPEN_PATHS or b"key" in answer.body
    assert not running.engine.jobs
    with_key = {**JSON, "Authorization": "Bearer secret"}
    assert running.ask(method, path, body=b"{}", headers=with_key).status != 401


@pytest.mark.parametrize(("method", "path"), ASKED)
@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}]
)
def test_no_answer_to_pages_of_others(
    serve: Serve, method: str, path: str, headers: dict[str, str]
) -> None:
    running = serve()
    answer = running.ask(method, path, body=b"{}", headers={**JSON, **headers})
    assert answer.status == 403 and not running.engine.jobs
    allowed = {name.lower() for name in answer.headers}
    assert "access-control-allow-origin" not in allowed


@pytest.mark.parametrize(("method", "path"), POSTED)
def test_a_body_that_is_too_large_is_not_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    monkeypatch.setattr("ds4tui.server.body.MAX_BODY_BYTES", 1000)
    running = serve()
    body = json.dumps({"x": "y" * 2000}).encode()
    assert running.post(path, body, headers=JSON).status == 413
    assert running.post(path, b"x=1", headers={"Content-Type": "text/plain"}).status == 415
