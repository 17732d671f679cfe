"""Look-ups in random folders: nothing untrue is found, and what is there is found.

Histories of stores, damage, removals, restarts and clock jumps, in a budget that is too small for
them. DS4TUI_TEST_SCALE makes them longer.
"""

import errno
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvformat import CorruptRecord
from ds4tui.cache.kvindex import GROWTH_BYTES, INDEX_NAME
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import ImageSpan, Timeline
from tests.cache.kv_samples import (
    IDENTITY,
    LAYERS,
    merge_short_pages,
    same_rows,
    same_snapshot,
    true_page,
    true_snapshot,
)
from tests.scale import scaled

WAIT_S = 60.0
ROOM = GROWTH_BYTES + (96 << 10)


def drawn_timelines(draw: random.Random) -> list[Timeline]:
    """Branches of branches of one conversation, with images here and there."""
    timelines = [Timeline.empty()]
    for _ in range(12):
        trunk = draw.choice(timelines)
        timeline = trunk.prefix(trunk.snapped(draw.randint(0, len(trunk))))
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 0.3:
                rows, name = draw.randint(2, 30), draw.randint(1, 3)
                image = ImageSpan(len(timeline), rows, bytes([name]) * 16, (7,) * rows)
                ids = [-(100 * name + row + 1) for row in range(rows)]
                timeline = timeline.extended(ids, (image,))
            else:
                timeline = timeline.extended(
                    [draw.randint(0, 5) for _ in range(draw.randint(1, 90))]
                )
        timelines.append(timeline)
    return timelines[1:]


class History:
    """A tier in a folder of its own, and everything that happens to it."""

    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.draw, self.folder, self.patch = random.Random(seed), folder, patch
        self.timelines = drawn_timelines(self.draw)
        self.now = 1e9
        self.tier = self.open()

    def open(self) -> DiskTier:
        budget = ROOM + self.draw.choice([0, 100_000])
        return DiskTier(self.folder / "kv", budget, IDENTITY, floor_bytes=0, clock=lambda: self.now)

    def step(self) -> None:
        wanted = self.draw.choice(self.timelines)
        steps: list[Callable[[Timeline], None]] = [self.store] * 6 + [self.snapshot] * 3
        steps += [self.look] * 3 + [self.restart, self.damage, self.remove, self.jump]
        steps += [self.lose_index, self.refuse, self.cut_head] + [self.tidy] * 2
        self.draw.choice(steps)(wanted)
        self.check(self.draw.choice(self.timelines))

    def store(self, wanted: Timeline) -> None:
        end = wanted.snapped(self.draw.randint(1, len(wanted)))
        start = self.tier.missing_from(wanted.prefix(end))
        if start < end:
            self.tier.put_page(wanted.prefix(end), start, true_page(wanted, start, end).layers)
        if self.draw.random() < 0.7:
            self.settle()

    def snapshot(self, wanted: Timeline) -> None:
        prefix = wanted.prefix(self.tier.missing_from(wanted))
        snapshot = true_snapshot(prefix)
        self.tier.put_snapshot(prefix, snapshot.layers, "turn", snapshot.logits)
        self.settle()

    def look(self, wanted: Timeline) -> None:
        self.now += self.draw.random() * 1e5

    def restart(self, wanted: Timeline) -> None:
        self.tier.close(WAIT_S)
        self.tier = self.open()

    def damage(self, wanted: Timeline) -> None:
        path = self.some_file()
        if path is not None:
            good = bytearray(path.read_bytes())
            good[self.draw.randrange(len(good))] ^= 1 << self.draw.randrange(8)
            path.write_bytes(good[: self.draw.choice([len(good), self.draw.randrange(len(good))])])

    def cut_head(self, wanted: Timeline) -> None:
        self.damage(wanted)
        self.restart(wanted)

    def remove(self, wanted: Timeline) -> None:
        path = self.some_file()
        if path is not None:
            path.unlink()

    def jump(self, wanted: Timeline) -> None:
        self.now += self.draw.choice([-1e9, -1e5, 1e7])

    def tidy(self, wanted: Timeline) -> None:
        written, merged = self.tier.stats.stored_bytes, self.tier.stats.merged_bytes
        self.settle()
        self.tier.tidy()
        assert self.tier.tidied(WAIT_S)
        assert self.tier.stats.stored_bytes >= written and self.tier.stats.merged_bytes >= merged

    def lose_index(self, wanted: Timeline) -> None:
        self.tier.close(WAIT_S)
        (self.folder / "kv" / INDEX_NAME).unlink(missing_ok=True)
        self.tier = self.open()

    def refuse(self, wanted: Timeline) -> None:
        """The system refuses one call, whatever it is for."""
        code = self.draw.choice([errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
        name = self.draw.choice(["write", "fsync", "replace", "open", "unlink", "readv"])
        true, left = getattr(os, name), [self.draw.randint(0, 3)]

        def once(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(code, os.strerror(code))
            return true(*args, **more)

        self.settle()
        with self.patch.context() as patched:
            patched.setattr(os, name, once)
            self.store(wanted)
            self.check(wanted)
            self.settle()

    def settle(self) -> None:
        assert self.tier.flush(WAIT_S)

    def some_file(self) -> Path | None:
        self.settle()
        paths = sorted(
            p for p in (self.folder / "kv").iterdir() if p.suffix in (".page", ".snapshot")
        )
        return self.draw.choice(paths) if paths else None

    def check(self, wanted: Timeline) -> None:
        """Whatever is offered and read is true; how much is on disk is within the budget."""
        rows, snapshots = self.tier.offers(wanted)
        reach = 0
        for held in rows:
            assert held.start <= reach < held.reach or held.reach <= reach
            reach = max(reach, held.reach)
            self.check_rows(wanted, held.holder_id, held.start, held.reach)
        for found in snapshots:
            assert 0 < found.position <= reach
            try:
                snapshot = self.tier.read_snapshot(found.snapshot_id)
            except CorruptRecord:
                continue
            assert same_snapshot(snapshot, true_snapshot(wanted.prefix(found.position)))
        self.settle()  # or names would change while they are counted
        used = sum(path.stat().st_size for path in (self.folder / "kv").iterdir())
        assert used <= self.tier.stats.budget_bytes

    def check_rows(self, wanted: Timeline, holder: int, start: int, end: int) -> None:
        try:
            page = self.tier.read_rows(holder, start, end)
        except CorruptRecord:
            again = [held.holder_id for held in self.tier.offers(wanted)[0]]
            assert holder not in again  # a miss, and then planned anew
            return
        true = true_page(wanted, start, end)
        for layer in range(LAYERS):
            assert same_rows(page.rows(layer, start, end), true.layers[layer])


@given(st.integers(0, 1 << 32))
@settings(max_examples=scaled(25))
def test_no_history_gives_untrue_rows_or_breaks_the_budget(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        merge_short_pages(patch)
        history = History(seed, Path(folder), patch)
        for _ in range(25):
            history.step()
        history.tier.close(WAIT_S)


@given(st.integers(0, 1 << 32))
@example(seed=460)  # a picture in two heights: the rows of one are within the other
@settings(max_examples=scaled(25))
def test_all_that_was_stored_is_found(seed: int) -> None:
    """With room enough, any mix of pages, forks and restarts leaves nothing missing."""
    draw = random.Random(seed)
    timelines = drawn_timelines(draw)
    ends: dict[int, int] = {}
    stored = merged = 0
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        merge_short_pages(patch)
        tier = DiskTier(Path(folder), 64 << 20, IDENTITY, floor_bytes=0)
        for _ in range(20):
            which = draw.randrange(len(timelines))
            wanted = timelines[which]
            end = wanted.snapped(draw.randint(1, len(wanted)))
            start = tier.missing_from(wanted.prefix(end))
            if start < end:
                assert tier.put_page(
                    wanted.prefix(end), start, true_page(wanted, start, end).layers
                )
            ends[which] = max(end, ends.get(which, 0))
            if draw.random() < 0.3:
                tier.tidy()
                assert tier.flush(WAIT_S) and tier.tidied(WAIT_S)
            if draw.random() < 0.2:
                assert tier.close(WAIT_S)
                stored += tier.stats.stored_bytes
                merged += tier.stats.merged_bytes
                tier = DiskTier(Path(folder), 64 << 20, IDENTITY, floor_bytes=0)
            assert all(tier.missing_from(timelines[i]) >= end for i, end in ends.items())
        assert tier.close(WAIT_S)
        assert not tier.stats.faults
        # A larger page has one head and one padding, so it takes less than what it replaces.
        assert merged + tier.stats.merged_bytes <= stored + tier.stats.stored_bytes
