"""What the engine thread writes down for those who look at it: decisions, notes, sessions."""

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ds4tui.cache.kvconversations import StoredConversation, stored_conversations
from ds4tui.cache.kvtally import DiskStats, is_told_with
from ds4tui.cache.memory_tier import CacheNote
from ds4tui.engine.jobs import Generation
from ds4tui.engine.layout import Run, layout
from ds4tui.engine.pool import Pool
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.session import Session, SessionState
from ds4tui.engine.stats import (
    CONVERSATIONS_KEPT,
    DECISIONS_KEPT,
    NOTES_KEPT,
    EngineStats,
    MemoryNote,
    SessionStats,
)
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.told import IMAGE_WORDS, ids_text
from ds4tui.events import Decision, Usage

_log = logging.getLogger(__name__)

# Enough of a conversation's first words to recognise it in a column of a panel.
_WHAT_TOKENS = 24
_WHAT_CHARACTERS = 48


class Books:
    """Owned by the engine thread; what it returns are values that any thread may keep."""

    def __init__(self, pool: Pool, tokenizer: Tokenizer) -> None:
        self._pool = pool
        self._tokenizer = tokenizer
        self._decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._notes: deque[MemoryNote] = deque(maxlen=NOTES_KEPT)
        self._last_note: CacheNote | None = None  # what the newest of these is of
        self._what: dict[int, str] = {}
        self._used_s: dict[int, float] = {}
        self._snapshots: dict[int, tuple[tuple[int, ...], int]] = {}  # where, the worst replay
        self._layouts: dict[int, tuple[Run, ...]] = {}
        self._conversations: tuple[StoredConversation, ...] = ()
        self._seen: tuple[object, ...] = ()  # what the disk had done when these were looked at
        self._is_storing = False
        self._disk: DiskStats | None = None  # at that time, too
        self._held: dict[str, float] = {}  # what the memory tier held when it was last looked at

    def begun(self, work: Generation) -> None:
        """A job has been given to its session."""
        number, request = work.session.number, work.job.request
        self._what[number] = what_it_is(request, self._tokenizer)
        self._used_s[number] = time.time()

    def what(self, session: Session) -> str:
        """Which conversation is in it, in words."""
        return self._what.get(session.number, "")

    def looked_at(self, session: Session) -> None:
        """`session` has got its prompt, or its job has ended: what is counted then only, since
        it takes longer than a token may."""
        self._snapshots[session.number] = (session.snapshots_at(), session.worst_replay())
        self._lay_out(session)

    def _lay_out(self, session: Session) -> None:
        timeline = session.timeline
        self._layouts[session.number] = layout(session.outline, timeline.spans, len(timeline))

    def looked_at_memory(self) -> None:
        """The same of the memory tier."""
        memory = self._pool.memory
        self._held = {
            "parked_states": memory.parked_count,
            "parked_tokens": memory.parked_tokens,
            "parked_bytes": memory.parked_bytes,
            "segments": memory.segment_count,
            "segment_tokens": memory.segment_tokens,
            "segment_bytes": memory.segment_bytes,
            "snapshots": memory.snapshot_count,
            "snapshot_bytes": memory.snapshot_bytes,
            "cache_budget_bytes": memory.budget_bytes,
        }
        images = self._pool.images
        if images is not None:
            self._held |= {
                "images_encoded": images.encoded,
                "images_held": images.held,
                "images_bytes": images.nbytes,
                "images_budget_bytes": images.budget_bytes,
                "last_encode_ms": images.last_encode_ms,
            }
        disk, storing = self._pool.disk, self._pool.storing
        self._disk = disk.stats if disk is not None else self._pool.no_disk
        is_pending = storing is not None and storing.is_pending
        self._is_storing = is_pending or bool(self._disk and self._disk.queued_bytes)

    def looked_at_conversations(self) -> None:
        """The same of what is on disk, which takes longest: while there is nothing to do."""
        disk, told = self._pool.disk, self._disk
        if disk is None or told is None:
            return
        seen = (told.stores, told.merges, told.hits, told.evictions, told.faults, told.pinned)
        if seen != self._seen or not told.is_writer:
            self._seen = seen
            self._conversations = stored_conversations(disk.entries())

    def decided(self, decision: Decision) -> None:
        self._lay_out(self._pool.sessions[decision.session - 1])
        what = self._what.get(decision.session, "")
        self._decisions.append(replace(decision, what=what))
        if decision.tripwire:
            _log.warning("%s", decision.tripwire)
            self._notes.append(MemoryNote(decision.time_s, "tripwire", decision.tripwire))
            self._last_note = None

    def note_memory(self) -> None:
        """Take over what the memory tier and the disk tier have to tell, and log it."""
        disk = self._pool.disk
        told = [("memory", note) for note in self._pool.memory.drain_notes()]
        told += [("disk", note) for note in (disk.drain_notes() if disk is not None else ())]
        for where, note in told:
            text = note_text(note)
            _log.info("%s: %s", where, text)
            self._keep_note(where, note)

    def _keep_note(self, where: str, note: CacheNote) -> None:
        if self._last_note is not None and is_told_with(note, self._last_note):
            self._notes.pop()
            note = replace(
                note,
                tokens=self._last_note.tokens + note.tokens,
                nbytes=self._last_note.nbytes + note.nbytes,
            )
        self._last_note = note
        text = note_text(note) if where == "memory" else f"disk: {note_text(note)}"
        self._notes.append(MemoryNote(time.time(), note.kind, text, note.tokens, note.nbytes))

    def fields(self, at_work: Iterable[Generation]) -> dict[str, Any]:
        """What EngineStats tells of sessions, pools and history."""
        jobs = {work.session.number: work for work in at_work}
        return {
            **self._held,
            "experts": self._pool.expert_stats,
            "disk": self._disk,
            "is_storing": self._is_storing,
            "conversations": self._conversations[:CONVERSATIONS_KEPT],
            "conversation_count": len(self._conversations),
            "kv_bytes": sum(self._pool.kv_bytes.values()),
            "sessions": tuple(self._session(s, jobs) for s in self._pool.sessions),
            "decisions": tuple(self._decisions),
            "notes": tuple(self._notes),
            "tripwire": self._pool.tripwire.words,
            "tripwire_cause": self._pool.tripwire.cause,
        }

    def _session(self, session: Session, jobs: dict[int, Generation]) -> SessionStats:
        number = session.number
        work = jobs.get(number)
        snapshots, worst_replay = self._snapshots.get(number, ((), 0))
        resident = len(session.timeline)
        state = session.state_name
        if work is None and state is SessionState.DECODING:  # so a reply ends
            state = SessionState.READY
        return SessionStats(
            session=number,
            state=state.value,
            resident_tokens=resident,
            kv_bytes=self._pool.kv_bytes[number],
            snapshots=len(snapshots),
            snapshots_at=snapshots,
            worst_replay=worst_replay,
            what=self._what.get(number, ""),
            job_id=work.job.job_id if work is not None else "",
            used_s=self._used_s.get(number, 0.0),
            layout=self._layouts.get(number, ()) if resident else (),
            prefill=work.progress if work is not None and not work.is_decoding else None,
        )


def counted(stats: EngineStats, usage: Usage, replayed: int) -> EngineStats:
    """`stats` after one more job."""
    totals: dict[str, Any] = {
        "requests": stats.requests + 1,
        "total_prompt_tokens": stats.total_prompt_tokens + usage.prompt_tokens,
        "total_cached_tokens": stats.total_cached_tokens + usage.cached_tokens,
        "total_evaluated_tokens": stats.total_evaluated_tokens + usage.evaluated_tokens,
        "total_completion_tokens": stats.total_completion_tokens + usage.completion_tokens,
        "total_replayed_tokens": stats.total_replayed_tokens + replayed,
    }
    return replace(stats, **totals)


def note_text(note: CacheNote) -> str:
    """`evicted 1,200 tokens, 3.4 MB: the room was needed`."""
    amounts = [f"{note.tokens:,} tokens"] if note.tokens else []
    amounts += [f"{note.nbytes / 1e6:,.1f} MB"] if note.nbytes else []
    return f"{note.kind}{' ' if amounts else ''}{', '.join(amounts)}: {note.reason}"


def what_it_is(request: GenerateRequest, tokenizer: Tokenizer) -> str:
    """Who asks, and how the conversation begins: `agent: How many legs has an ant`."""
    words = request.first_words[: 4 * _WHAT_CHARACTERS]
    if not words.strip():
        words = _of_no_words(request, tokenizer)
    words = words.encode("utf-8", "replace").decode()
    return f"{request.origin}: {' '.join(words.split())[:_WHAT_CHARACTERS]}"


def _of_no_words(request: GenerateRequest, tokenizer: Tokenizer) -> str:
    if request.outline:  # the template's words are nobody's
        return IMAGE_WORDS if request.timeline.spans else "(no words)"
    ids = request.timeline.ids[:_WHAT_TOKENS].tolist()
    return ids_text(ids, tokenizer, skip_special=True)
