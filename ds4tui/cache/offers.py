"""What is held besides the live state, as a look-up for one wanted timeline found it.

A look-up (`MemoryTier.offers`, and that of the disk store) happens before anything is planned
and changes nothing; the plan chooses from what it says. Values only: no handle of a state is
here, but for the question whether a parked state can go back.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ds4tui.cache.causes import Lost
from ds4tui.cache.eviction import Weighed, victims
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import ImageSpan

HolderKind = Literal["live", "parked", "segment", "page"]

# The session's own live state, where a holder is named.
HOLDER_LIVE = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast things go, measured or guessed; all > 0. Only their proportions decide a plan.
    `load_ms_each` is what a record on disk takes whatever its size: to be opened, checked, and
    waited for."""

    prefill_tokens_per_s: float = 500.0
    decode_tokens_per_s: float = 20.0
    copy_bytes_per_s: float = 5e9
    load_bytes_per_s: float = 1e9
    load_ms_each: float = 2.0

    def prefill_ms(self, tokens: int) -> float:
        return 1e3 * tokens / self.prefill_tokens_per_s

    def copy_ms(self, nbytes: int) -> float:
        return 1e3 * nbytes / self.copy_bytes_per_s

    def load_ms(self, nbytes: int) -> float:
        """Of one record, which is read whole."""
        return self.load_ms_each + 1e3 * nbytes / self.load_bytes_per_s


DEFAULT_RATES = Rates()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a state: `row_bytes` of one position in all append-only layers, `snapshot_bytes`
    of the bounded part, `live_bytes` of what the live state has allocated (0: its rows and its
    bounded part), `wanted_bytes` of what the wanted one is going to (0: no more than it begins
    with)."""

    row_bytes: int = 1
    snapshot_bytes: int = 0
    live_bytes: int = 0
    wanted_bytes: int = 0

    def whole_bytes(self, live: int) -> int:
        """Of the live state, if it holds `live` rows."""
        return self.live_bytes or live * self.row_bytes + self.snapshot_bytes


@dataclass(frozen=True, slots=True)
class Unheld:
    """`start` is the first row that nothing holds; those before it, as far as was asked, are held
    by `holders`."""

    start: int
    holders: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows [start, end) of some timeline that shares its first `common` ids with the wanted one:
    rows [start, min(end, common)) are rows of the wanted timeline.

    "parked": a whole state (start = 0) that `can_rewind` as it says and can be gone on with;
    "segment": a copied run of rows, of use once [0, start) comes from elsewhere; "page": a run
    on disk; "live": the session's own state, which no look-up returns. `nbytes` is what it takes
    in memory, or of a page what is read of it, however few rows are wanted. `unheld` says of a
    parked one what Offers.unheld does of the live one.
    """

    holder_id: int
    kind: HolderKind
    start: int
    end: int
    common: int
    nbytes: int = 0
    can_rewind: Callable[[int], bool] | None = None
    outline: Outline = ()
    spans: tuple[ImageSpan, ...] = ()
    unheld: Callable[[int], Unheld] | None = field(default=None, compare=False)

    @property
    def reach(self) -> int:
        return min(self.end, self.common)


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """The bounded part of a state at `position`; all ids before it are the wanted timeline's.
    `nbytes` is what it takes, 0 where that is as much as the live state's."""

    snapshot_id: int
    position: int
    on_disk: bool = False
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Offers:
    """What a look-up found, and the room there is for what is put away.

    `free_bytes` is what the tier may take besides what it holds; where `is_shared` the live states
    grow in the same room. `device_bytes` is what can be allocated at all now; None: all that
    there is room for. `evictable` is what could make way, weighed; asked only where that matters.
    `crowd` counts things that must go for one more, whatever they take. `takes` is False where
    nothing shall be put away.

    `unheld(row, excluded)` says how far the live timeline is held from `row` on by anything in
    memory besides the live state, the holder `excluded` not counted.
    """

    rows: tuple[HeldRows, ...] = ()
    snapshots: tuple[HeldSnapshot, ...] = ()
    lost: tuple[Lost, ...] = ()
    free_bytes: int = 0
    evictable: Sequence[Weighed] | Callable[[], Sequence[Weighed]] = field(
        default=(), compare=False
    )
    crowd: int = 0
    is_shared: bool = False
    device_bytes: int | None = None
    takes: bool = True
    unheld: Callable[[int, int | None], Unheld] | None = field(default=None, compare=False)

    def has_room(
        self, nbytes: int, room_bytes: int, worth_ms: float, keep: Collection[int] = ()
    ) -> bool:
        """Whether something worth `worth_ms` can have so many bytes where there are `room_bytes`
        (below 0: what must go in any case): only what is worth less makes way for it, and
        nothing of `keep`."""
        if not self.takes:
            return False
        if nbytes <= room_bytes and not self.crowd:
            return True
        evictable = self.evictable() if callable(self.evictable) else self.evictable
        excess = nbytes - room_bytes
        return victims(evictable, excess, keep, worth_ms, self.crowd) is not None

    def joined(self, other: "Offers") -> "Offers":
        """Both: that of the memory, whose room counts, and `other` (the disk's)."""
        return replace(
            self,
            rows=self.rows + other.rows,
            snapshots=self.snapshots + other.snapshots,
            lost=self.lost + other.lost,
        )


NO_OFFERS = Offers()
