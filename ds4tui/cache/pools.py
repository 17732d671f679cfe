"""One memory budget, divided among all that takes memory. Pure.

What is left beside the weights goes, in this order, to live states at their full context, MLX's
cache of freed buffers, embeddings of images, and what is put away: parked states and segments,
and snapshots. Live states are rarely full: what they do not use now is lent to what is put away,
which makes room (`MemoryTier.make_room`) as they grow.

  (1) All shares are 0 or more and together never more than the budget; weights are not cut, and
      nothing else gets a share if they do not fit.
  (2) More budget makes no share smaller.
  (3) Weights, live states as they are now and what may be put away beside them fit the budget.
"""

from dataclasses import dataclass

MIB = 2**20

# MLX keeps freed buffers to hand them out again. A prefill chunk's temporaries come to some
# hundred megabytes; more is memory that only looks used.
_BUFFER_CACHE_MAX = 1024 * MIB

# Some hundred screenshots of a vision tower's rows.
_EMBEDDINGS_MAX = 512 * MIB

# Of what is left, for each of both; small machines need the rest for what is put away.
_SHARE = 8


@dataclass(frozen=True, slots=True)
class Pools:
    """Shares in bytes. `put_away_bytes` (parked states and segments) and `snapshot_bytes` are one
    budget in the end: the tier weighs them against each other."""

    budget_bytes: int
    weights_bytes: int
    live_bytes: int
    buffer_cache_bytes: int
    embeddings_bytes: int
    put_away_bytes: int
    snapshot_bytes: int

    def tier_bytes(self, live_now_bytes: int) -> int:
        """What parked states, segments and snapshots may take together while live states take
        `live_now_bytes`."""
        others = self.weights_bytes + self.buffer_cache_bytes + self.embeddings_bytes
        return max(0, self.budget_bytes - others - live_now_bytes)


def divide(
    budget_bytes: int,
    weights_bytes: int,
    live_bytes: int,
    *,
    has_snapshots: bool = False,
    has_images: bool = False,
) -> Pools:
    """`live_bytes`: of all live states at their full context, as far as that fits. ValueError for
    bytes below 0."""
    if min(budget_bytes, weights_bytes, live_bytes) < 0:
        raise ValueError("bytes are 0 or more")
    room = max(0, budget_bytes - weights_bytes)
    live = min(live_bytes, room)
    rest = room - live
    buffers = min(_BUFFER_CACHE_MAX, rest // _SHARE)
    embeddings = min(_EMBEDDINGS_MAX, rest // _SHARE) if has_images else 0
    rest -= buffers + embeddings
    snapshots = rest // 2 if has_snapshots else 0
    return Pools(
        budget_bytes, weights_bytes, live, buffers, embeddings, rest - snapshots, snapshots
    )
