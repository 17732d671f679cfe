"""HTTP GET with the standard library, with every failure told plainly.

TLS and proxies are the standard library's: SSL_CERT_FILE and the *_PROXY variables work.
Credentials in an index's address are sent as basic authentication, to that host only, and never
shown.
"""

import base64
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, urlsplit, urlunsplit

from ds4tui import __version__
from ds4tui.errors import DownloadError

# One read or connect may stay silent this long; a slow line keeps delivering something.
TIMEOUT_S = 30.0

# What the network does wrong while bytes flow; the caller may go on where it stopped.
BROKEN = (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, socket.gaierror)


INDEX_HINTS: Mapping[int, str] = MappingProxyType(
    {
        401: "The index wants a user and password: put them into its address.",
        403: "The server does not allow it; a proxy or firewall may be in between.",
        404: "Is this index a full mirror? PIP_INDEX_URL and UV_DEFAULT_INDEX choose another.",
        407: "The proxy wants a user and password: put them into HTTPS_PROXY.",
    }
)


@dataclass(frozen=True, slots=True)
class Address:
    """A URL without its credentials, the header that carries them, and what to do when the
    server refuses, by status."""

    url: str
    authorization: str | None = None
    hints: Mapping[int, str] = field(default_factory=lambda: INDEX_HINTS, repr=False)

    @classmethod
    def of(cls, text: str) -> "Address":
        parts = urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DownloadError(
                f"{text!r} is not the address of a package index.", "It must begin with https://."
            )
        url = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if parts.username is None:
            return cls(url)
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(url, "Basic " + base64.b64encode(secret.encode()).decode())

    def sibling(self, url: str) -> "Address":
        """Another URL; it gets the credentials if it is on the same host."""
        same = urlsplit(url).netloc == urlsplit(self.url).netloc
        return Address(url, self.authorization if same else None, self.hints)


def get(address: Address, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """An open response with status 200 or 206.

    Raises DownloadError for anything else, urllib's HTTPError only for status 416.
    """
    request = urllib.request.Request(address.url, headers=dict(headers))
    request.add_header("User-Agent", f"ds4tui/{__version__}")
    if address.authorization:
        # Unredirected: it must not follow a redirect to another host.
        request.add_unredirected_header("Authorization", address.authorization)
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as exc:
        if exc.code == 416:
            raise
        exc.close()
        raise refused(address, exc.code, exc.reason) from exc
    except urllib.error.URLError as exc:
        raise unreachable(address.url, exc.reason) from exc
    except (*BROKEN, OSError) as exc:
        raise unreachable(address.url, exc) from exc
    return response


def refused(address: Address, status: int, reason: str) -> DownloadError:
    hint = address.hints.get(status, "Try again later: run the same command.")
    return DownloadError(f"{address.url} answered {status} {reason}.", hint)


def unreachable(url: str, reason: object) -> DownloadError:
    host = urlsplit(url).hostname or url
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DownloadError(
            f"The certificate of {host} is not trusted: {reason.verify_message}.",
            "Behind a company proxy, point SSL_CERT_FILE at its certificate.",
        )
    words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return DownloadError(
        f"{host} cannot be reached: {words}.",
        "Check the network and run the same command again; what was fetched is kept.",
    )
