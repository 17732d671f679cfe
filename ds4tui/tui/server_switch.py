"""The HTTP server as a switch: on with the open model, off in time."""

import asyncio

from ds4tui.assistant import Assistant
from ds4tui.tui.background import in_thread
from ds4tui.tui.ports import ServerLike, StartServer

STOP_TIMEOUT_S = 3.0


class ServerSwitch:
    """Belongs to the UI loop."""

    def __init__(self, start_server: StartServer) -> None:
        self._start_server = start_server
        self._server: ServerLike | None = None
        self._turning = asyncio.Lock()
        self.is_starting = False

    @property
    def url(self) -> str:
        """Where the server listens; "" while it is off."""
        return self._server.url if self._server is not None else ""

    @property
    def warning(self) -> str:
        """What to tell about a server that is on; "" if nothing."""
        return self._server.warning if self._server is not None else ""

    async def start(self, assistant: Assistant) -> None:
        """Raises UsageError, for instance for a port that is in use."""
        self.is_starting = True
        try:
            async with self._turning:
                self._server = await in_thread(
                    "ds4tui-serve", lambda: self._start_server(assistant)
                )
        finally:
            self.is_starting = False

    async def stop(self) -> bool:
        """Turn it off, one that is just starting too; whether it was on."""
        async with self._turning:
            server, self._server = self._server, None
            if server is not None:
                await in_thread("ds4tui-unserve", lambda: server.stop(STOP_TIMEOUT_S))
        return server is not None
