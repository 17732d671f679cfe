"""What the engine's stats tell of the disk: conversations, what is written, what others change."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.engine import disk_store
from ds4tui.engine.stats import EngineStats
from tests.engine.disk_rigs import Desk, opened_rig
from tests.engine.test_worker import Bench

PROMPT = [9 + n % 200 for n in range(300)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(800, disk=DiskTier(tmp_path / "kv", 64 << 20, b"fake", label="fake"))
    yield bench
    bench.engine.close()


def told(bench: Bench, holds: Callable[[EngineStats], bool]) -> EngineStats:
    until = time.monotonic() + 20
    while not holds(bench.engine.stats):
        assert time.monotonic() < until, bench.engine.stats
        time.sleep(0.002)
    return bench.engine.stats


def test_what_is_stored_is_told_as_conversations(bench: Bench) -> None:
    assert bench.engine.disk is not None and bench.engine.stats.conversations == ()
    bench.reply_with(b"yes", PROMPT)
    bench.run(PROMPT)
    stats = told(bench, lambda stats: not stats.is_storing)
    (found,) = stats.conversations
    assert (found.tokens, stats.conversation_count) == (303, 1)
    assert found.is_ours and found.what.startswith("person: ")
    assert stats.disk is not None and stats.disk.queued_bytes == 0 and stats.disk.stores > 0
    missed, *stored = [note.text for note in stats.notes]
    assert missed == "disk: missed 300 tokens: nothing of this prompt is stored"
    assert "a turn has ended" in stored[-1] and stored[-1].startswith("disk: stored ")


def test_what_others_change_is_told_while_nothing_is_at_work(bench: Bench) -> None:
    bench.reply_with(b"yes", PROMPT)
    bench.run(PROMPT)
    (found,) = told(bench, lambda stats: not stats.is_storing).conversations
    disk = bench.engine.disk
    assert disk is not None
    disk.pin(found.leaf_id)
    stats = told(bench, lambda stats: stats.disk is not None and stats.disk.pinned == 1)
    assert stats.conversations[0].is_pinned
    disk.clear(pinned=True)
    told(bench, lambda stats: stats.conversation_count == 0)


def test_a_session_tells_what_its_rows_are_of(bench: Bench) -> None:
    bench.reply_with(b"yes", PROMPT)
    bench.run(PROMPT)
    (session,) = bench.engine.stats.sessions
    assert [(run.kind, run.start, run.end) for run in session.layout] == [("text", 0, 303)]
    assert session.snapshots_at == () and session.snapshots == 0


def test_what_was_cleared_is_not_stored_again_before_it_is_used(
    bench: Bench, tmp_path: Path
) -> None:
    other = [11 + n % 190 for n in range(280)]
    for prompt in (PROMPT, other):  # the first one is parked then
        bench.reply_with(b"yes", prompt)
        bench.run(prompt)
        told(bench, lambda stats: not stats.is_storing)
    disk = bench.engine.disk
    assert disk is not None and disk.stats.tokens > 500
    disk.clear()
    told(bench, lambda stats: stats.conversation_count == 0)
    third = [13 + n % 180 for n in range(270)]
    bench.reply_with(b"yes", third)
    bench.run(third)
    told(bench, lambda stats: not stats.is_storing and stats.conversation_count > 0)
    assert disk.stats.tokens == 273  # in one page or in two: a slow reply is stored as it comes
    longer = [*PROMPT, *range(20, 60)]
    bench.reply_with(b"no", longer)
    bench.run(longer)
    told(bench, lambda stats: not stats.is_storing and stats.conversation_count > 1)
    bench.engine.close()
    disk = DiskTier(tmp_path / "kv", 64 << 20, b"fake")
    assert disk.stats.tokens == 273 + 342
    disk.close(10.0)


def test_storing_takes_its_share_of_a_step_and_not_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk.of(opened_rig("fake-rows"), "fake-rows", tmp_path)
    now, pieces = [0.0], [0]

    def one(wait_s: float) -> bool:
        now[0] += 0.0005
        pieces[0] += 1
        return True

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(desk.storing, "_one", one)
    for _ in range(40):
        desk.storing.stepped(desk.session, 0.1, is_prefilled=True, is_over=False)
    assert 0.9 <= now[0] / (40 * 0.1) / disk_store.SHARE <= 1.1
    assert disk_store.SHARE <= 0.02  # that is what decoding may be delayed by
    monkeypatch.undo()
    desk.disk.close(10.0)
