"""`ds4tui serve`: open a model, serve it over HTTP until a signal says to stop.

The first SIGTERM or SIGINT stops cleanly: no new connections, open replies end as incomplete,
their jobs are cancelled, the engine is closed. A second one, or the deadline, ends the process
at once; both are left to the kernel, so that nothing that hangs in here can hold them up.
"""

import os
import queue
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.chat.ledger import ConversationLedger
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.server.keep_alive import KeepAlives
from ds4tui.server.listening import bind
from ds4tui.server.runner import ServerHandle

OpenModel = Callable[[str, Callable[[str], None]], Assistant]

_STOPPING = (signal.SIGTERM, signal.SIGINT)

# Supervisors send SIGKILL 5 s after SIGTERM at the earliest: replies get the first part of it,
# a step of the engine, which is never torn, the rest.
STOP_SERVER_S = 1.0
CLOSE_ENGINE_S = 2.5
DEADLINE_S = 6.0

# Looking this often whether the server still runs costs nothing.
POLL_S = 1.0


def run(settings: Settings, open_model: OpenModel) -> int:
    """The exit code: 0 after SIGTERM, 130 after SIGINT, 1 if the server failed.

    `open_model(name, progress)` opens the model. Raises what it raises, and UsageError for a
    busy port before anything is loaded. Must be called on the main thread.
    """
    with _Signals() as signals:
        _require_address(settings.host, settings.port)
        assistant = open_model(settings.model, _say)
        signals.have_work_to_end = True
        store = ConversationStore.open_or_memory(settings.database_path)
        if store.problem is not None:
            _say(f"conversations are not kept: {store.problem}")
        agents = Agents(ConversationLedger(store))
        try:
            exit_code = _serve(assistant, settings, signals, agents)
        finally:
            assistant.close(CLOSE_ENGINE_S)
            agents.close()
            store.close()
        if assistant.stats.state != "closed":
            _say("the engine is still at a step; leaving it")
            # Python's own clean-up would pull memory from under the running step.
            os._exit(exit_code)
        return exit_code


def _serve(assistant: Assistant, settings: Settings, signals: "_Signals", agents: Agents) -> int:
    server = start_server(assistant, settings, agents)
    try:
        _say(f"{assistant.info.name} computes on {assistant.stats.compute_path}")
        _say(f"{assistant.info.name} is served on {server.url}/v1 (Ctrl-C stops)")
        while server.is_running and assistant.stats.state != "closed":
            exit_code = signals.wait(POLL_S)
            if exit_code is not None:
                return exit_code
        _say(f"the {'engine' if server.is_running else 'HTTP server'} failed; see the log")
        return 1
    finally:
        server.stop(STOP_SERVER_S)


def start_server(
    assistant: Assistant, settings: Settings, agents: Agents | None = None
) -> ServerHandle:
    """Raises UsageError if the address cannot be listened on. `agents` watches the requests."""
    return ServerHandle.start(
        assistant,
        settings.host,
        settings.port,
        settings.api_key or None,
        defaults=settings.sampling(assistant.info.sampling),
        keep_alives=KeepAlives.of(settings.server_keep_alive, settings.server_keep_alive_clients),
        agents=agents,
    )


def _require_address(host: str, port: int) -> None:
    """A model may take a minute to load; a busy port is told before."""
    for sock in bind(host, port):
        sock.close()


class _Signals:
    """The stop signals while they are ours: `wait` returns the exit code that the first one
    asks for. Until there `have_work_to_end`, it ends the process on the spot: a load cannot be
    interrupted, and nothing is lost with it."""

    def __init__(self) -> None:
        self.have_work_to_end = False
        self._is_stopping = False
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put is reentrant

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _STOPPING}
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._arrived.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A service manager's SIGTERM is an ordinary end; Ctrl-C is an interrupt everywhere.
        exit_code = 0 if number == signal.SIGTERM else 130
        if self._is_stopping:  # the second one came before it was the kernel's
            os._exit(128 + number)
        self._is_stopping = True
        for each in _STOPPING:
            signal.signal(each, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
        os.write(2, f"stopping ({signal.Signals(number).name})\n".encode())  # print may be busy
        if not self.have_work_to_end:
            os._exit(exit_code)
        self._arrived.put(exit_code)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
