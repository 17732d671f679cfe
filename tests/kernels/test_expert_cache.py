"""What is held of experts: never more than the budget, the last used ones, and counted."""

from collections import OrderedDict
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.kernels.expert_cache import ExpertCache, ExpertStats
from tests.scale import scaled


@dataclass(frozen=True)
class Piece:
    name: int
    nbytes: int


SIZES = (10, 10, 10, 25, 40, 7)


@settings(max_examples=scaled(60), deadline=None)
@given(budget=st.integers(40, 110), picks=st.lists(st.integers(0, len(SIZES) - 1), max_size=60))
def test_the_last_used_that_fit_are_held(budget: int, picks: list[int]) -> None:
    cache = ExpertCache[Piece](budget, clock=iter(range(10**6)).__next__)
    model: OrderedDict[int, int] = OrderedDict()
    hits = misses = evicted = read_bytes = 0
    for pick in picks:
        reads: list[int] = []
        warned: list[int] = []
        size = SIZES[pick]

        def read(pick: int = pick, reads: list[int] = reads) -> Piece:
            reads.append(pick)
            return Piece(pick, SIZES[pick])

        before = cache.stats.resident_bytes
        held = cache.get(pick, size, read, lambda at=before, w=warned: w.append(at))  # type: ignore[misc]
        assert held == Piece(pick, size)
        is_known = pick in model
        needs_room = not is_known and sum(model.values()) + size > budget
        while not is_known and sum(model.values()) + size > budget:
            model.popitem(last=False)
            evicted += 1
        model[pick] = size
        model.move_to_end(pick)
        hits, misses = hits + is_known, misses + (not is_known)
        read_bytes += 0 if is_known else size
        assert reads == ([] if is_known else [pick])
        assert warned == ([before] if needs_room else [])  # told while all are still held
        assert cache.stats.resident_bytes == sum(model.values()) <= budget
        assert cache.unfilled_bytes == budget - sum(model.values())
    assert cache.stats == ExpertStats(
        budget, sum(model.values()), len(model), hits, misses, evicted, read_bytes, misses * 1e3
    )
