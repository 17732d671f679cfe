"""What is left of an error once it is told: its words, and nothing that it was raised among."""

import traceback
from collections.abc import Iterator


def let_go(error: BaseException) -> None:
    """Forget where `error`, and what led to it, was raised.

    A traceback holds the local variables of every call that the error passed: the state that a
    step failed on, its buffers, the model. Front-ends keep errors as long as they show them, so
    these must not. To be called when it is logged; calls that still run are left alone.
    """
    for one in _with_what_led_to_it(error):
        traceback.clear_frames(one.__traceback__)  # log records may hold the traceback, too
        one.__traceback__ = None


def _with_what_led_to_it(error: BaseException) -> Iterator[BaseException]:
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        yield one
