"""One question and its answer at work: journal, engine events, widget, in that order of trust.

A turn runs as one task on the UI loop. It never blocks: rendering runs on a thread, events come
through an inbox at a bounded rate, the journal has its own thread. However it ends (finished,
stopped, failed), the answer's last word is in the store when `run` returns.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ds4tui.assistant import Assistant, Job
from ds4tui.chat.grammars import ToolChoice
from ds4tui.chat.messages import Message
from ds4tui.chat.store import MessageStatus, StoredMessage
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import ConversationWentOn, Ds4Error, EngineError
from ds4tui.events import (
    Decision,
    EncodingProgress,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    Queued,
    ReasoningText,
    StopReason,
    TokenText,
    Usage,
)
from ds4tui.tui.background import in_thread
from ds4tui.tui.forecast import SOME_QUESTION, LastAsked
from ds4tui.tui.inbox import Inbox
from ds4tui.tui.journal import Journal
from ds4tui.tui.open_chat import Fork, OpenChat
from ds4tui.tui.panels import decision_words, encoding_words, prefill_words

log = logging.getLogger(__name__)

# A process that is killed loses at most this much of an answer.
JOURNAL_INTERVAL_S = 1.0
# An agent's tools stay in the prompt, of which what is resident was made, but nobody here
# would carry calls out.
_NO_CALLS = ToolChoice("none")


class AnswerView(Protocol):
    """Where an answer is shown."""

    async def add_text(self, text: str) -> None: ...
    def show_progress(self, words: str) -> None: ...


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended. `answered`: it belongs to the conversation from now on."""

    question: Message
    text: str
    status: MessageStatus
    stop_reason: StopReason
    usage: Usage
    error: Ds4Error | None = None
    decision: Decision | None = None

    @property
    def answered(self) -> bool:
        return self.error is None and (bool(self.text) or self.status == "complete")


class Turn:
    """Made when a question is sent; `run` once, `cancel` at any time, on the UI loop."""

    def __init__(
        self,
        question: Message,
        chat: OpenChat,
        assistant: Assistant,
        sampling: SamplingParams,
        journal: Journal,
        fork: Fork | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`on_event` hears each event on the UI loop, before what it says is shown."""
        self.question = question
        self.fork = fork
        self._chat = chat
        self._assistant = assistant
        self._sampling = sampling
        self._journal = journal
        self._on_event = on_event
        self._inbox = Inbox()
        self._view: AnswerView | None = None
        self._job: Job | None = None
        self._is_cancelled = False
        self._is_answered = False
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._thought_tokens = 0
        self._ids: list[int] = []
        self._decision: Decision | None = None
        self._ending: Finished | Failed | None = None
        self._journalled_s = time.monotonic()

    @property
    def job_id(self) -> str:
        """The engine's name for it; "" before the engine was asked."""
        return self._job.job_id if self._job is not None else ""

    @property
    def last_asked(self) -> LastAsked:
        """What the engine holds after it, for forecasts."""
        info = self._assistant.info
        if self._is_answered:
            messages = self._chat.messages(SOME_QUESTION, info)
        else:
            messages = self._chat.messages(self.question, info, self.fork)
        return LastAsked(self.job_id, tuple(messages), self._chat.thinking)

    def cancel(self) -> None:
        """Stop within one step of the engine; what there is of the answer is kept."""
        self._is_cancelled = True
        if self._view is not None:
            self._view.show_progress("stopping")
        if self._job is not None:
            self._job.cancel()

    async def run(self, view: AnswerView) -> TurnEnd:
        """Answer the question into `view`. Raises nothing: what went wrong is in the end."""
        self._view = view
        if self._chat.id is None:
            self._chat.model = self._assistant.info.name
        try:
            question_id, answer_id = await self._journal.begin_turn(
                self._chat, self.question, self.fork
            )
        except ConversationWentOn as exc:
            return self._end(exc)
        error: Ds4Error | None = None
        try:
            await self._work(answer_id, view)
        except asyncio.CancelledError:  # the app ends by an error
            self._note_progress(answer_id)
            raise
        except Ds4Error as exc:
            error = exc
        except Exception as exc:  # the turn's root: shown in the transcript, not a crash
            log.exception("a turn failed")
            error = EngineError(f"The answer failed: {exc}.", "The log file has the details.")
            self.cancel()
        end = self._end(error)
        await self._store(question_id, answer_id, end)
        return end

    async def _work(self, answer_id: int, view: AnswerView) -> None:
        messages = self._chat.messages(self.question, self._assistant.info, self.fork)
        if self._is_cancelled:
            return
        view.show_progress("asking the engine")
        self._job = await in_thread("ds4tui-render", lambda: self._submit(messages))
        if self._is_cancelled:
            self._job.cancel()
        while self._ending is None:
            await self._take(await self._inbox.batch(), view)
            self._journal_now_and_then(answer_id)
            if self._ending is None:
                await self._inbox.rest()
        if isinstance(self._ending, Failed):
            raise _readable(self._ending.error)

    def _submit(self, messages: Sequence[Message]) -> Job:
        tools = self._chat.tools
        return self._assistant.chat(
            messages,
            self._sampling,
            self._inbox.push,
            tools=tools,
            thinking=self._chat.thinking,
            choice=_NO_CALLS if tools else ToolChoice(),
        )

    async def _take(self, events: Sequence[Event], view: AnswerView) -> None:
        shown = ""
        progress = ""
        for event in events:
            self._on_event(event)
            if isinstance(event, TokenText | ReasoningText):
                self._ids.extend(event.token_ids)
            if isinstance(event, TokenText):
                shown += event.text
            else:
                progress = self._note(event) or progress
        if progress and not self._texts:
            view.show_progress(progress)
        if shown:
            if not self._texts:
                view.show_progress("writing")
            self._texts.append(shown)
            await view.add_text(shown)

    def _note(self, event: Event) -> str:
        """Words about the work, "" for none."""
        match event:
            case ReasoningText(text=text, token_ids=ids):
                self._reasoning.append(text)
                self._thought_tokens += len(ids)
                return f"thinking: {len(self._ids):,} tokens"
            case Finished() | Failed():
                self._ending = event
            case Decision():
                self._decision = event
                return f"{decision_words(event)}: {event.reason}"
            case EncodingProgress():
                return encoding_words(event)
            case PrefillProgress():
                return prefill_words(event)
            case Queued(ahead=ahead):
                return f"waiting: {ahead} before this one" if ahead else "starting"
        return ""

    def _journal_now_and_then(self, answer_id: int) -> None:
        now = time.monotonic()
        if self._texts and now - self._journalled_s >= JOURNAL_INTERVAL_S:
            self._journalled_s = now
            self._note_progress(answer_id)

    def _note_progress(self, answer_id: int) -> None:
        text = "".join(self._texts)
        self._journal.note_progress(answer_id, text, tuple(self._ids), self._stats(None))

    def _end(self, error: Ds4Error | None) -> TurnEnd:
        text = "".join(self._texts)
        if error is not None:
            usage = self._ending.usage if self._ending is not None else Usage()
            return TurnEnd(self.question, text, "failed", "stop", usage, error)
        if not isinstance(self._ending, Finished):  # stopped before the engine was asked
            return TurnEnd(self.question, text, "cancelled", "cancelled", Usage())
        reason = self._ending.stop_reason
        status: MessageStatus = "cancelled" if reason == "cancelled" else "complete"
        usage, decision = self._ending.usage, self._decision
        return TurnEnd(self.question, text, status, reason, usage, decision=decision)

    async def _store(self, question_id: int, answer_id: int, end: TurnEnd) -> None:
        # After a stop string the ids say more than was shown: such an answer goes by its text.
        finished = self._ending if isinstance(self._ending, Finished) else None
        ids = finished.token_ids if finished and finished.stop_string is None else None
        stats = self._stats(end)
        reasoning = "".join(self._reasoning)
        await self._journal.end_turn(answer_id, end.text, ids, end.status, stats, reasoning)
        self._is_answered = end.answered
        if end.answered:
            now = time.time()
            parent = self._chat.end_of(self.fork)
            answer = Message("assistant", end.text, ids, reasoning)
            kept = self.fork.kept if self.fork else len(self._chat.path)
            self._chat.path[kept:] = [
                StoredMessage(question_id, parent, self.question, "complete", None, now),
                StoredMessage(answer_id, question_id, answer, end.status, stats, now),
            ]
        else:
            await self._journal.set_leaf(self._chat)

    def _stats(self, end: TurnEnd | None) -> dict[str, Any]:
        info = self._assistant.info
        stats: dict[str, Any] = {"model": info.name, "ids_of": info.ids_key}
        if self._thought_tokens:
            stats["thought_tokens"] = self._thought_tokens
        if self._decision is not None:
            stats["decision"] = asdict(self._decision)
        if end is not None:
            stats |= {"usage": asdict(end.usage), "stop_reason": end.stop_reason}
        return stats


def _readable(error: Exception) -> Ds4Error:
    if isinstance(error, Ds4Error):
        return error
    return EngineError(f"The engine failed: {error}.", "The log file has the details.")
