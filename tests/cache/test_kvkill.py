"""Kill -9 at any point: nothing that was committed is lost, nothing untrue is found."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from ds4tui.cache.kvstore import DiskTier
from tests.cache.kv_child import LARGE_BYTES, STEPS, budget_bytes, timelines
from tests.cache.kv_samples import IDENTITY, same_page, same_snapshot, true_page, true_snapshot
from tests.scale import scaled

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0

# The first calls open the folder; later ones lie in stores, each of about a dozen calls.
KILLS = [*range(1, 1 + scaled(4)), *(random.Random(n).randint(20, 600) for n in range(scaled(12)))]


def killed(folder: Path, seed: int, call: int) -> list[int]:
    """Numbers of the timelines that a child had stored when it died."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cache.kv_child", str(folder), str(seed), str(call)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, -9) and ran.stdout.startswith("begun"), ran.stderr
    assert not ran.stderr
    return [int(line) for line in ran.stdout.split()[1:]]


def check_all(tier: DiskTier, seed: int) -> None:
    """Whatever a look-up finds is true."""
    for wanted in timelines(seed):
        rows, snapshots = tier.offers(wanted)
        for held in rows:
            page = tier.read_rows(held.holder_id, held.start, held.end)
            if held.common == held.end:
                assert same_page(page, true_page(wanted, held.start, held.end))
        for found in snapshots:
            true = true_snapshot(wanted.prefix(found.position))
            assert same_snapshot(tier.read_snapshot(found.snapshot_id), true)


@pytest.mark.parametrize("call", KILLS)
def test_a_killed_writer_loses_nothing_that_it_committed(tmp_path: Path, call: int) -> None:
    """Twice in one folder: the second one finds what the first one left."""
    for number, seed in enumerate((call, call)):
        stored = killed(tmp_path / "kv", seed, call + 37 * number)
        tier = DiskTier(tmp_path / "kv", budget_bytes(seed), IDENTITY, floor_bytes=0)
        assert tier.stats.is_writer
        # In a small budget only the newest outlasts what came after.
        for one in stored if budget_bytes(seed) == LARGE_BYTES else stored[-1:]:
            timeline = timelines(seed)[one]
            assert tier.missing_from(timeline) == len(timeline)
            assert tier.has_snapshot(timeline)
        check_all(tier, seed)
        used = sum(path.stat().st_size for path in (tmp_path / "kv").iterdir())
        assert used <= budget_bytes(seed)
        assert not {"flipped", "cut", "foreign"} & dict(tier.stats.faults).keys()
        assert tier.close(WAIT_S)


def test_a_child_that_is_not_killed_stores_all(tmp_path: Path) -> None:
    """Or the test above would prove little."""
    assert len(killed(tmp_path / "kv", 5, 1_000_000)) == STEPS + 1
