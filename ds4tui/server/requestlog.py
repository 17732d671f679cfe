"""One log line a request, written when its response has ended."""

import logging
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_POLLED = frozenset({"/health", "/v1/cache"})  # asked for every second: not worth an INFO line


class RequestLog:
    """ASGI middleware: method, path, status, seconds, and what the endpoint noted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        status = 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            _log(scope, status, time.monotonic() - started_s)


def log_note(request: Request, note: str) -> None:
    """Words for the end of this request's log line."""
    request.scope.setdefault("state", {})["note"] = note


def _log(scope: Scope, status: int, took_s: float) -> None:
    level = logging.DEBUG if scope["path"] in _POLLED else logging.INFO
    # The raw path is still percent-encoded, so that nobody can put a line end into the log.
    path = scope.get("raw_path", b"").decode("ascii", "replace")
    # Neither can anybody through a note, which may quote what was sent.
    note = "".join(c if c.isprintable() else "?" for c in scope.get("state", {}).get("note", ""))
    line = f"{scope['method']} {path} {status} {took_s:.2f}s {note}".rstrip()
    logger.log(level, "%s", line)
