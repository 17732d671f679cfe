"""Records as conversations: each path is told once, and what is shared counts for all."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvconversations import as_json, named, stored_conversations
from ds4tui.cache.kventries import DiskEntry
from tests.scale import scaled


def record(holder_id: int, start: int, end: int, stem_id: int | None, **more: Any) -> DiskEntry:
    values: dict[str, Any] = {
        "kind": "page", "nbytes": 10 * (end - start), "used_at": 100.0 + holder_id,
        "created_at": 100.0, "hits": 0, "recompute_ms": 1000.0, "label": "m", "what": "",
        "point": "", "identity": b"one", "is_ours": True, "is_pinned": False, "is_anchor": False,
        "is_orphan": False, "is_written": True,
    }  # fmt: skip
    return DiskEntry(holder_id=holder_id, start=start, end=end, stem_id=stem_id, **values | more)


SYSTEM = record(1, 0, 100, None, what="you: first")
LONG = record(2, 100, 300, 1, what="you: long")
FORK = record(3, 200, 260, 2, what="you: fork")
LATE = record(4, 300, 300, 2, kind="snapshot", nbytes=7)
EARLY = record(5, 150, 150, 2, kind="snapshot", nbytes=5)


def test_a_fork_leaves_both_ends() -> None:
    fork, long = stored_conversations([SYSTEM, LONG, FORK, LATE, EARLY])
    assert (fork.what, fork.tokens, fork.pages, fork.snapshots) == ("you: fork", 260, 3, 1)
    assert (long.what, long.tokens, long.pages, long.snapshots) == ("you: long", 300, 2, 2)
    assert (fork.own_bytes, fork.shared_bytes) == (600, 3005)
    assert (long.own_bytes, long.shared_bytes) == (7, 3005)
    assert (fork.spares_s, long.spares_s) == (2.5, 2.0)  # of LONG the fork needs one half
    assert (fork.used_at, fork.leaf_id) == (105.0, 3)


def test_a_conversation_that_goes_on_is_one() -> None:
    (only,) = stored_conversations([SYSTEM, LONG])
    assert (only.tokens, only.own_bytes, only.shared_bytes) == (300, 3000, 0)
    assert stored_conversations([]) == ()


def test_what_has_lost_its_beginning_is_told() -> None:
    (only,) = stored_conversations([record(2, 100, 300, 1, is_orphan=True, is_pinned=True)])
    assert only.is_broken and only.is_pinned and only.what == ""


def test_names_are_of_the_records_and_can_be_shortened() -> None:
    found = stored_conversations([SYSTEM, LONG, FORK])
    again = stored_conversations([FORK, LONG, SYSTEM])
    assert found == again
    assert named(found, found[0].name[:7].upper()) == (found[0],)
    assert named(found, "") == () == named(found, "zz")


def test_all_of_it_is_json() -> None:
    (only,) = stored_conversations([SYSTEM, LONG, LATE])
    value = json.loads(json.dumps(as_json(only)))
    assert value["records"] == 3 and value["model_id"] == b"one".hex()[:8]
    assert "leaf_id" not in value


@st.composite
def folders(draw: st.DrawFn) -> list[DiskEntry]:
    found: list[DiskEntry] = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        stem = draw(st.sampled_from([None, *found])) if found else None
        start = draw(st.integers(stem.start + 1, stem.end)) if stem else 0
        end = start + draw(st.integers(1, 50))
        found.append(record(number, start, end, stem.holder_id if stem else None))
    return found


@settings(max_examples=scaled(60), deadline=None)
@given(folders())
def test_every_row_is_in_a_conversation_and_no_byte_is_lost(entries: list[DiskEntry]) -> None:
    found = stored_conversations(entries)
    total = sum(entry.nbytes for entry in entries)
    assert max(each.tokens for each in found) == max(entry.end for entry in entries)
    assert sum(each.own_bytes for each in found) <= total
    assert sum(each.nbytes for each in found) >= total
    assert all(0 <= each.own_bytes <= each.nbytes <= total for each in found)
    leaves = {each.leaf_id for each in found}
    for entry in entries:
        children = [e for e in entries if e.stem_id == entry.holder_id]
        is_end = not any(child.start == entry.end for child in children)
        assert (entry.holder_id in leaves) is is_end
