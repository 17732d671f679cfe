"""Server-sent events by hand: one JSON object a `data:` line, comments to keep alive.

No `id:` lines, and `event:` lines only where a dialect has them: with an id set, a comment's
blank line makes some clients dispatch an empty event and fail on it. A comment is never the first
thing sent, because others take the first line for the first event.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ds4tui.server.body import json_bytes
from ds4tui.server.hangup import ClientGone, until_hang_up

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


DONE = b"data: [DONE]\n\n"


def data_frame(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def event_frame(name: str, value: Mapping[str, Any]) -> bytes:
    """For dialects whose clients look at `event:` lines."""
    return b"event: " + name.encode() + b"\n" + data_frame(value)


def comment_frame(text: str) -> bytes:
    return f": {text}\n\n".encode()


class EventWriter:
    """Writes events to one client; a write waits while the client reads too slowly."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.written_s = time.monotonic()
        """When something was last written (monotonic clock)."""

    async def raw(self, frame: bytes) -> None:
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self.written_s = time.monotonic()


class EventStream(Response):
    """A 200 response whose events `produce` writes; `finish` runs at the end, however it ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        produce: Callable[[EventWriter], Awaitable[None]],
        finish: Callable[[bool], None],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._produce = produce
        self._finish = finish

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = True
        try:
            await until_hang_up(receive, self._send_all(send))
            gone = False
        except ClientGone:
            pass
        finally:
            self._finish(gone)

    async def _send_all(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await self._produce(EventWriter(send))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
