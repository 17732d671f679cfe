"""What turns leave for the next ones is bounded and found again."""

from ds4tui.cache.timeline import Timeline
from ds4tui.chat.remembered import LatestTimelines, TextNumbers


def test_a_number_is_told_once_while_it_is_known() -> None:
    told: list[str] = []
    numbers = TextNumbers(lambda text: told.append(text) or len(text), max_entries=2)
    assert [numbers.of(text) for text in ("a", "bb", "a", "ccc", "a", "bb")] == [1, 2, 1, 3, 1, 2]
    assert told == ["a", "bb", "ccc", "bb"]


def test_the_nearest_timeline_has_most_in_common() -> None:
    latest = LatestTimelines()
    assert latest.nearest(Timeline.of([1])) is None
    for ids in ([1, 2, 3], [1, 5], [9]):
        latest.put(Timeline.of(ids))
    assert latest.nearest(Timeline.of([1, 2, 7])) == Timeline.of([1, 2, 3])
    assert latest.nearest(Timeline.of([1, 5, 6])) == Timeline.of([1, 5])
    assert latest.nearest(Timeline.of([7])) is None


def test_a_conversation_that_goes_on_takes_one_place() -> None:
    latest = LatestTimelines(max_entries=2)
    latest.put(Timeline.of([9, 9]))
    for end in range(1, 10):
        latest.put(Timeline.of(range(end)))
    assert latest.nearest(Timeline.of([9])) == Timeline.of([9, 9])


def test_their_ids_are_bounded_and_the_newest_stays() -> None:
    latest = LatestTimelines(max_ids=100)
    for first in range(5):
        latest.put(Timeline.of([first] * 40))
    there = [latest.nearest(Timeline.of([first])) is not None for first in range(5)]
    assert there == [False, False, False, True, True]
    latest.put(Timeline.of([7] * 500))
    assert latest.nearest(Timeline.of([7])) == Timeline.of([7] * 500)
    assert latest.nearest(Timeline.of([4])) is None
