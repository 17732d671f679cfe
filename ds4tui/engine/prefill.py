"""The tokens of one sync that are still to be evaluated: in which chunks, and what is
snapshotted between them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ds4tui.cache.plan import SyncPlan
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.fork_points import Point, chosen_borders, is_far_enough
from ds4tui.errors import EngineError

if TYPE_CHECKING:
    from ds4tui.engine.session import Session

Floats = npt.NDArray[np.float32]

# A fixed set, so that schedules and kernel shapes repeat. 512 rows feed a matrix product well on
# every device. Steps of 32 do any rest in at most two chunks: each one reads all weights, and with
# (512, 128, 32) a prompt of 127 tokens took four and 30 % more CPU time.
CHUNK_STEP = 32
CHUNK_SIZES = tuple(range(512, 0, -CHUNK_STEP))

# With a fork point so near, a chunk's end gets no snapshot: the next step takes one there.
NEXT_STOP_MIN = 16


class Prefill:
    """The tokens of one sync that are still to be evaluated; resumable after each step.

    `total` were to be evaluated, `done` of them are; `plan` is what was decided. Made by
    Session.sync only; the next sync closes it. Chunks of a state that needs snapshots end where
    conversations fork (fork_points.py).
    """

    def __init__(self, session: "Session", wanted: Timeline, plan: SyncPlan) -> None:
        self.wanted = wanted
        self.plan = plan
        self.total = plan.to_evaluate
        self.done = 0
        self._session = session
        self._last_start = wanted.snapped(len(wanted) - 1)
        self._stops = self._snapshot_stops()
        self._logits: Floats | None = None
        self._snapshot(plan.kept)

    @property
    def finished(self) -> bool:
        return self.done == self.total

    @property
    def logits(self) -> Floats:
        """float32 [vocab] after the last token. EngineError before the prefill is finished."""
        if self._logits is None:
            raise EngineError("The prefill is not finished: there are no logits yet.")
        return self._logits

    def step(self, max_rows: int) -> None:
        """Evaluate one chunk of at most `max_rows` rows; more only for an image, never cut.

        Raises what the model raises, and the session is poisoned then. EngineError if this
        prefill is finished, closed or overtaken by another sync.
        """
        session = self._session
        if session._prefill is not self:
            raise EngineError("This prefill is over.", "Call sync again.")
        end = self._chunk_end(len(session.timeline), max_rows)
        is_last = end == len(self.wanted)
        self._logits = session._evaluate(self.wanted, end, "last" if is_last else "none")
        self.done = end - self.plan.kept
        if is_last:
            self._end()
        else:
            self._snapshot(end)
        session._check()

    def next_spans(self, max_rows: int) -> tuple[ImageSpan, ...]:
        """The images among the rows that `step` would evaluate."""
        start = len(self._session.timeline)
        end = self._chunk_end(start, max_rows)
        return tuple(span for span in self.wanted.spans if start <= span.start < end)

    def close(self) -> None:
        """Stop here. What is evaluated stays resident; nothing happens if it is over already."""
        if self._session._prefill is self:
            self._end()
            self._session._check()

    def _end(self) -> None:
        self._session._prefill_ended()

    def _chunk_end(self, start: int, max_rows: int) -> int:
        if start == self._last_start:
            return len(self.wanted)
        stop = next((p for p in self._stops if p > start), self._last_start)
        rows = chunk_rows(stop - start, max_rows, self._session.chunk_sizes)
        end = self.wanted.snapped(start + rows)
        if end > start:
            return end
        return next(span.end for span in self.wanted.spans if span.start == start)

    def _snapshot_stops(self) -> dict[int, Point]:
        """Where chunks must end, ascending, and what each place is."""
        if not self._session.needs_snapshots:
            return {}
        start, end = self.plan.kept, self._last_start
        chosen = chosen_borders(self._session.outline, self.wanted, start, end)
        stops: dict[int, Point] = {place.position: place.point for place in chosen}
        return stops | {end: "before last"}

    def _snapshot(self, position: int) -> None:
        point = self._stops.get(position)
        if point is None and position and self._is_worth_one(position):
            point = "chunk"
        if point is not None and self._session.needs_snapshots:
            self._session._snapshot(point)

    def _is_worth_one(self, position: int) -> bool:
        """Whether a chunk's end that is no fork point deserves a snapshot."""
        stop = next((p for p in self._stops if p > position), position)
        is_far = is_far_enough(position, self._session.snapshot_at, len(self.wanted))
        return is_far and stop - position >= NEXT_STOP_MIN


def chunk_rows(remaining: int, max_rows: int, sizes: Sequence[int]) -> int:
    """Rows of the next chunk: the largest of `sizes` (descending) that fits both limits. What is
    less than the smallest goes in one chunk of its own: single steps would read all weights
    once for each."""
    room = max(1, min(remaining, max_rows))
    return next((size for size in sizes if size <= room), room)


def vector(returned: object) -> Floats:
    """What `forward` returned, [1, vocab], as a float32 [vocab] of the caller's own."""
    logits: Floats = np.array(returned, dtype=np.float32)
    if logits.ndim != 2 or len(logits) != 1:
        raise EngineError(f"The model returned logits of shape {logits.shape}, not [1, vocab].")
    row: Floats = logits[0]
    return row
