"""Stopping work when the client has left.

Servers and ASGI versions differ in when they say so: some only on the next write, which during
a silent prefill may be minutes away. So we always listen ourselves, streaming or not.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before the answer was complete."""


async def until_hang_up(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client leaves (ClientGone).

    `receive` is the ASGI channel of a request whose body has been read.
    """
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGone
    except OSError as exc:  # newer ASGI servers raise it from send() once the client is gone
        raise ClientGone from exc
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
