"""Timelines: values that share a buffer, a hash that only grows, images that nothing cuts."""

import itertools
import threading
import time

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.timeline import ImageSpan, Timeline
from tests.cache.pictures import rows_of, span, with_images
from tests.scale import scaled

ids_lists = st.lists(st.integers(0, 5), max_size=40)


def plain_digest(ids: list[int]) -> bytes:
    return xxhash.xxh3_128(np.array(ids, dtype="<i8").tobytes()).digest()


@given(ids_lists, st.lists(ids_lists, max_size=5))
@settings(max_examples=scaled(60))
def test_extended_equals_a_timeline_made_at_once(first: list[int], more: list[list[int]]) -> None:
    timeline, expected = Timeline.of(first), list(first)
    for new in more:
        timeline, expected = timeline.extended(new), expected + new
        assert timeline.ids.tolist() == expected
        assert timeline == Timeline.of(expected)
        assert hash(timeline) == hash(Timeline.of(expected))


@given(ids_lists, ids_lists, ids_lists)
@settings(max_examples=scaled(60))
def test_two_extensions_of_one_timeline_do_not_see_each_other(
    base: list[int], left: list[int], right: list[int]
) -> None:
    timeline = Timeline.of(base)
    a, b = timeline.extended(left), timeline.extended(right)
    c = a.prefix(len(base)).extended(right)
    assert timeline.ids.tolist() == base
    assert a.ids.tolist() == base + left
    assert b.ids.tolist() == c.ids.tolist() == base + right


@given(st.lists(st.integers(0, 3), max_size=3000), st.data())
@settings(max_examples=scaled(30))
def test_digest_of_any_length_is_the_hash_of_those_ids(ids: list[int], data: st.DataObject) -> None:
    timeline = Timeline.of(ids[:10]).extended(ids[10:])
    for _ in range(3):
        length = data.draw(st.integers(0, len(ids)))
        assert timeline.digest(length) == plain_digest(ids[:length])
    assert timeline.digest() == plain_digest(ids)


def test_digest_does_not_depend_on_how_a_timeline_grew() -> None:
    ids = list(range(5000))
    grown = Timeline.empty()
    for start in range(0, 5000, 7):
        grown = grown.extended(ids[start : start + 7])
        grown.digest()
    assert grown.digest() == Timeline.of(ids).digest() == plain_digest(ids)
    assert grown.prefix(4097).digest() == plain_digest(ids[:4097])


def test_the_ids_are_read_only_and_old_views_keep_their_values() -> None:
    timeline = Timeline.of(range(64))
    view = timeline.ids
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 5
    timeline.extended(range(1000))  # grows the buffer
    assert view.tolist() == list(range(64))
    assert view.dtype == np.int64


def test_the_callers_array_may_change_afterwards() -> None:
    ids = np.arange(100)
    timeline = Timeline.of(ids)
    ids[:] = 0
    assert timeline.ids.tolist() == list(range(100))


def test_extending_a_long_timeline_copies_only_the_new_ids() -> None:
    """340,000 ids extended 1,000 times, hash included, against one full copy as the peer."""
    ids = np.arange(340_000) % 50_000
    timeline = Timeline.of(ids)
    timeline.digest()
    began = time.perf_counter()
    for token in range(1000):
        timeline = timeline.extended([token])
        timeline.digest()
    extended_s = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(20):
        Timeline.of(ids).digest()
    made_anew_s = (time.perf_counter() - began) * 50  # what 1,000 of them take
    assert len(timeline) == 341_000
    assert extended_s < made_anew_s / 4


@given(ids_lists, ids_lists)
@settings(max_examples=scaled(100))
def test_common_prefix_is_what_a_loop_finds(a: list[int], b: list[int]) -> None:
    expected = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b))))  # noqa: B905
    assert Timeline.of(a).common_prefix(Timeline.of(b)) == expected
    assert Timeline.of(b).common_prefix(Timeline.of(a)) == expected


def test_common_prefix_of_340000_ids_is_one_comparison() -> None:
    a = np.arange(340_000)
    b = a.copy()
    b[-1] = 0
    one, other = Timeline.of(a), Timeline.of(b)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert one.common_prefix(other) == 339_999
        times.append(time.perf_counter() - began)
    peer = min(_timed_sum(a) for _ in range(5))
    assert min(times) < 20 * peer  # of the order of one pass over the ids


def _timed_sum(array: np.ndarray) -> float:
    began = time.perf_counter()
    array.sum()
    return time.perf_counter() - began


def test_common_prefix_ends_before_an_image_it_would_cut() -> None:
    first = with_images(1, 2, span(0, name=1), 3, 4)
    same_then_text = with_images(1, 2, span(0, name=1), 9)
    assert first.common_prefix(same_then_text) == 5
    other_picture = with_images(1, 2, span(0, name=2), 3, 4)
    assert first.common_prefix(other_picture) == 2
    # The same picture with fewer rows (another grid) shares its first rows, and yet no image.
    shorter = with_images(1, 2, span(0, rows=2, name=1), 3)
    assert first.common_prefix(shorter) == shorter.common_prefix(first) == 2


def test_prefix_and_snapped_respect_images() -> None:
    timeline = with_images(1, 2, span(0), 3)
    assert [timeline.snapped(p) for p in range(7)] == [0, 1, 2, 2, 2, 5, 6]
    assert timeline.prefix(5).spans == timeline.spans
    assert timeline.prefix(2).spans == ()
    for cut in (3, 4):
        with pytest.raises(ValueError, match="cut an image"):
            timeline.prefix(cut)


@pytest.mark.parametrize("length", [-1, 4])
def test_no_prefix_or_digest_outside(length: int) -> None:
    timeline = Timeline.of([1, 2, 3])
    timeline.extended([4])  # the buffer is longer than the timeline
    with pytest.raises(ValueError, match="no prefix"):
        timeline.prefix(length)
    with pytest.raises(ValueError, match="no digest"):
        timeline.digest(length)


def test_equality_looks_at_ids_and_images() -> None:
    assert Timeline.of([1, 2]) != Timeline.of([1, 3])
    assert Timeline.of([1, 2]) != Timeline.of([1, 2, 3])
    assert with_images(span(0, name=1)) != with_images(span(0, name=2))
    assert Timeline.of([1]) != [1]
    assert Timeline.of([1, 2, 3]).prefix(2) == Timeline.of([1, 2])


@pytest.mark.parametrize(
    ("ids", "spans"),
    [
        ([1, -5], ()),
        ([1, 2, 3], (span(0),)),
        ([-1, -2, -3, -4], (span(0),)),
        ([-1, -2, -3], (span(1),)),
        ([-1] * 6, (span(3), span(0))),
        ([-1] * 5, (span(0), span(2))),
    ],
)
def test_negative_ids_are_just_the_images_rows(ids: list[int], spans: tuple) -> None:
    with pytest.raises(ValueError, match="image"):
        Timeline.of(ids, spans)


def test_extended_takes_images_at_their_new_positions() -> None:
    image = span(2)
    timeline = Timeline.of([1, 2]).extended([*rows_of(image), 5], (image,))
    assert timeline == with_images(1, 2, span(0), 5)
    second = ImageSpan(6, 3, bytes([2]) * 16, (7, 7, 7))
    longer = timeline.extended(rows_of(second), (second,))
    assert longer == with_images(1, 2, span(0), 5, span(0, name=2))
    assert longer.prefix(6) == timeline
    with pytest.raises(ValueError, match="image"):
        Timeline.of([1, 2, 3]).extended(rows_of(image), (image,))


@pytest.mark.parametrize(
    "arguments",
    [(-1, 1, bytes(16), (1,)), (0, 0, bytes(16), ()), (0, 1, b"", (1,)), (0, 2, bytes(16), (1,))],
)
def test_ill_formed_spans_are_refused(arguments: tuple) -> None:
    with pytest.raises(ValueError, match=r"image|fingerprint"):
        ImageSpan(*arguments)


def test_ids_are_integers_in_one_dimension() -> None:
    with pytest.raises(TypeError, match="integers"):
        Timeline.of([1.5])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="one dimension"):
        Timeline.of(np.zeros((2, 2), dtype=np.int64))
    assert len(Timeline.of(np.arange(3, dtype=np.int32))) == 3
    assert len(Timeline.empty()) == 0


def test_threads_that_extend_one_timeline_get_their_own_ids() -> None:
    base = Timeline.of(range(50))
    start = threading.Barrier(4)
    results: dict[int, Timeline] = {}

    def extend(worker: int) -> None:
        start.wait()
        timeline = base
        for _ in range(200):
            timeline = timeline.extended([worker])
            timeline.digest()
        results[worker] = timeline

    threads = [threading.Thread(target=extend, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker, timeline in results.items():
        assert timeline.ids.tolist() == [*range(50), *[worker] * 200]
        assert timeline.digest() == plain_digest(timeline.ids.tolist())
