"""Textual's driver on a terminal that may go away while the app runs.

Textual's writing thread dies of the first write that fails; its short queue then fills, and
whoever writes next (the UI loop) waits for ever. Here such writes are dropped, and the app is told.
"""

import logging
from collections.abc import Callable
from typing import IO, Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

log = logging.getLogger(__name__)


class TerminalDriver(LinuxDriver):
    """Calls the app's `terminal_is_gone` on its loop, once or twice, when it is gone."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        if self._file is not None:
            self._file = _Forgiving(self._file, self._tell_gone)  # type: ignore[assignment]

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except Exception as exc:  # the thread's root: Textual would show what it was about
            self._app.call_later(self._app._handle_exception, exc)

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError as exc:
            log.warning("the terminal cannot be read any more: %s", exc)
            self._tell_gone()

    def _tell_gone(self) -> None:
        self._app.call_later(self._app.terminal_is_gone)  # type: ignore[attr-defined]


class _Forgiving:
    """A text file that swallows what cannot be written; used by the writing thread alone."""

    def __init__(self, file: IO[str], on_gone: Callable[[], None]) -> None:
        self._file = file
        self._on_gone = on_gone
        self._is_gone = False

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, text: str) -> None:
        if not self._is_gone:
            try:
                self._file.write(text)
            except OSError as exc:
                self._give_up(exc)

    def flush(self) -> None:
        if not self._is_gone:
            try:
                self._file.flush()
            except OSError as exc:
                self._give_up(exc)

    def _give_up(self, exc: OSError) -> None:
        self._is_gone = True
        log.warning("the terminal is gone: %s", exc)
        self._on_gone()
