"""Giving up a load in the middle: whoever closes the engine need not wait for gigabytes.

The engine says, for its own thread, how to know that it is closing; whoever reads tensors asks
before each of them. It travels with the thread and not through every signature on the way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ds4tui.errors import EngineClosed

_is_stopping: ContextVar[Callable[[], bool] | None] = ContextVar("is_stopping", default=None)


@contextmanager
def stoppable(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Inside it, in this thread, `check_stopped` asks `is_stopping`."""
    token = _is_stopping.set(is_stopping)
    try:
        yield
    finally:
        _is_stopping.reset(token)


def check_stopped() -> None:
    """Raises EngineClosed if what this thread loads is not wanted any more."""
    ask = _is_stopping.get()
    if ask is not None and ask():
        raise EngineClosed("The engine was closed while it loaded.")
