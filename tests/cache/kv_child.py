"""A process that stores pages until it is killed, by itself, at a chosen system call.

    python -m tests.cache.kv_child FOLDER SEED CALL

It prints the end and number of each timeline as soon as all of it is on disk. At the CALLth call
of os.open, write, fsync, replace or unlink that it makes for them it dies as by kill -9: before
the call, or, if that is a write, in the middle of it.
"""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import IDENTITY, merge_short_pages, true_page, true_snapshot

SMALL_BYTES, LARGE_BYTES = 1 << 20, 64 << 20
STEPS = 40
CALLS = ("open", "write", "fsync", "replace", "unlink")


def timelines(seed: int) -> list[Timeline]:
    """What a child of that seed stores, in order."""
    draw = random.Random(seed)
    found = [Timeline.of(range(seed, seed + 40))]
    for _ in range(STEPS):
        trunk = draw.choice(found[-4:])
        ids = [draw.randrange(1000) for _ in range(draw.randint(20, 120))]
        found.append(trunk.prefix(draw.randint(len(trunk) // 2, len(trunk))).extended(ids))
    return found


def budget_bytes(seed: int) -> int:
    """Too small for every other seed, so that records make way."""
    return SMALL_BYTES if seed % 2 else LARGE_BYTES


def die_at(call: int) -> None:
    left = [call]

    def wrapped(name: str, true: Any) -> Any:
        def counted(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if name == "write":
                    true(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return true(*args, **more)

        return counted

    for name in CALLS:
        setattr(os, name, wrapped(name, getattr(os, name)))


def main(folder: str, seed: str, call: str) -> None:
    print("begun", flush=True)
    die_at(int(call))
    merge_short_pages(pytest.MonkeyPatch())
    tier = DiskTier(Path(folder), budget_bytes(int(seed)), IDENTITY, floor_bytes=0)
    for number, timeline in enumerate(timelines(int(seed))):
        start = tier.missing_from(timeline)
        if start < len(timeline):
            tier.put_page(timeline, start, true_page(timeline, start, len(timeline)).layers)
        snapshot = true_snapshot(timeline)
        tier.put_snapshot(timeline, snapshot.layers, "turn", snapshot.logits)
        assert tier.flush(60)
        if number % 4 == 3:
            tier.tidy()
            assert tier.tidied(60)
        print(number, flush=True)
    tier.close(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
