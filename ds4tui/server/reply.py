"""A job's events as a reply, and the dialects that write it.

A dialect is pure: values in, JSON and frames of an event stream out. Who drives it is
streaming.py and answering.py, for all of them. An incomplete reply never looks like a complete
one: it ends with an error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ds4tui.chat.messages import ToolCall
from ds4tui.errors import Ds4Error, EngineClosed
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    ReasoningText,
    SampledToken,
    TokenText,
    ToolCallEnded,
)
from ds4tui.server.errors import as_ds4_error
from ds4tui.server.jobs import JobEvents


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reply ended, and what the session had kept for it."""

    finished: Finished
    decision: Decision | None

    @property
    def note(self) -> str:
        """The words of the log line."""
        usage = self.finished.usage
        return (
            f"job={self.finished.job_id} finish={self.finished.stop_reason} "
            f"prompt={usage.prompt_tokens} cached={usage.cached_tokens} "
            f"evaluated={usage.evaluated_tokens} completion={usage.completion_tokens} "
            f"ttft_ms={usage.ttft_ms:.0f}"
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What was said in all. `tokens` are those of text and reasoning, for log-probabilities;
    `reasoning_tokens` counts those of the latter, log-probabilities or not."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    tokens: tuple[SampledToken, ...]
    end: Ending
    reasoning_tokens: int = 0


class Dialect(Protocol):
    """How one API writes the answer to one request: `whole`, or frames of an event stream.

    Of a stream, `opening` comes first and at once, then for each of the replies (`choice` is its
    number, from 0) what `told` makes of each event and what `ended` adds, then `closing`, or
    `failed` instead of whatever is left. `keep_alive` is an event that says nothing new, for
    clients that count events when a stream is silent for long; `has_ping` says that the API has
    one for this."""

    has_ping: ClassVar[bool]

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]: ...
    def opening(self) -> Iterable[bytes]: ...
    def keep_alive(self) -> bytes: ...
    def told(self, choice: int, event: Event) -> Iterable[bytes]: ...
    def ended(self, choice: int, end: Ending) -> Iterable[bytes]: ...
    def closing(self, ends: Sequence[Ending]) -> Iterable[bytes]: ...
    def failed(self, error: Ds4Error) -> Iterable[bytes]: ...


async def collected(events: JobEvents) -> Reply:
    """The reply once it is complete. Raises the Ds4Error that the job failed with."""
    told: list[Event] = []
    while True:
        event = await events.next()
        if isinstance(event, Finished):
            return reply_of(told, Ending(complete(event), events.decision))
        if isinstance(event, Failed):
            raise as_ds4_error(event.error)
        if event is not None:
            told.append(event)


def reply_of(events: Iterable[Event], end: Ending) -> Reply:
    texts: list[str] = []
    reasoning: list[str] = []
    tokens: list[SampledToken] = []
    calls: list[ToolCall] = []
    thought = 0
    for event in events:
        if isinstance(event, TokenText | ReasoningText):
            tokens.extend(event.tokens)
            (texts if isinstance(event, TokenText) else reasoning).append(event.text)
            thought += len(event.token_ids) if isinstance(event, ReasoningText) else 0
        elif isinstance(event, ToolCallEnded):
            calls.append(ToolCall(event.call_id, event.name, event.arguments))
    said, why = "".join(texts), "".join(reasoning)
    return Reply(said, why, tuple(calls), tuple(tokens), end, thought)


def complete(finished: Finished) -> Finished:
    """Raises EngineClosed for a reply that was cancelled: its client still waits."""
    if finished.stop_reason == "cancelled":
        raise EngineClosed("The reply was cancelled before it was complete.", "Send it again.")
    return finished
