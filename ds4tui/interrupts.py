"""Ctrl-C while there is nothing to end in order."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C exits with 130 on the spot and raises no KeyboardInterrupt: one that comes
    while an extension module is imported is lost, or aborts the process."""
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_ours:
        signal.signal(signal.SIGINT, exit_interrupted)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_interrupted(*_: object) -> None:
    if os.isatty(2):  # a word about the work may stand there
        os.write(2, b"\r\x1b[K")
    os._exit(INTERRUPTED)
