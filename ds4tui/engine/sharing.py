"""Whose step is next among the jobs at work: shares of the engine's time, not of its turns.

A job at work reads (its prompt is planned, encoded or evaluated) or writes (its reply is decoded).
A chunk of a prompt takes as long as many tokens, so turn by turn a reply would crawl beside a long
prompt. The rule:

1. While replies are written, prompts together get READING_SHARE of the time and replies the rest.
   Where a person's prompt is read beside replies to agents only, it is the other way round.
2. It is kept by an account of measured seconds. Each step of a prompt is charged for what it
   took; each token earns prompts their share of what that took. A prompt may go on while the
   account is not empty; it goes below nothing by one step at most, and what is owed is worked off
   by tokens before the next. It is never above BURST_S: so much a prompt may take at once, so
   that a short one is read in one go.
3. With something in the account, prompts and replies take turns. Whatever the clock says, no
   prompt waits for more than TOKENS_IN_A_ROW tokens, and a reply for one step of a prompt.
4. Among prompts, and among replies, schedule.py says who is next: persons first, nobody starved.
5. A chunk of a prompt beside a reply, or beside a prompt of a person, is the largest one of the
   set that takes SHARED_CHUNK_S at most, at the rate measured last; alone it is the largest.

Durations come from whoever calls (`stepped`); nothing here reads a clock.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ds4tui.engine.requests import Origin
from ds4tui.engine.schedule import Schedule

# Of the time while replies are written, what prompts get. A live reply shall keep four fifths of
# its rate; its tokens take longer on caches that a chunk has filled (6 % on two cores). A prompt
# takes seven times as long as alone: with less it would be given up.
READING_SHARE = 0.15

# A person's prompt beside replies to agents only: that person looks at a screen without a word.
PERSONS_READING_SHARE = 0.8

# What a reply stands still at once: a pause that is seen and does not annoy. The cost of chunks
# that are smaller than the largest is small on a CPU and real on a GPU, whose rate allows for
# large ones in this time.
SHARED_CHUNK_S = 0.15
BURST_S = 0.15

# Rows of such a chunk before anything was measured.
SHARED_CHUNK_ROWS = 64

# Of one measured chunk in the rate that is followed. Chunks get slower with depth, so it has to
# follow soon; a busy moment of the machine shall not decide alone.
RATE_WEIGHT = 0.5
# Shorter chunks (the last token of a prompt is one) say little of the rate.
MEASURED_ROWS_MIN = 16

# Debts are in seconds that were measured. A machine that stood still in a step owes this at most.
DEBT_MAX_S = 10.0

# A clock that stands still must not starve prompts. Far above what any share comes to.
TOKENS_IN_A_ROW = 1024

T = TypeVar("T")


class Turns(Generic[T]):
    """The jobs at work. Owned by the engine thread. `is_writing` says of a job that its reply is
    decoded; it is asked when the job is added and after each of its steps."""

    def __init__(self, is_writing: Callable[[T], bool]) -> None:
        self._is_writing = is_writing
        self._reading: Schedule[T] = Schedule()
        self._writing: Schedule[T] = Schedule()
        self._origins: list[tuple[T, Origin]] = []
        self._account_s = BURST_S  # what prompts may take yet
        self._tokens_in_a_row = 0
        self._has_read_last = False
        self._rows_per_s = 0.0  # of chunks, as measured; 0: not yet

    def __len__(self) -> int:
        return len(self._origins)

    def add(self, job: T, origin: Origin) -> None:
        self._origins.append((job, origin))
        self._line_of(job).add(job, origin)

    def remove(self, job: T) -> bool:
        """Whether `job` was at work; it is no longer."""
        self._origins = [pair for pair in self._origins if pair[0] is not job]
        return self._reading.remove(job) or self._writing.remove(job)

    def in_order(self) -> list[T]:
        """All of them: those that write, then those that read."""
        return [*self._writing.in_order(), *self._reading.in_order()]

    def next(self) -> T:
        """The job that does the next step; it stays, at the end of its line. IndexError if there
        is none."""
        line = self._reading if self._is_readers_turn() else self._writing
        job = line.take()
        line.add(job, self._origin(job))
        return job

    def stepped(self, job: T, took_s: float, rows: int = 0) -> None:
        """`job` did a step that took so long, and in it `rows` rows of its prompt were evaluated.
        Call it also where the job is over, before `remove`."""
        has_read = job in self._reading.in_order()
        self._has_read_last = has_read
        self._tokens_in_a_row = 0 if has_read else self._tokens_in_a_row + 1
        self._book(took_s, has_read)
        if rows >= MEASURED_ROWS_MIN and took_s > 0:
            before, rate = self._rows_per_s, rows / took_s
            self._rows_per_s = before + RATE_WEIGHT * (rate - before) if before else rate
        if has_read is self._is_writing(job):
            (self._reading if has_read else self._writing).remove(job)
            self._line_of(job).add(job, self._origin(job))

    def chunk_limit(self, job: T, sizes: Sequence[int]) -> int:
        """Most rows of the next prefill chunk of `job`, one of `sizes` (descending)."""
        others = [(j, origin) for j, origin in self._origins if j is not job]
        if not any(self._is_writing(j) or origin == "person" for j, origin in others):
            return sizes[0]
        rows = SHARED_CHUNK_S * self._rows_per_s if self._rows_per_s else SHARED_CHUNK_ROWS
        return next((size for size in sizes if size <= rows), sizes[-1])

    def slowed_words(self, job: T) -> str:
        """Why the prompt of `job` is read more slowly than it could be; "" if it is not."""
        writing, others = len(self._writing), len(self._reading) - 1
        if self._is_writing(job) or not writing:
            return ""
        share = f"{self.reading_share:.0%}".replace("%", " %")
        replies = "1 reply is" if writing == 1 else f"{writing} replies are"
        whose = "prefill is" if not others else f"{others + 1} prefills together are"
        return f"{whose} given {share} of the time while {replies} written"

    @property
    def reading_share(self) -> float:
        """Of the engine's time, what prompts get while replies are written."""
        return PERSONS_READING_SHARE if self._is_person_waiting() else READING_SHARE

    def _is_readers_turn(self) -> bool:
        if not len(self._writing) or not len(self._reading):
            return not len(self._writing)
        if self._tokens_in_a_row >= TOKENS_IN_A_ROW:
            return True
        return self._account_s > 0 and not self._has_read_last

    def _book(self, took_s: float, has_read: bool) -> None:
        """Charge prompts for a step of one of them, credit them for a token."""
        if not len(self._writing):  # nobody is kept waiting
            self._account_s = BURST_S
        elif has_read:
            self._account_s -= took_s
        else:
            self._account_s += took_s * self.reading_share / (1 - self.reading_share)
        self._account_s = max(-DEBT_MAX_S, min(BURST_S, self._account_s))

    def _is_person_waiting(self) -> bool:
        """Whether a prompt of a person is read while no reply to a person is written."""
        persons = [job for job, origin in self._origins if origin == "person"]
        return bool(persons) and not any(self._is_writing(job) for job in persons)

    def _line_of(self, job: T) -> Schedule[T]:
        return self._writing if self._is_writing(job) else self._reading

    def _origin(self, job: T) -> Origin:
        return next(origin for other, origin in self._origins if other is job)
