"""Who clears wants nothing left: not what waits, nor what sqlite has not overwritten."""

import threading
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache import kvfile, kvkeeper
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, true_page

WAIT_S = 60.0


def texts(count: int) -> list[Timeline]:
    return [Timeline.of(range(1000 * n, 1000 * n + 300)) for n in range(1, count + 1)]


def put(tier: DiskTier, timeline: Timeline) -> bool:
    return tier.put_page(
        timeline, 0, true_page(timeline, 0, len(timeline)).layers, what="person: SECRETWORD"
    )


def test_what_waits_or_is_being_written_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    write_record = kvfile.write_record

    def slow(*args: Any) -> Any:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return write_record(*args)

    monkeypatch.setattr(kvkeeper, "write_record", slow)
    tier = DiskTier(tmp_path, 64 << 20, IDENTITY, floor_bytes=0)
    called: list[int] = []
    tier.also_clears = lambda: called.append(tier.clearings)
    for text in texts(4):
        assert put(tier, text)
    assert begun.wait(WAIT_S)
    clearing = threading.Thread(target=tier.clear)
    clearing.start()
    may_go_on.set()
    clearing.join(WAIT_S)
    assert tier.flush(WAIT_S) and called == [1]
    assert not tier.entries() and not list(tmp_path.glob("*.page"))
    assert [tier.missing_from(text) for text in texts(4)] == [0] * 4
    assert put(tier, texts(1)[0]) and tier.flush(WAIT_S) and len(tier.entries()) == 1
    tier.close(WAIT_S)


def test_nothing_of_it_can_be_read_any_more(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 64 << 20, IDENTITY, floor_bytes=0)
    for text in texts(20):
        assert put(tier, text)
    assert tier.flush(WAIT_S)
    ids = texts(3)[2].ids[:8].astype("<i8").tobytes()

    def left() -> list[str]:
        found = [(path.name, path.read_bytes()) for path in tmp_path.iterdir()]
        return [name for name, data in found if b"SECRETWORD" in data or ids in data]

    assert left()
    tier.clear()
    assert not left()
    tier.close(WAIT_S)
    assert not left()
