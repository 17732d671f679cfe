"""The tree of timelines against plain comparisons."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.prefix_tree import PrefixTree
from ds4tui.cache.timeline import Timeline
from tests.cache.pictures import span, with_images
from tests.scale import scaled

short = st.lists(
    st.one_of(st.integers(0, 1), st.sampled_from([span(0, 2, 1), span(0, 3, 1)])), max_size=7
)


def check_shape(tree: PrefixTree) -> None:
    """Invariants 1 to 3."""
    for node in tree.nodes():
        for first, child in node.children.items():
            assert child.parent is node
            assert (child.start, child.ids[0]) == (node.end, first)
        if node is not tree.root:
            assert node.keys or node.marks or len(node.children) > 1


@given(st.lists(st.tuples(short, st.booleans()), max_size=8), short)
@settings(max_examples=scaled(150))
def test_it_says_what_comparisons_say(stored: list[tuple[list[Any], bool]], asked: Any) -> None:
    tree, timelines = PrefixTree(), {}
    for key, (parts, has_mark) in enumerate(stored):
        timelines[key] = with_images(*parts)
        tree.add(key, timelines[key], len(timelines[key]) // 2 if has_mark else None)
        check_shape(tree)
    wanted = with_images(*asked)
    shared = {key: t.common_prefix(wanted) for key, t in timelines.items()}
    assert tree.commons(wanted) == {key: common for key, common in shared.items() if common}
    for key in list(timelines):
        assert tree.timeline(key) == timelines[key]
        tree.remove(key)
        check_shape(tree)
    assert list(tree.nodes()) == [tree.root]


def test_shared_ids_are_held_once_and_freed() -> None:
    tree, base = PrefixTree(), np.arange(100_000)
    for key in range(50):
        tree.add(key, Timeline.of(np.concatenate((base, [10**6 + key]))))
    assert tree.nbytes == 8 * (100_000 + 50)
    assert sum(node.ids.base is not None for node in tree.nodes()) == 0  # no hidden buffers
    for key in range(50):
        tree.remove(key)
    assert tree.nbytes == 0


def test_each_id_is_compared_once_however_many_branches_there_are() -> None:
    tree, base = PrefixTree(), np.arange(340_000)
    for key in range(300):
        tree.add(key, Timeline.of(np.concatenate((base[: 1_000 * (key + 1)], [10**6 + key] * 9))))
    wanted = Timeline.of(np.concatenate((base, [7] * 551)))
    tree.compared = 0
    assert len(tree.commons(wanted)) == 300
    assert tree.compared <= len(wanted)


def test_a_key_is_used_once() -> None:
    tree = PrefixTree()
    tree.add(1, Timeline.of([1]))
    with pytest.raises(ValueError, match="taken"):
        tree.add(1, Timeline.of([2]))
