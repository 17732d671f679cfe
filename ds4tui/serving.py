"""`ds4tui serve`: open a model, serve it over HTTP until a signal says to stop."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ds4tui.assistant import Assistant
from ds4tui.config import Settings
from ds4tui.opening import open_assistant
from ds4tui.server.runner import ServerHandle

# Looking this often whether the server still runs costs nothing.
POLL_S = 1.0


class _Stopped(Exception):
    """A signal came; `exit_code` is what the process ends with."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        # A service manager's SIGTERM is an ordinary end; Ctrl-C is an interrupt everywhere.
        self.exit_code = 0 if number == signal.SIGTERM else 130


def serve(settings: Settings) -> int:
    """The exit code. Raises UsageError for a busy port, and what opening the model raises."""
    with _stopping_on_signals():
        try:
            return _serve(settings)
        except _Stopped as stopped:
            _say(f"stopped by {stopped}")
            return stopped.exit_code


def _serve(settings: Settings) -> int:
    assistant = open_assistant(settings.model, settings, _say)
    try:
        server = start_server(assistant, settings)
        try:
            _say(f"{assistant.info.name} is served on {server.url}/v1 (Ctrl-C stops)")
            while server.is_running:
                threading.Event().wait(POLL_S)
            _say("the HTTP server failed; see the log")
            return 1
        finally:
            server.stop()
    finally:
        assistant.close()


@contextmanager
def _stopping_on_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise _Stopped in the main thread, once: the end is not interrupted."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start_server(assistant: Assistant, settings: Settings) -> ServerHandle:
    """Raises UsageError if the address cannot be listened on."""
    key = settings.api_key or None
    defaults = settings.sampling()
    return ServerHandle.start(assistant, settings.host, settings.port, key, defaults=defaults)
