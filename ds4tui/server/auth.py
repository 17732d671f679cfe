"""The API key on everything but /health: `Authorization: Bearer KEY`, or `x-api-key: KEY`."""

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ds4tui.server.errors import ApiError, error_response

OPEN_PATHS = frozenset({"/health"})  # supervisors and load balancers ask without a key


class BearerAuth:
    """ASGI middleware; the comparison takes the same time whatever was sent."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allows(scope):
            await self._app(scope, receive, send)
            return
        refusal = ApiError(
            401,
            "The API key is missing or wrong.",
            code="invalid_api_key",
            hint="Send 'Authorization: Bearer KEY' with the key that the server was started with.",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(refusal, scope["path"])(scope, receive, send)

    def _allows(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        given = key.strip().encode("latin-1")  # header bytes, as starlette decoded them
        return hmac.compare_digest(given, self._expected)
