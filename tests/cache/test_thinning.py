"""Which snapshots stay, and how often they are taken."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.offers import Rates
from ds4tui.cache.thinning import Place, spacing_tokens, staying
from tests.scale import scaled

POINTS = ["system", "turn", "image", "before last", "chunk", "decode"]

branches = st.dictionaries(
    st.integers(1, 2_000), st.tuples(st.sampled_from(POINTS), st.booleans()), min_size=1
).map(lambda d: [Place(at, point, protected) for at, (point, protected) in d.items()])


@given(branches, st.integers(0, 40), st.integers(1, 200))
@settings(max_examples=scaled(300))
def test_the_laws(places: list[Place], affordable: int, spacing: int) -> None:
    kept = staying(places, affordable, spacing)
    newest = max(place.position for place in places)
    always = {p.position for p in places if p.is_protected or p.point == "system"} | {newest}
    assert always <= kept <= {place.position for place in places}  # (1)
    if len(places) <= affordable:
        assert len(kept) == len(places)  # (2)
    assert len(kept) <= max(affordable, len(always))  # (3)
    again = staying([p for p in places if p.position in kept], affordable, spacing)
    assert again == kept  # (4)


@pytest.mark.parametrize(("affordable", "near", "far"), [(60, 512, 17_000), (20, 2_048, 66_000)])
def test_gaps_grow_with_distance(affordable: int, near: int, far: int) -> None:
    chunks = [Place(512 * i, "chunk") for i in range(1, 324)]  # 165,376 tokens
    kept = sorted(staying(chunks, affordable, 64), reverse=True)
    gaps = [a - b for a, b in zip(kept, [*kept[1:], 0], strict=True)]
    assert gaps[0] <= near
    assert max(gaps) <= far
    thirds = [gaps[i * len(gaps) // 3 : (i + 1) * len(gaps) // 3] for i in range(3)]
    assert sum(thirds[0]) < sum(thirds[1]) < sum(thirds[2])


def test_thinning_as_it_grows_keeps_a_bounded_count_and_bounded_gaps() -> None:
    """A thinned branch is thinned again at each snapshot: gaps do not run away."""
    places: list[Place] = []
    for i in range(1, 3_000):
        places.append(Place(64 * i, "decode"))
        kept = staying(places, 40, 64)
        places = [p for p in places if p.position in kept]
        assert len(places) <= 40
    positions = [0, *sorted(p.position for p in places)]
    newest = positions[-1]
    for before, after in itertools.pairwise(positions):
        assert after - before <= max(128, (newest - after) // 2)


def test_fork_points_stay_before_others() -> None:
    places = [Place(i, "turn" if i % 100 == 0 else "decode") for i in range(10, 1_001, 10)]
    kept = staying(places, 14, 10)
    turns = [at for at in kept if at % 100 == 0]
    assert len(turns) > len(kept) / 2


def test_spacing_follows_from_bytes_and_rates() -> None:
    rates = Rates(decode_tokens_per_s=20, copy_bytes_per_s=5e9)
    assert spacing_tokens(146_800_000, rates) == 64
    assert spacing_tokens(7_500_000, rates) == 16
    assert spacing_tokens(0, rates) == 16
    assert spacing_tokens(146_800_000, Rates(decode_tokens_per_s=80, copy_bytes_per_s=5e9)) == 256
    assert math.log2(spacing_tokens(10**9, rates)).is_integer()
