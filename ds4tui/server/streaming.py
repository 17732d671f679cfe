"""Drives a dialect over the events of a request's jobs, and keeps the connection alive."""

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from ds4tui.errors import Ds4Error
from ds4tui.events import Failed, Finished
from ds4tui.server.errors import as_ds4_error
from ds4tui.server.jobs import JobEvents
from ds4tui.server.keep_alive import Style
from ds4tui.server.reply import Dialect, Ending, complete
from ds4tui.server.sse import EventWriter, comment_frame

# The jobs of a request, one after the other; closing it ends the one at work.
Jobs = Callable[[], AsyncGenerator[JobEvents, None]]


class ReplyStream:
    """Writes one answer; `endings` and `error` say how it ended once it has."""

    def __init__(
        self, dialect: Dialect, jobs: Jobs, keep_alive_s: float, style: Style = "usual"
    ) -> None:
        self._dialect = dialect
        self._jobs = jobs
        self._keep_alive_s = keep_alive_s
        self._style = style
        self.phase = "queue"
        self.endings: list[Ending] = []
        self.error: Ds4Error | None = None

    async def write(self, writer: EventWriter) -> None:
        await _write(writer, self._dialect.opening())
        try:
            async with aclosing(self._jobs()) as jobs:
                async for events in jobs:
                    self.endings.append(await self._one(writer, events))
        except Ds4Error as exc:
            self.error = exc
            await _write(writer, self._dialect.failed(exc))
            return
        await _write(writer, self._dialect.closing(self.endings))

    async def _one(self, writer: EventWriter, events: JobEvents) -> Ending:
        choice = len(self.endings)
        while True:
            event = await events.next(self._patience_s(writer))
            self.phase = events.phase
            if event is None:
                await writer.raw(self._keep_alive())
            elif isinstance(event, Finished):
                end = Ending(complete(event), events.decision)
                await _write(writer, self._dialect.ended(choice, end))
                return end
            elif isinstance(event, Failed):
                raise as_ds4_error(event.error)
            else:
                await _write(writer, self._dialect.told(choice, event))

    def _patience_s(self, writer: EventWriter) -> float | None:
        if self._style == "none":
            return None
        silent_s = time.monotonic() - writer.written_s
        return max(0.0, self._keep_alive_s - silent_s)

    def _keep_alive(self) -> bytes:
        usual = "event" if self._dialect.has_ping else "comment"
        style = usual if self._style == "usual" else self._style
        return self._dialect.keep_alive() if style == "event" else comment_frame(self.phase)

    @property
    def note(self) -> str:
        """The words of the log line."""
        if self.error is not None:
            return f"stream error: {self.error}"
        return "stream " + "; ".join(end.note for end in self.endings)


async def _write(writer: EventWriter, frames: Iterable[bytes]) -> None:
    for frame in frames:
        await writer.raw(frame)
