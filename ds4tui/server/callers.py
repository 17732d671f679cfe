"""Who may ask: programs on this machine, not every web page that its browser has open.

A page of any site can send requests to 127.0.0.1. Two headers, which scripts cannot forge, give
it away: `Origin` names the page's site, and `Host` still holds the site's name when it has let
that name point here (DNS rebinding). No CORS headers are sent, so no page reads an answer either.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ds4tui.server.errors import ApiError, error_response


class LocalCallers:
    """ASGI middleware around a server on `host`: 403 for a Host that is not this machine and for
    a foreign Origin. With `needs_key` both may be anything, as the key tells who asks, but for
    the Host of a server that only this machine reaches."""

    def __init__(self, app: ASGIApp, host: str, needs_key: bool) -> None:
        self._app = app
        self._is_loopback = is_loopback(host)
        self._names = {"localhost", _bare(host)}
        if not self._is_loopback:
            own = socket.gethostname().lower()
            self._names |= {own, own.partition(".")[0], f"{own.partition('.')[0]}.local"}
        self._needs_key = needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._problem(Headers(scope=scope)) if scope["type"] == "http" else None
        app = self._app if problem is None else error_response(problem, scope["path"])
        await app(scope, receive, send)

    def _problem(self, headers: Headers) -> ApiError | None:
        host = headers.get("host")  # missing in HTTP/1.0, which no browser speaks
        if host is not None and not self._is_own(host):
            return ApiError(
                403,
                f"This server does not go by the name {host[:100]!r}.",
                code="host_not_allowed",
                hint="Call it localhost or by its address"
                + ("." if self._is_loopback else ", or start it with an API key."),
            )
        origin = headers.get("origin")
        if origin is not None and not self._needs_key and not _is_local(origin):
            return ApiError(
                403,
                f"Pages of {origin[:100]!r} may not use this server.",
                code="origin_not_allowed",
                hint="Start it with an API key, and let the page send that.",
            )
        return None

    def _is_own(self, header: str) -> bool:
        name = _bare(header)
        if name in self._names or is_loopback(name):
            return True
        # An address cannot be made to point elsewhere: a page that has it came from there.
        return not self._is_loopback and (self._needs_key or _address(name) is not None)


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, is reached from this machine only."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _is_local(origin: str) -> bool:
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:  # an address that is none
        return False


def _bare(header: str) -> str:
    """The host of `host`, `host:port`, `[address]:port` or a bare address, in lower case."""
    text = header.strip().lower()
    if text.startswith("[") and "]" in text:
        name, _, port = text[1:].partition("]")
        port = port.removeprefix(":")
    else:
        name, _, port = text.partition(":") if text.count(":") == 1 else (text, "", "")
    return name.removesuffix(".") if not port or port.isdecimal() else text


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
