"""Listening sockets, and clear words when there can be none."""

import errno
import os
import socket

from ds4tui.errors import UsageError

BACKLOG = 128

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address of `host`, all on one port.

    Port 0 picks a free one (and only the first address). Raises UsageError for a busy port, a
    host that is not this machine, a port that is none.
    """
    addresses = _addresses(host, port)
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in addresses if port else addresses[:1]:
        try:
            sockets.append(_listen(family, address))
        except OSError as exc:
            # "localhost" may name an IPv6 address on a machine that has none.
            if exc.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                missing = exc
                continue
            _close(sockets)
            raise _cannot_listen(host, port, exc) from exc
    if not sockets:
        assert missing is not None
        raise _cannot_listen(host, port, missing) from missing
    return sockets


def _addresses(host: str, port: int) -> list[tuple[int, tuple[str, int]]]:
    if not host or not 0 <= port <= 65535:
        raise UsageError(
            f"Cannot listen on host {host!r}, port {port}.",
            "Give an address such as 127.0.0.1 and a port from 0 to 65535.",
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as exc:
        raise UsageError(
            f"There is no host {host!r}.", "Give an address of this machine, such as 127.0.0.1."
        ) from exc
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]


def _listen(family: int, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections have just been closed can be taken again at once.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # here and not later: only now is a rival on the same port noticed
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"Port {port} on {host} is busy: another program listens there.",
            "Stop that program, or choose another port (0 picks a free one).",
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"Port {port} on {host} needs more rights.", "Choose a port from 1024 up."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(
            f"{host} is not an address of this machine.", "Use 127.0.0.1, or 0.0.0.0 for all."
        )
    reason = os.strerror(error.errno) if error.errno else str(error)
    return UsageError(f"Cannot listen on {host}, port {port}: {reason}.")


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def shown_host(host: str) -> str:
    """`host` as a client on this machine writes it in a URL."""
    reachable = _WILDCARDS.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable
