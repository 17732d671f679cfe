"""Blocking calls off the UI loop, each on a daemon thread of its own.

Not asyncio.to_thread: the interpreter waits for its threads at exit, and a model that is still
loading (or a call that hangs) must not keep a quitting app alive.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def in_thread(name: str, call: Callable[[], T]) -> T:
    """The result of `call()`, run on a thread called `name`; raises what it raised.

    If the caller is cancelled the call runs on and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only if T allows it

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as exc:  # the thread's root: the awaiting caller gets it
            error = exc
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


def on_this_loop(call: Callable[[T], None]) -> Callable[[T], None]:
    """`call` for other threads: it runs on this loop soon, or never if the loop was closed."""
    loop = asyncio.get_running_loop()
    context = copy_context()  # Textual finds the running app there; the other thread has none

    def hand_over(value: T) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, value, context=context)

    return hand_over
