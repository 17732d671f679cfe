"""What is held besides the live state, as a look-up for one wanted timeline found it.

A look-up (`MemoryTier.offers`, and that of the disk store) happens before anything is planned
and changes nothing; the plan chooses from what it says. Values only: no handle of a state is
here, but for the question whether a parked state can go back.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ds4tui.cache.causes import Lost
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import ImageSpan

HolderKind = Literal["live", "parked", "segment", "page"]

# The session's own live state, where a holder is named.
HOLDER_LIVE = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast things go, measured or guessed; all > 0. Only their proportions decide a plan."""

    prefill_tokens_per_s: float = 500.0
    decode_tokens_per_s: float = 20.0
    copy_bytes_per_s: float = 5e9
    load_bytes_per_s: float = 1e9

    def prefill_ms(self, tokens: int) -> float:
        return 1e3 * tokens / self.prefill_tokens_per_s

    def copy_ms(self, nbytes: int) -> float:
        return 1e3 * nbytes / self.copy_bytes_per_s

    def load_ms(self, nbytes: int) -> float:
        return 1e3 * nbytes / self.load_bytes_per_s


DEFAULT_RATES = Rates()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a state: `row_bytes` of one position in all append-only layers, `snapshot_bytes`
    of the bounded part, `live_bytes` of what the live state has allocated (0: its rows and its
    bounded part)."""

    row_bytes: int = 1
    snapshot_bytes: int = 0
    live_bytes: int = 0

    def whole_bytes(self, live: int) -> int:
        """Of the live state, if it holds `live` rows."""
        return self.live_bytes or live * self.row_bytes + self.snapshot_bytes


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows [start, end) of some timeline that shares its first `common` ids with the wanted one:
    rows [start, min(end, common)) are rows of the wanted timeline.

    "parked": a whole state (start = 0) that `can_rewind` as it says and can be gone on with;
    "segment": a copied run of rows, of use once [0, start) comes from elsewhere; "page": a run
    on disk; "live": the session's own state, which no look-up returns. `nbytes` is what it takes
    in memory.
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

    @property
    def reach(self) -> int:
        return min(self.end, self.common)


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """The bounded part of a state at `position`; all ids before it are the wanted timeline's."""

    snapshot_id: int
    position: int
    on_disk: bool = False


@dataclass(frozen=True, slots=True)
class Evictable:
    """What could go to make room, and what it would cost to have it computed again."""

    entry_id: int
    value_ms: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Offers:
    """`free_bytes` is room for what is put away; `evictable` what could make more of it, asked
    only where that matters."""

    rows: tuple[HeldRows, ...] = ()
    snapshots: tuple[HeldSnapshot, ...] = ()
    lost: tuple[Lost, ...] = ()
    free_bytes: int = 0
    evictable: Sequence[Evictable] | Callable[[], Sequence[Evictable]] = ()

    def has_room(self, nbytes: int, worth_ms: float, keep: Collection[int] = ()) -> bool:
        """Whether something worth `worth_ms` can have so many bytes: only what is worth less
        makes way for it, and nothing of `keep`."""
        if nbytes <= self.free_bytes:
            return True
        evictable = self.evictable() if callable(self.evictable) else self.evictable
        return nbytes <= self.free_bytes + sum(
            entry.nbytes
            for entry in evictable
            if entry.value_ms < worth_ms and entry.entry_id not in keep
        )

    def joined(self, other: "Offers") -> "Offers":
        """Both: that of the memory, whose room counts, and `other` (the disk's)."""
        return Offers(
            self.rows + other.rows,
            self.snapshots + other.snapshots,
            self.lost + other.lost,
            self.free_bytes,
            self.evictable,
        )


NO_OFFERS = Offers()
