"""The one open model of the app: opening, replacing and closing it, off the UI loop."""

import logging
from collections.abc import Callable

from ds4tui.assistant import Assistant
from ds4tui.errors import Ds4Error, ModelError
from ds4tui.tui.background import in_thread, on_this_loop
from ds4tui.tui.ports import OpenModel

log = logging.getLogger(__name__)

# An engine that does not stop within this is left to the end of the process.
CLOSE_TIMEOUT_S = 5.0


class ModelSlot:
    """Belongs to the UI loop. `assistant` is None while nothing is open."""

    def __init__(self, open_model: OpenModel) -> None:
        self.assistant: Assistant | None = None
        self.opening = ""
        """The name that is being opened; "" if none is."""
        self._open_model = open_model
        self._is_closed = False

    async def open(self, name: str, on_words: Callable[[str], None]) -> None:
        """Open `name` in place of what is open now: two models at once may not fit.

        `on_words` is told how far it is. Raises Ds4Error; then no model is open.
        """
        self.opening = name
        tell = on_this_loop(on_words)
        try:
            await self._close_open_one()
            opened = await in_thread("ds4tui-open", lambda: self._open_on_thread(name, tell))
            if not self._is_closed:
                self.assistant = opened
        except Ds4Error:
            raise
        except Exception as exc:  # the opening thread's root: told to the person, not a crash
            log.exception("opening %s failed", name)
            raise ModelError(
                f"The model {name} could not be opened: {exc}.", "The log file has the details."
            ) from exc
        finally:
            self.opening = ""

    async def close(self) -> None:
        """Close the open model; one that is still being opened closes itself when it is there."""
        self._is_closed = True
        await self._close_open_one()

    async def _close_open_one(self) -> None:
        assistant, self.assistant = self.assistant, None
        if assistant is not None:
            await in_thread("ds4tui-close", lambda: assistant.close(CLOSE_TIMEOUT_S))

    def _open_on_thread(self, name: str, tell: Callable[[str], None]) -> Assistant:
        assistant = self._open_model(name, tell)
        if self._is_closed:
            assistant.close(CLOSE_TIMEOUT_S)
        return assistant
