"""What each thing in the memory tier is worth and leans on, from where it stands in the tree.

Rows are counted once: those of a position that several hold are credited to one holder, the one
with the most rows, so a copy adds nothing to what is lost when it goes. Rows that a live state
holds are credited to nobody. What leans on rows leans on the holder that has the credit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ds4tui.cache.prefix_tree import Node, PrefixTree


class Surveyed(Protocol):
    """What a survey needs to know of an entry. Rows are [start, end); a snapshot has none and
    stands at `start`. "lent" are the rows of a state that was taken a moment ago."""

    @property
    def kind(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """`tokens` would have to be evaluated again if it were gone; `stems` are the holders without
    which it would be of no use; an orphan is of none already: from some gap on as many rows
    are nowhere as are held, or more. A smaller gap is closed by the next prompt that ends in it."""

    tokens: int
    stems: frozenset[int]
    is_orphan: bool


@dataclass(frozen=True, slots=True)
class _Link:
    """A holder that has the credit from `start` on, with those before it on the path."""

    start: int
    holder: int
    before: "_Link | None"


@dataclass(frozen=True, slots=True)
class _Path:
    """What is known of the way from the root to a node."""

    # By how much the rows that nobody covers outnumber those that are, from some gap on: of the
    # gap where it is most, so that to cover more makes no orphan. None if there is no gap.
    lack: int | None = None
    link: _Link | None = None
    snapshot: int = 0  # the last snapshot's position


def survey(
    tree: PrefixTree, entries: Mapping[int, Surveyed], live_rows: Mapping[int, int]
) -> dict[int, Standing]:
    """Of all entries. `live_rows` says by the id (Python's) of a node how many of its rows, from
    its start on, a live state holds."""
    nodes = list(tree.nodes())
    credit = _credits(nodes, entries)
    tokens = dict.fromkeys(entries, 0)
    paths: dict[int, _Path] = {}
    found: dict[int, Standing] = {}
    for node in nodes:
        before = paths[id(node.parent)] if node.parent is not None else _Path()
        holder = credit.get(id(node))
        live = live_rows.get(id(node), 0)
        if holder is not None:
            tokens[holder] += len(node.ids) - live
        path = _step(before, node, holder, live)
        snapshots = [key for key in node.keys if entries[key].kind == "snapshot"]
        for key in snapshots:
            tokens[key] = node.end - path.snapshot
        if snapshots:
            path = replace(path, snapshot=node.end)
        paths[id(node)] = path
    for key, entry in entries.items():
        path = paths[id(tree.end_of(key))]
        is_orphan = path.lack is not None and path.lack >= 0
        stems = _stems(path.link, entry.start)
        found[key] = Standing(tokens[key], stems - {key}, is_orphan)
    return found


def _credits(nodes: list[Node], entries: Mapping[int, Surveyed]) -> dict[int, int]:
    """Who has the credit of each node's rows; a node is wholly covered by a holder or not at
    all, since holders' starts and ends are nodes' ends."""
    best: dict[int, list[int]] = {}  # holders of each node's rows
    credit: dict[int, int] = {}
    for node in reversed(nodes):  # children before parents
        holders = [key for key in node.keys if entries[key].kind != "snapshot"]
        for child in node.children.values():
            holders += best.pop(id(child), ())
        covering = [key for key in holders if entries[key].start <= node.start]
        if covering and len(node.ids):
            credit[id(node)] = max(covering, key=lambda k: _claim(entries[k], k))
        best[id(node)] = covering
    return credit


def _claim(entry: Surveyed, key: int) -> tuple[bool, int, int]:
    # Lent rows come last: what is really here must not look superfluous.
    return (entry.kind != "lent", entry.end - entry.start, -key)


def _step(before: _Path, node: Node, holder: int | None, live: int) -> _Path:
    covered = live if holder is None else len(node.ids)
    missing = len(node.ids) - covered
    lack = before.lack if before.lack is None else before.lack - covered
    if missing:
        lack = max(0, lack or 0) + missing
    link = before.link
    if holder is not None and live < len(node.ids) and (link is None or link.holder != holder):
        link = _Link(node.start, holder, link)
    return replace(before, lack=lack, link=link)


def _stems(link: _Link | None, start: int) -> frozenset[int]:
    stems = set()
    while link is not None:
        if link.start < start:
            stems.add(link.holder)
        link = link.before
    return frozenset(stems)
