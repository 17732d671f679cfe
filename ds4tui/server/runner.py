"""The HTTP server beside an app: its own thread, its own event loop, sockets bound beforehand.

Sockets are bound on the caller's thread because uvicorn ends the process when it cannot bind.
It is also kept from taking the signals and the terminal, which belong to whoever started us.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette

from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import EngineError, UsageError
from ds4tui.server.app import create_app
from ds4tui.server.keep_alive import KeepAlives
from ds4tui.server.listening import bind, shown_host

logger = logging.getLogger(__name__)

# Clients drop idle connections after 5 s; a server that does it at the same moment loses
# requests that are on their way.
KEEP_CONNECTION_S = 75

START_TIMEOUT_S = 30.0


class ServerHandle:
    """A running server. Any thread may use it."""

    def __init__(self, app: Starlette, sockets: list[socket.socket], host: str, warning: str):
        self.warning = warning
        """What whoever started it should be told; empty if nothing."""
        self.port: int = sockets[0].getsockname()[1]
        self.url = f"http://{shown_host(host)}:{self.port}"
        """Without the /v1 that OpenAI clients want at the end of their base URL."""
        self._app = app
        self._sockets = sockets
        self._server = _Server(_config(app))
        self._thread = threading.Thread(target=self._run, name="ds4tui-http", daemon=True)

    @classmethod
    def start(
        cls,
        assistant: Assistant,
        host: str,
        port: int,
        api_key: str | None = None,
        *,
        defaults: SamplingDefaults | None = None,
        agents: Agents | None = None,
        keep_alives: KeepAlives | None = None,
    ) -> "ServerHandle":
        """Serve `assistant` on every address of `host`; port 0 picks a free one.

        Returns once requests are accepted. Raises UsageError if the port is busy, the host is no
        address of this machine, or the key is blank; white space around a key does not count.
        """
        if api_key:
            api_key = _stripped(api_key)
        app = create_app(
            assistant,
            api_key,
            host=host,
            defaults=defaults,
            agents=agents,
            keep_alives=keep_alives,
        )
        sockets = bind(host, port)
        handle = cls(app, sockets, host, "" if api_key else _exposure(host, sockets))
        if handle.warning:
            logger.warning(handle.warning)
        handle._thread.start()
        if not handle._server.ready.wait(START_TIMEOUT_S) or not handle._server.started:
            handle.stop(timeout_s=1.0)
            raise EngineError("The HTTP server did not start.", "See the log.")
        logger.info("serving %s on %s", assistant.info.name, handle.url)
        return handle

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout_s: float = 3.0) -> bool:
        """Stop accepting, end every open reply with an error, cancel its job, and wait.

        Whether the thread has ended; connections that would not close in time are dropped.
        May be called more than once.
        """
        self._server.stop_soon(self._app, timeout_s)
        self._thread.join(timeout_s + 1.0)
        if self._thread.is_alive():
            logger.error("the HTTP server did not stop within %.1f s", timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._server.run(sockets=self._sockets)
        except (Exception, SystemExit):  # a thread's root: the process must outlive its server
            logger.exception("the HTTP server failed")
        finally:
            self._server.ready.set()
            for sock in self._sockets:
                sock.close()


class _Server(uvicorn.Server):
    """uvicorn without its claim on the process, that can be stopped from another thread."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        latecomers = asyncio.create_task(self._turn_latecomers_away())
        await super().shutdown(sockets)
        latecomers.cancel()
        # Whoever is still connected reads too slowly or sends nothing: drop without asking.
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the transports close before their loop does

    async def _turn_latecomers_away(self) -> None:
        """uvicorn tells idle connections once to close. One that was accepted in that very moment
        misses it and would hold the stop up until its time is over."""
        while True:
            await asyncio.sleep(0.1)
            for connection in list(self.server_state.connections):
                if not connection.transport.is_closing():
                    connection.shutdown()

    def stop_soon(self, app: Starlette, timeout_s: float) -> None:
        def begin() -> None:
            app.state.service.jobs.stop()
            self.should_exit = True

        self.config.timeout_graceful_shutdown = timeout_s  # type: ignore[assignment]
        if self._loop is None:
            self.should_exit = True
        else:
            with contextlib.suppress(RuntimeError):  # the loop has closed: it stopped already
                self._loop.call_soon_threadsafe(begin)


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # its own would write to the terminal
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_CONNECTION_S,
    )


def _stripped(api_key: str) -> str:
    key = api_key.strip()
    if not key:
        raise UsageError("The API key is white space.", "Give one that can be sent, or none.")
    return key


def _exposure(host: str, sockets: list[socket.socket]) -> str:
    addresses = [sock.getsockname()[0].partition("%")[0] for sock in sockets]
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        return ""
    return (
        f"The server on {host} can be reached from the network and needs no key: "
        "anyone there can use the model. Set an API key, or listen on 127.0.0.1."
    )
