"""What goes when room is needed: the laws of cache.eviction."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.eviction import HALF_LIFE_S, Weighed, value_ms, victims
from ds4tui.cache.offers import Offers
from tests.scale import scaled


@st.composite
def forests(draw: st.DrawFn) -> list[Weighed]:
    """Things that lean on earlier ones, and on all that those lean on."""
    things: list[Weighed] = []
    for key in range(draw(st.integers(0, 8))):
        stems: frozenset[int] = frozenset()
        if things and draw(st.booleans()):
            stem = draw(st.sampled_from(things))
            stems = stem.stems | {stem.entry_id}
        value, nbytes = draw(st.integers(0, 9)), draw(st.integers(1, 5))
        things.append(Weighed(key, float(value), nbytes, stems))
    return things


keeps = st.sets(st.integers(0, 7), max_size=3)


@given(forests(), st.integers(0, 30), keeps, st.integers(0, 10), st.integers(0, 4))
@settings(max_examples=scaled(400))
def test_the_laws(
    things: list[Weighed], excess: int, keep: set[int], worth: int, crowd: int
) -> None:
    by_id = {thing.entry_id: thing for thing in things}
    gone = victims(things, excess, keep, worth, crowd)
    if gone is None:
        return
    assert len(set(gone)) == len(gone)
    freed = [by_id[key].nbytes for key in gone]
    assert sum(freed) >= excess and len(gone) >= crowd  # (1)
    assert not gone or sum(freed[:-1]) < excess or len(gone) == crowd  # and no more than needed
    assert not set(gone) & keep  # (2)
    assert all(by_id[key].value_ms < worth for key in gone)
    for place, key in enumerate(gone):  # (3)
        left = [t for t in things if t.entry_id not in gone[:place]]
        assert not any(key in thing.stems for thing in left)
        free = [t for t in left if not any(t.entry_id in other.stems for other in left)]
        rivals = [t.value_ms for t in free if t.entry_id not in keep]
        assert by_id[key].value_ms == min(rivals)  # (4)


@given(forests(), st.integers(1, 30), keeps, st.data())
@settings(max_examples=scaled(400))
def test_to_be_worth_more_never_makes_a_thing_go(
    things: list[Weighed], excess: int, keep: set[int], data: st.DataObject
) -> None:
    before = victims(things, excess, keep)
    if before is None or not things:
        return
    chosen = data.draw(st.sampled_from(things))
    dearer = replace(chosen, value_ms=chosen.value_ms + data.draw(st.integers(1, 9)))
    after = victims([dearer if t is chosen else t for t in things], excess, keep)
    assert after is not None
    if chosen.entry_id not in before:
        assert chosen.entry_id not in after


@given(forests(), keeps, st.integers(0, 10))
@settings(max_examples=scaled(200))
def test_a_plan_knows_what_can_make_way(things: list[Weighed], keep: set[int], worth: int) -> None:
    """Offers.has_room says what the tier will do: no other things, and no other order."""
    offers = Offers(evictable=things)
    gone = [n for n in range(61) if offers.has_room(n, 0, worth, keep)]
    assert gone == list(range(len(gone)))
    most = max(gone)
    assert victims(things, most, keep, worth) is not None
    assert victims(things, most + 1, keep, worth) is None or most == 60
    assert offers.has_room(most, 0, worth, keep)
    assert offers.has_room(most + 5, 5, worth, keep)
    assert not offers.has_room(most, -1, worth, keep) or most == 60


def test_a_long_session_gives_way_to_a_short_one_only_after_hours() -> None:
    long, short = 165_755.0, 4_977.0
    assert value_ms(long, 0) > value_ms(long, 60) > value_ms(short, 0)
    assert value_ms(long, 5 * HALF_LIFE_S) > value_ms(short, 0) > value_ms(long, 6 * HALF_LIFE_S)
    assert value_ms(long, -5) == long  # a clock that went back makes nothing dearer
