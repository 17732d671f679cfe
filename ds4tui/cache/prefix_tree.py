"""Many timelines, stored as the tree of their common beginnings.

Each id is held once, however many timelines share it, and how much a timeline shares with each
of hundreds takes one walk down the tree: every one of its ids is compared at most once.

  (1) The ids from the root to a node are distinct paths: no two children begin alike.
  (2) A timeline ends at a node, and so does what is before each position registered with it.
  (3) A node without timelines, positions and branching is merged away; one without children
      too: what is held is the ids of the timelines that are there, and no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ds4tui.cache.timeline import Ids, ImageSpan, Timeline, first_difference, snapped


@dataclass(slots=True, eq=False)
class Node:
    """An edge of the tree with its lower end: ids of the positions [start, end)."""

    start: int
    ids: Ids
    parent: "Node | None" = None
    children: dict[int, "Node"] = field(default_factory=dict)  # by their first id
    keys: set[int] = field(default_factory=set)  # of timelines that end here
    marks: set[int] = field(default_factory=set)  # of timelines that registered this position

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@dataclass(frozen=True, slots=True)
class Walk:
    """The nodes that a timeline runs through whole, root first; how many ids it shares with the
    tree at all; and the node that it leaves in the middle, if it does."""

    nodes: tuple[Node, ...]
    shared: int
    left_in: Node | None


class PrefixTree:
    """Timelines by their keys. `compared` counts the ids that look-ups have compared."""

    def __init__(self) -> None:
        self.root = Node(0, np.empty(0, dtype=np.int64))
        self.compared = 0
        self._ends: dict[int, Node] = {}
        self._marked: dict[int, Node] = {}
        self._spans: dict[int, tuple[ImageSpan, ...]] = {}

    @property
    def nbytes(self) -> int:
        return sum(node.ids.nbytes for node in self.nodes())

    def nodes(self) -> Iterator[Node]:
        """All of them, each after its parent."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def end_of(self, key: int) -> Node:
        return self._ends[key]

    def add(self, key: int, timeline: Timeline, mark: int | None = None) -> None:
        """Store a timeline under a new key; `mark` is a position that becomes a node's end."""
        if key in self._ends:
            raise ValueError(f"the key {key} is taken")
        end = self._grown(timeline)
        end.keys.add(key)
        self._ends[key], self._spans[key] = end, timeline.spans
        if mark is not None:
            marked = self._node_ending_at(end, mark)
            marked.marks.add(key)
            self._marked[key] = marked

    def remove(self, key: int) -> None:
        """KeyError if it is not there."""
        end = self._ends.pop(key)
        end.keys.discard(key)
        del self._spans[key]
        marked = self._marked.pop(key, None)
        self._tidy(end)
        if marked is not None:
            marked.marks.discard(key)
            self._tidy(marked)

    def timeline(self, key: int) -> Timeline:
        """The timeline of a key, in a buffer of its own. KeyError if it is not there."""
        parts: list[Ids] = []
        node: Node | None = self._ends[key]
        while node is not None:
            parts.append(node.ids)
            node = node.parent
        return Timeline.of(np.concatenate(parts[::-1]), self._spans[key])

    def walk(self, timeline: Timeline) -> Walk:
        ids, node, nodes = timeline.ids, self.root, [self.root]
        while node.end < len(ids):
            child = node.children.get(int(ids[node.end]))
            if child is None:
                break
            both = min(len(child.ids), len(ids) - child.start)
            same = first_difference(child.ids[:both], ids[child.start : child.start + both])
            self.compared += both
            if same < len(child.ids):
                return Walk(tuple(nodes), child.start + same, child)
            nodes.append(child)
            node = child
        return Walk(tuple(nodes), node.end, None)

    def commons(self, wanted: Timeline, walk: Walk | None = None) -> dict[int, int]:
        """How many ids each timeline shares with `wanted`, as Timeline.common_prefix says it;
        those that share none are left out."""
        walk = walk or self.walk(wanted)
        found: dict[int, int] = {}
        on_path = set(map(id, walk.nodes))
        for node in walk.nodes:
            self._note(found, node.keys, node.end, wanted)
            for child in node.children.values():
                if id(child) not in on_path:
                    shared = walk.shared if child is walk.left_in else node.end
                    self._note(found, _keys_below(child), shared, wanted)
        return found

    def _note(
        self, found: dict[int, int], keys: "set[int] | list[int]", shared: int, wanted: Timeline
    ) -> None:
        if not shared or not keys:
            return
        by_wanted = wanted.snapped(shared)
        for key in keys:
            spans = self._spans[key]
            # Leaving an image of one may land inside one of the other.
            common = snapped(by_wanted, spans + wanted.spans) if spans else by_wanted
            if common:
                found[key] = common

    def _grown(self, timeline: Timeline) -> Node:
        """The node at whose end `timeline` ends, made where it is missing."""
        walk = self.walk(timeline)
        node = walk.nodes[-1]
        if walk.left_in is not None:
            node = self._split(walk.left_in, walk.shared)
        rest = timeline.ids[node.end :]
        if not len(rest):
            return node
        child = Node(node.end, rest.copy(), node)
        node.children[int(rest[0])] = child
        return child

    def _node_ending_at(self, below: Node, position: int) -> Node:
        """The node on the path to `below` that ends at `position`, split off if need be."""
        node = below
        while node.start >= position and node.parent is not None:
            node = node.parent
        return node if node.end == position else self._split(node, position)

    def _split(self, node: Node, position: int) -> Node:
        """Cut `node` in two at `position`; the upper half, which is new."""
        assert node.parent is not None
        cut = position - node.start
        upper = Node(node.start, node.ids[:cut].copy(), node.parent)
        node.parent.children[int(upper.ids[0])] = upper
        # Copies: a view would hold the whole run when the other half is gone.
        node.start, node.ids, node.parent = position, node.ids[cut:].copy(), upper
        upper.children[int(node.ids[0])] = node
        return upper

    def _tidy(self, node: Node) -> None:
        """Remove or merge `node` and what above it is of no use any more."""
        while node.parent is not None and not node.keys and not node.marks:
            parent = node.parent
            if len(node.children) > 1:
                return
            if node.children:
                (child,) = node.children.values()
                child.ids = np.concatenate((node.ids, child.ids))
                child.start, child.parent = node.start, parent
                parent.children[int(child.ids[0])] = child
                return
            if parent.children.get(int(node.ids[0])) is not node:
                return  # removed before
            del parent.children[int(node.ids[0])]
            node = parent


def _keys_below(node: Node) -> list[int]:
    keys: list[int] = []
    waiting = [node]
    while waiting:
        node = waiting.pop()
        keys += node.keys
        waiting += node.children.values()
    return keys
