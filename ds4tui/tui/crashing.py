"""An app whose crash leaves a report and the draft, and tells nothing of what was written.

Textual shows a traceback with the values of all variables: a prompt, a conversation. Here the
report is written, the terminal is left as it was found, and whoever ran the app says where the
report is. Leans on private parts of Textual 8.2.8: look here when it is updated.
"""

import logging
from pathlib import Path
from typing import Any

from textual.app import App

from ds4tui.crash import write_report

log = logging.getLogger(__name__)


class ReportingApp(App[None], inherit_bindings=False):
    """`crash` is (the error that ended the app, its report if one could be written)."""

    def __init__(self) -> None:
        super().__init__()
        self.crash: tuple[Exception, Path | None] | None = None

    def keep_what_stands(self) -> None:
        """Called at once when the app crashes, while its widgets are still there."""

    def _handle_exception(self, error: Exception) -> None:
        self._return_code = 1
        if self.crash is None:
            self.crash = error, write_report(error, "the app")
            log.error("the app crashed", exc_info=error)
            self._exception = error
            self._exception_event.set()
            try:
                self.keep_what_stands()
            except Exception:  # the app may be in any state: the report is there already
                log.exception("what stood in the prompt could not be kept")
        self._close_messages_no_wait()

    def _print_error_renderables(self) -> None:
        self._exit_renderables.clear()  # what Textual found to say about it elsewhere

    def panic(self, *renderables: Any) -> None:
        log.error("Textual ended the app")
        super().panic(*renderables)
