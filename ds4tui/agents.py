"""Requests of other programs: who asks for what, what becomes of it, and its conversation.

The server has every request watched; the agents panel shows snapshots, follows replies as they
are written, and cancels. The watched events come on the engine thread, where nothing waits.
"""

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ds4tui.assistant import Job, Listener, ModelInfo
from ds4tui.chat.ledger import Asked, ConversationLedger, Joined, Recording, ReplySoFar
from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    ReasoningText,
    TokenText,
    ToolCallEnded,
    Usage,
)

log = logging.getLogger(__name__)

RequestState = Literal["waiting", "prefilling", "writing", "done", "stopped", "failed"]
AT_WORK: tuple[RequestState, ...] = ("waiting", "prefilling", "writing")

ENDED_KEPT = 64  # requests that are over, to be looked at
# What another process sees of a reply is at most so old, while there is anything new.
NOTED_EVERY_S = 1.0
CLIENT_CHARS = 40
UNKNOWN_CLIENT = "a program"


def client_name(user_agent: str) -> str:
    """The product that a User-Agent names first: `opencode` of `opencode/1.0 (linux)`."""
    name = "".join(c for c in user_agent.strip().split("/")[0].split(" ")[0] if c.isprintable())
    return name[:CLIENT_CHARS] or UNKNOWN_CLIENT


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """A request as it stands. Times in seconds since 1970; `ended_s` is 0 while it is at work."""

    number: int  # from 1, in order of arrival
    client: str
    endpoint: str  # its path
    state: RequestState
    began_s: float
    ended_s: float = 0.0
    job_id: str = ""
    begins: str = ""  # the last words that were said to the model
    decision: Decision | None = None
    prefill: PrefillProgress | None = None
    usage: Usage = field(default_factory=Usage)  # whole once it has ended
    written: int = 0  # tokens so far
    written_per_s: float = 0.0
    stop_reason: str = ""
    error: str = ""
    conversation_id: int | None = None  # None: kept nowhere (yet)
    reply_id: int | None = None

    @property
    def is_at_work(self) -> bool:
        return self.state in AT_WORK


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be watched."""

    client: str
    endpoint: str
    messages: tuple[Message, ...] = ()  # empty: it is no conversation
    tools: tuple[Tool, ...] = ()


class Agents:
    """Thread-safe. With a `ledger`, requests are kept as conversations."""

    def __init__(self, ledger: ConversationLedger | None = None) -> None:
        self.ledger = ledger
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._at_work: dict[int, Watched] = {}
        self._ended: deque[Watched] = deque(maxlen=ENDED_KEPT)

    def watch(
        self,
        request: Request,
        info: ModelInfo,
        listener: Listener,
        says_more: Callable[[Finished], bool] = lambda reply: reply.stop_string is not None,
    ) -> "Watched":
        """A listener in the place of `listener`, which is told everything. The request counts
        once the engine has taken it; `says_more` whether a reply's ids say more than was shown."""
        return Watched(self, next(self._numbers), request, info, listener, says_more)

    @property
    def requests(self) -> tuple[AgentRequest, ...]:
        """Those at work and the last that ended, the newest first."""
        with self._lock:
            watched = [*self._ended, *self._at_work.values()]
        return tuple(sorted((w.snapshot() for w in watched), key=lambda r: -r.number))

    @property
    def is_at_work(self) -> bool:
        return bool(self._at_work)

    def of_reply(self, reply_id: int) -> "Watched | None":
        """The request at work whose reply is stored as `reply_id`."""
        with self._lock:
            watched = list(self._at_work.values())
        return next((w for w in watched if w.joined and w.joined.reply_id == reply_id), None)

    def cancel(self, number: int) -> bool:
        """Stop a request; what there is of its reply is kept. Whether it was at work."""
        with self._lock:
            watched = self._at_work.get(number)
        if watched is not None:
            watched.cancel()
        return watched is not None

    def wait_written(self) -> None:
        """Wait until the store has what was heard so far."""
        if self.ledger is not None:
            self.ledger.wait()

    def close(self) -> None:
        """Wait for what is being written into the store."""
        if self.ledger is not None:
            self.ledger.close()

    def _begun(self, watched: "Watched") -> None:
        with self._lock:
            self._at_work[watched.number] = watched

    def _over(self, watched: "Watched") -> None:
        with self._lock:
            if self._at_work.pop(watched.number, None) is not None:
                self._ended.append(watched)


class Watched:
    """One request: a Listener that keeps what it hears, and hands it on."""

    def __init__(
        self,
        agents: Agents,
        number: int,
        request: Request,
        info: ModelInfo,
        listener: Listener,
        says_more: Callable[[Finished], bool],
    ) -> None:
        self.number = number
        self._agents = agents
        self._request = request
        self._info = info
        self._listener = listener
        self._says_more = says_more
        self._followers: tuple[Listener, ...] = ()
        self._now = AgentRequest(number, request.client, request.endpoint, "waiting", time.time())
        self._job: Job | None = None
        self._is_cancelled = False
        self._recording: Recording | None = None
        self._noted_s = time.monotonic()
        self._wrote_s = 0.0  # when the first token came
        self._written = 0
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    # What the server does

    def started(self, job: Job) -> None:
        self._job = job
        if self._is_cancelled:
            job.cancel()

    def __call__(self, event: Event) -> None:
        try:
            self._hear(event)
        finally:  # whatever becomes of the record, the client has its reply
            self._listener(event)
        for follow in self._followers:
            follow(event)
        if isinstance(event, Finished | Failed):
            self._job, self._listener = None, lambda event: None  # they hold whole prompts

    # What people do

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._job is not None:
            self._job.cancel()

    def follow(self, listener: Listener) -> None:
        """Tell `listener` what comes from now on; `text` has what came before."""
        self._followers = (*self._followers, listener)

    def unfollow(self, listener: Listener) -> None:
        self._followers = tuple(f for f in self._followers if f is not listener)

    @property
    def is_over(self) -> bool:
        """Whether followers are told nothing any more."""
        return not self._now.is_at_work

    @property
    def text(self) -> str:
        """The reply so far."""
        return "".join(self._texts)

    @property
    def joined(self) -> Joined | None:
        return self._recording.joined if self._recording is not None else None

    def snapshot(self) -> AgentRequest:
        now, joined = self._now, self.joined
        if joined is not None:
            now = replace(now, conversation_id=joined.conversation_id, reply_id=joined.reply_id)
        if now.state == "writing":
            took_s = time.monotonic() - self._wrote_s
            rate = (self._written - 1) / took_s if self._written > 1 and took_s else 0.0
            now = replace(now, written=self._written, written_per_s=rate)
        return now

    # On the engine thread

    def _hear(self, event: Event) -> None:
        if not self._now.job_id:
            self._begin(event.job_id)
        match event:
            case TokenText() | ReasoningText():
                self._write(event)
            case Decision():
                self._now = replace(self._now, decision=event, state="prefilling")
            case PrefillProgress():
                self._now = replace(self._now, prefill=event)
                self._note_now_and_then()
            case ToolCallEnded():
                self._calls.append(ToolCall(event.call_id, event.name, event.arguments))
            case Finished() | Failed():
                self._end(event)

    def _begin(self, job_id: str) -> None:
        messages = self._request.messages
        words = messages[-1].text[:200] if messages else ""
        self._now = replace(self._now, job_id=job_id, begins=words)
        self._agents._begun(self)
        if messages and self._agents.ledger is not None:
            request = self._request
            asked = Asked(messages, request.client, self._info.name, request.tools)
            self._recording = self._agents.ledger.record(asked)
        self._request = replace(self._request, messages=())  # held no longer than needed

    def _write(self, event: TokenText | ReasoningText) -> None:
        if not self._written:
            self._wrote_s = time.monotonic()
            self._now = replace(self._now, state="writing")
        self._written += len(event.token_ids)
        if event.text:
            (self._texts if isinstance(event, TokenText) else self._reasoning).append(event.text)
        self._note_now_and_then()

    def _note_now_and_then(self) -> None:
        now_s = time.monotonic()
        if self._recording is not None and now_s - self._noted_s >= NOTED_EVERY_S:
            self._noted_s = now_s
            self._recording.note(self._so_far())

    def _end(self, event: Finished | Failed) -> None:
        state: RequestState = "failed"
        ids = None
        if isinstance(event, Finished):
            state = "stopped" if event.stop_reason == "cancelled" else "done"
            ids = None if self._says_more(event) else event.token_ids
        usage = event.usage
        self._now = replace(
            self._now,
            state=state,
            ended_s=time.time(),
            usage=usage,
            written=usage.completion_tokens,
            written_per_s=usage.decode_tps,
            stop_reason=event.stop_reason if isinstance(event, Finished) else "failed",
            error=str(event.error) if isinstance(event, Failed) else "",
        )
        self._agents._over(self)
        if self._recording is not None:
            self._recording.note(replace(self._so_far(), sampled_ids=ids))

    def _so_far(self) -> ReplySoFar:
        status = _STATUSES[self._now.state]
        return ReplySoFar(
            self.text,
            "".join(self._reasoning),
            tuple(self._calls),
            None,
            status,  # type: ignore[arg-type]
            self._stats(),
        )

    def _stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = {"model": self._info.name, "ids_of": self._info.ids_key}
        if self._now.decision is not None:
            stats["decision"] = asdict(self._now.decision)
        if not self._now.is_at_work:
            stats |= {"usage": asdict(self._now.usage), "stop_reason": self._now.stop_reason}
        return stats


_STATUSES = {"done": "complete", "stopped": "cancelled", "failed": "failed"} | dict.fromkeys(
    AT_WORK, "partial"
)
