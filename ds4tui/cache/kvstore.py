"""The disk tier of the page store: KV rows and snapshots that outlive the process.

It takes host arrays, which nobody may write to any more, and a writer thread puts them on disk;
until they are there they are served from memory. It says what is stored of a wanted timeline, as
the memory tier does, and reads it back to the bit or not at all. One process writes in a folder,
others read what it wrote. Storing never harms: what cannot be stored is counted and told.

Who owns what: the format is `cache.kvformat`, bytes are `cache.kvfile`, what goes is
`cache.kvpolicy`, look-ups are `cache.kvbooks`, the folder is `cache.kvkeeper`'s.

Every method may be called by any thread. None waits for the disk, but `read_*` (the record's own
bytes), `put_*` with `wait_s`, `flush`, `close`, and those for people (`pin`, `clear`, `verify`,
`prune`).
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ds4tui.cache.kvarrays import Array, HostBounded, HostPage, HostRows, HostSnapshot
from ds4tui.cache.kvbooks import Books, Entry, Found
from ds4tui.cache.kventries import (
    FIRST_HOLDER_ID,
    Damage,
    DiskEntry,
    entry_of,
    holder_of,
    shown,
)
from ds4tui.cache.kvfile import RecordFile, record_parts
from ds4tui.cache.kvformat import (
    IDENTITY_BYTES_MAX,
    CorruptRecord,
    RecordHead,
    page_end,
    prefix_key,
)
from ds4tui.cache.kvkeeper import Keeper
from ds4tui.cache.kvqueue import Job, WriteQueue
from ds4tui.cache.kvread import OpenRows, Reader
from ds4tui.cache.kvtally import DiskStats, Tally
from ds4tui.cache.kvtidy import Tidier
from ds4tui.cache.memory_tier import CacheNote
from ds4tui.cache.offers import DEFAULT_RATES, HeldRows, HeldSnapshot, Rates
from ds4tui.cache.timeline import Timeline

# A few seconds of a slow disk. What does not fit is not stored now; it is asked for again.
QUEUE_BYTES = 512 << 20

_TEXT_MAX = 200
_CLOSE_S = 0.5  # for the index, when the time is over

# Of small records the time goes into opening them.
_RATED_BYTES_MIN = 16 << 20


class DiskTier:
    """`rates` say what it takes to compute a row again; whoever measures them sets them.
    `clearings` counts how often people have cleared: what was there before then they do not want to
    be stored again before it is used. `also_clears` is called each time, for what is kept of it
    elsewhere. `changed` is called, on whatever thread, when all that waited is written or people
    have changed something: whoever tells of the tier sets it. It must be quick, and not raise."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int | None,
        identity: bytes,
        *,
        label: str = "",
        queue_bytes: int = QUEUE_BYTES,
        floor_bytes: int | None = None,
        may_write: bool = True,
        shrinks: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The tier of `folder`, made if need be, for the model of `identity` (1 to 64 bytes),
        which people know as `label`. `budget_bytes` bounds all files in it, of whatever model;
        None: a share of what is free. `floor_bytes` stay free on the disk (None: a share of it).

        Where another process writes, or nobody may, this one reads: `stats.why_not` and a note
        say so; without `may_write` it does not try to, and changes nothing. Without `shrinks` what
        is over a budget stays when the folder is opened. Raises StoreError if there can be no such
        folder, ValueError for an identity of another length.
        """
        if not 1 <= len(identity) <= IDENTITY_BYTES_MAX:
            raise ValueError(f"an identity of {len(identity)} bytes")
        self.rates: Rates = DEFAULT_RATES
        self._identity, self._label, self._clock = identity, label[:_TEXT_MAX], clock
        self._lock, self._tally, self._books = threading.RLock(), Tally(), Books(identity)
        self._failed = ""
        self.changed: Callable[[], None] = lambda: None
        self.also_clears: Callable[[], None] = lambda: None
        self.clearings = 0
        books = self._books, self._lock, self._tally
        began = time.perf_counter()
        self._keeper = Keeper(
            folder,
            budget_bytes,
            *books,
            clock=clock,
            floor=floor_bytes,
            may_write=may_write,
            shrinks=shrinks,
        )
        self._opened_ms = (time.perf_counter() - began) * 1e3
        tidier = Tidier(self._books, self._lock, self._keeper, self._tally)
        self._queue = WriteQueue(
            self._keeper.store, queue_bytes, lambda: self.changed(), tidier.merge_some
        )
        self._keeper.is_stopped = self._queue.is_stopped
        self._reader = Reader(self._books, self._lock, self._keeper, self._tally)

    # -- looking up ----------------------------------------------------------------------------

    def offers(
        self, wanted: Timeline, *, counts: bool = True
    ) -> tuple[tuple[HeldRows, ...], tuple[HeldSnapshot, ...]]:
        """What is stored of `wanted`, pages and snapshots, whatever waits to be written
        included. Snapshots only where all rows below them are stored. It `counts` as a miss if
        nothing is, unless somebody only wants to know."""
        if self._keeper.why_not:
            self._keeper.reread()
        found = self._found(wanted)
        if counts and not found.pages and len(wanted):
            self._tally.missed(wanted.digest(), len(wanted))
        rows = tuple(
            HeldRows(
                holder_of(entry.entry_id),
                "page",
                entry.head.start,
                entry.head.end,
                common,
                entry.nbytes,
                spans=entry.head.spans,
            )
            for entry, common in found.pages
        )
        snapshots = tuple(
            HeldSnapshot(holder_of(entry.entry_id), entry.head.end, True, entry.nbytes)
            for entry in found.snapshots
        )
        return rows, snapshots

    def missing_from(self, timeline: Timeline, start: int = 0) -> int:
        """The first position from `start` on whose row is not stored and does not wait to be;
        len(timeline) if all are. Only rows from there on are ever written."""
        return max(start, min(self._found(timeline).reach, len(timeline)))

    def has_snapshot(self, timeline: Timeline) -> bool:
        """Whether one stands at its end, or waits to be written."""
        with self._lock:
            key = prefix_key(self._identity, timeline, len(timeline))
            return self._books.named(f"{key.hex()}.snapshot") is not None

    def _found(self, timeline: Timeline) -> Found:
        with self._lock:
            found = self._books.found(timeline)
            self._books.relink(found)
        return found

    @contextmanager
    def holding(self, holder_ids: Collection[int]) -> Iterator[None]:
        """Nothing of these makes way meanwhile: from a look-up until its plan is done."""
        ids = [entry_of(holder_id) for holder_id in holder_ids if holder_id <= FIRST_HOLDER_ID]
        self._keeper.hold(ids, 1)
        try:
            yield
        finally:
            self._keeper.hold(ids, -1)

    # -- reading ---------------------------------------------------------------------------------

    def read_rows(self, holder_id: int, start: int, end: int) -> HostPage:
        """The page, whole and verified, if it has rows [start, end). Raises CorruptRecord if it
        is gone or damaged (then it is not offered again): a miss, to be planned anew."""
        return self._reader.read_rows(holder_id, start, end)

    def read_snapshot(self, holder_id: int) -> HostSnapshot:
        """As `read_rows`."""
        return self._reader.read_snapshot(holder_id)

    def open_rows(self, holder_id: int, at_once: int = 1) -> OpenRows:
        """The page, to be read a layer at a time, so that no more than one is in memory; one of
        so many that are read at the same time. Its file is there until it is closed. Raises
        CorruptRecord, and so do its reads."""
        return self._reader.open_rows(holder_id, at_once)

    def read_ahead(self, holder_ids: Sequence[int]) -> None:
        """Ask the system to fetch these records, and do not wait."""
        self._reader.read_ahead(holder_ids)

    # -- storing ---------------------------------------------------------------------------------

    def put_page(
        self,
        timeline_to_end: Timeline,
        start: int,
        layers: Sequence[HostRows | None],
        *,
        point: str = "",
        what: str = "",
        why: str = "",
        wait_s: float = 0.0,
    ) -> bool:
        """Store rows [start, len(timeline_to_end)) of all append-only layers, as far as they are
        not stored, in pages of at most 1,024 positions. `point` "system" makes an anchor of it;
        `what` and `why` are for people: which conversation it is, and what brought it here.

        False if something of it was not taken, because the queue is full (after `wait_s`),
        rows before `start` are not stored, or nothing may be written; `missing_from` says where
        to go on. ValueError for rows that are not those positions'.
        """
        end = len(timeline_to_end)
        whole = HostPage(start, end, tuple(layers))
        if not 0 <= start < end or any(r is not None and r.count != end - start for r in layers):
            raise ValueError(f"these are not the rows {start} to {end}")
        found = self._found(timeline_to_end)
        self._keeper.touch([entry for entry, _ in found.pages])
        at = found.reach
        if at < start:
            self._tally.fault("gap")
            return False
        stem = found.stem_name(at)
        while at < end:
            stop = page_end(timeline_to_end, at, end)
            page = HostPage(at, stop, tuple(whole.rows(i, at, stop) for i in range(len(layers))))
            cost_ms = self.rates.prefill_ms(stop - at)
            head = self._head(timeline_to_end.prefix(stop), page, stem, cost_ms, point, what)
            if not self._put(timeline_to_end.prefix(stop), head, page, why, wait_s):
                return False
            stem, at = head.name, stop
        return True

    def put_snapshot(
        self,
        timeline_to_position: Timeline,
        layers: Sequence[HostBounded | None],
        point: str,
        logits: Array | None = None,
        *,
        what: str = "",
        why: str = "",
        wait_s: float = 0.0,
    ) -> bool:
        """Store the bounded part at the end of `timeline_to_position`, if none is there; `point`
        as in the memory tier. False as `put_page`: all rows below it must be stored, or wait."""
        position = len(timeline_to_position)
        found = self._found(timeline_to_position)
        self._keeper.touch([*(entry for entry, _ in found.pages), *found.snapshots[-2:]])
        if self.has_snapshot(timeline_to_position):
            return True
        if not position or found.reach < position:
            self._tally.fault("gap")
            return False
        snapshot = HostSnapshot(position, tuple(layers), logits)
        before = max((held.head.end for held in found.snapshots), default=0)
        cost_ms = self.rates.prefill_ms(position - before)
        stem = found.stem_name(position)
        head = self._head(timeline_to_position, snapshot, stem, cost_ms, point, what)
        return self._put(timeline_to_position, head, snapshot, why, wait_s)

    def _put(
        self,
        timeline: Timeline,
        head: RecordHead,
        host: HostPage | HostSnapshot,
        why: str,
        wait_s: float,
    ) -> bool:
        if self._keeper.why_not:
            self._tally.fault("read-only")
            return False
        if not self._queue.wait_for_room(host.nbytes, wait_s):
            self._tally.fault("queue full")
            return False
        with self._lock:
            if self._books.named(head.name) is not None:
                return True
            entry = Entry(self._books.next_id(), head, host.nbytes, head.created_at, host=host)
            self._books.add(entry)
            if self._queue.put(Job(entry, head, timeline, why)):
                return True
            self._books.remove(entry)
        self._tally.fault("queue full")
        return False

    def _head(
        self,
        timeline: Timeline,
        host: HostPage | HostSnapshot,
        stem: str,
        recompute_ms: float,
        point: str,
        what: str,
    ) -> RecordHead:
        start = host.start if isinstance(host, HostPage) else host.position
        end = len(timeline)
        return RecordHead(
            kind="page" if isinstance(host, HostPage) else "snapshot",
            identity=self._identity,
            parent=prefix_key(self._identity, timeline, start),
            start=start,
            end=end,
            ids=timeline.ids[start:end].copy(),
            spans=tuple(span for span in timeline.spans if start <= span.start < end),
            layer_count=len(host.layers),
            arrays=tuple(record_parts(host)[0]),
            created_at=max(0.0, self._clock()),
            recompute_ms=recompute_ms,
            stem=stem,
            point=point,
            label=self._label,
            what=what[:_TEXT_MAX],
        )

    # -- for people ------------------------------------------------------------------------------

    @property
    def stats(self) -> DiskStats:
        with self._lock:
            entries = list(self._books.entries.values())
        ours = [entry for entry in entries if entry.head.identity == self._identity]
        keeper = self._keeper
        return replace(
            self._tally.stats(),
            folder=str(keeper.path),
            is_writer=not keeper.why_not,
            why_not=keeper.why_not,
            failed=self._failed,
            opened_ms=self._opened_ms,
            budget_bytes=keeper.budget_bytes,
            used_bytes=keeper.used_bytes,
            free_bytes=keeper.free_bytes,
            floor_bytes=keeper.floor_bytes,
            stray_bytes=keeper.stray_bytes,
            other_models_bytes=sum(e.nbytes for e in entries) - sum(e.nbytes for e in ours),
            pages=sum(entry.head.kind == "page" for entry in ours),
            snapshots=sum(entry.head.kind == "snapshot" for entry in ours),
            pinned=sum(entry.is_pinned for entry in entries),
            anchors=sum(entry.is_anchor for entry in ours),
            tokens=sum(entry.head.tokens for entry in ours),
            queued_bytes=self._queue.nbytes,
        )

    def load_rate(self) -> float | None:
        """Bytes a second of what was loaded lately; None if that was too little to tell."""
        counted = self._tally.stats()
        return counted.load_bytes_per_s if counted.loaded_bytes >= _RATED_BYTES_MIN else None

    def give_up(self, why: str) -> None:
        """Who stores here stores nothing more: told to people, and in `stats.failed`."""
        self._failed = why
        self._tally.fault("engine")
        self._tally.note("failed", f"nothing more is stored: {why}")

    def not_kept(self, why: str) -> None:
        """Something that was to be stored could not be handed over this time."""
        self._tally.fault("no memory")
        self._tally.note("refused", why)

    def drain_notes(self) -> tuple[CacheNote, ...]:
        """What happened since the last call, oldest first."""
        return self._tally.drain_notes()

    def entries(self) -> tuple[DiskEntry, ...]:
        """All records, of all models, stems before what leans on them."""
        if self._keeper.why_not:
            self._keeper.reread()
        stored = {record.entry_id: record for record in self._books.stored()}
        own = self._identity
        with self._lock:
            found = [
                shown(entry, record.stem, record.is_orphan, is_ours=entry.head.identity == own)
                for entry in self._books.entries.values()
                if (record := stored.get(entry.entry_id)) is not None
            ]
        return tuple(sorted(found, key=lambda e: (not e.is_ours, e.identity, e.start, e.end)))

    def pin(self, holder_id: int) -> None:
        """Keep this record, and with it all that it leans on, whatever the budget needs. Raises
        KeyError if it is gone, StoreError or OSError if it cannot be."""
        self._keeper.pin(self._entry(holder_id), is_pinned=True)
        self.changed()

    def unpin(self, holder_id: int) -> None:
        """As `pin`; of the records before it that it goes on from, too: a conversation was pinned
        when it was shorter."""
        self._keeper.pin(self._entry(holder_id), is_pinned=False)
        self.changed()

    def clear(self, identity: bytes | None = None, *, pinned: bool = False) -> int:
        """Remove all records (of one model), those that wait to be written, too; pinned ones, and
        what they lean on, only if asked to. The bytes that went. Raises as `pin`."""
        with self._keeper.changing:  # what is being written is written before
            self._keeper.check_writer()
            self.clearings += 1
            gone = self._clearable(identity, pinned)
            with self._lock:
                for entry in gone:
                    if entry.host is not None:  # who would write it finds that it has gone
                        self._books.remove(entry)
            removed = self._keeper.remove(gone)
        self.also_clears()
        if gone:
            self._tally.evicted("asked", len(gone))
            tokens = sum(entry.head.tokens for entry in gone)
            self._tally.note("cleared", "somebody asked for it", tokens, removed)
        self.changed()
        return removed

    def _clearable(self, identity: bytes | None, pinned: bool) -> list[Entry]:
        with self._lock:
            stored = self._books.stored()
            stems = {record.entry_id: record.stem for record in stored}
            staying: set[int] = set()
            for record in stored:
                at: int | None = record.entry_id
                while record.is_pinned and not pinned and at is not None and at not in staying:
                    staying.add(at)
                    at = stems.get(at)
            return [
                entry
                for entry in self._books.entries.values()
                if entry.entry_id not in staying and identity in (None, entry.head.identity)
            ]

    def prune(self, to_bytes: int) -> int:
        """Let go of what is worth least until the folder takes no more than that; the bytes that
        went. Raises as `pin`."""
        removed = self._keeper.prune(to_bytes)
        self.changed()
        return removed

    def verify(
        self, told: Callable[[int, int], None] = lambda done, of: None
    ) -> tuple[Damage, ...]:
        """Read every record, of all models; what is damaged is removed. `told` gets the bytes
        that are done, and all."""
        with self._lock:
            stored = [e for e in self._books.entries.values() if e.host is None]
        found: list[Damage] = []
        done, total = 0, sum(entry.nbytes for entry in stored)
        for entry in stored:
            try:
                with RecordFile(self._keeper.path / entry.head.name) as file:
                    file.verify()
            except CorruptRecord as exc:
                # Whoever writes here may have evicted or merged it meanwhile.
                has_left = self._keeper.why_not or not self._is_stored(entry)
                if exc.fault != "gone" or not has_left:
                    self._keeper.damaged(entry, exc)
                    found.append(Damage(entry.head.name, exc.fault, exc.message))
            done += entry.nbytes
            told(done, total)
        return tuple(found)

    def _is_stored(self, entry: Entry) -> bool:
        with self._lock:
            return self._books.entries.get(entry.entry_id) is entry

    def _entry(self, holder_id: int) -> Entry:
        with self._lock:
            return self._books.entries[entry_of(holder_id)]

    def tidy(self) -> None:
        """Nothing else is to be done: small pages may become larger ones meanwhile."""
        self._queue.may_rest()

    # -- closing ---------------------------------------------------------------------------------

    def flush(self, deadline_s: float) -> bool:
        """Wait until everything is written, but not longer than that; whether it is."""
        return self._queue.flush(deadline_s)

    def tidied(self, deadline_s: float) -> bool:
        """Wait until nothing is left of what `tidy` began, but not longer than that."""
        return self._queue.rested(deadline_s)

    def close(self, deadline_s: float) -> bool:
        """Write what waits, as far as the deadline allows, and let the folder go; whether all of
        it was written. What was not is told; `missing_from` finds it the next time."""
        ends_at = time.monotonic() + deadline_s
        left = [job for job in self._queue.close(deadline_s) if job.entry.host is not None]
        if left:
            nbytes = sum(job.nbytes for job in left)
            tokens = sum(job.head.tokens for job in left)
            self._tally.fault("deadline", len(left))
            self._tally.note("deadline", f"{len(left)} records were not written", tokens, nbytes)
        self._keeper.close(max(_CLOSE_S, ends_at - time.monotonic()))
        return not left
