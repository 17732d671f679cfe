"""Requests that no job is needed for: a JSON object in, one out, on a worker thread."""

from collections.abc import Callable
from typing import Any

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ds4tui.server.body import json_bytes, parse_object, read_body, require_json
from ds4tui.server.fields import Fields
from ds4tui.server.service import CLIENT_GONE, Service

Tell = Callable[[Service, Fields], dict[str, Any]]


async def told(request: Request, tell: Tell, no_body: bytes = b"") -> Response:
    """What `tell` makes of the body, or of `no_body` where none was sent. Raises Ds4Error for what
    is refused."""
    service = Service.of(request)
    require_json(request)
    try:
        body = await read_body(request)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    made = await anyio.to_thread.run_sync(
        lambda: tell(service, Fields(parse_object(body or no_body)))
    )
    return Response(json_bytes(made), media_type="application/json")
