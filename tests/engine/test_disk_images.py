"""Images in a prefix that comes from disk are not encoded again: their rows are there."""

import hashlib
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.disk_store import Storing
from ds4tui.engine.session import Session
from ds4tui.engine.vision.layout import ImageBlock, row_ids
from ds4tui.engine.vision.projectors import Vectors
from tests.engine.disk_rigs import make_pages_short
from tests.engine.histories import PLENTY, drain
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer

ROWS, TOKEN = 9, 7


class Pictures:
    """Knows every picture and counts whose vectors are asked for."""

    def __init__(self) -> None:
        self.encoded: list[bytes] = []

    def block(self, span: ImageSpan) -> ImageBlock:
        return block_of(span.rows)

    def vectors(self, span: ImageSpan) -> Vectors:
        self.encoded.append(span.fingerprint)
        return Vectors(mx.zeros((span.rows, 4)))


def block_of(rows: int) -> ImageBlock:
    return ImageBlock((TOKEN,) * rows, np.ones(rows, bool), rows)


def with_picture(before: Timeline, name: str, behind: int) -> Timeline:
    mark = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    ids = row_ids(mark, ROWS).tolist()
    seen = before.extended(ids, (block_of(ROWS).span(len(before), mark),))
    return seen.extended([i % 40 for i in range(behind)])


@pytest.mark.parametrize("kind", [FakeLayer, RecurrentLayer])
def test_pictures_of_a_loaded_prefix_are_not_encoded(
    kind: type[FakeLayer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pages_short(monkeypatch)
    base = Timeline.of([i % 40 for i in range(20)])
    one = with_picture(base, "one", 15)
    two = with_picture(with_picture(one, "two", 12), "one", 5)
    pictures: list[Pictures] = []

    def logits_of(wanted: Timeline, kind_of_plan: PlanKind, folder: str = "kv") -> np.ndarray:
        """In a process of its own, as it were; all of it is stored then."""
        pictures.append(Pictures())
        memory = MemoryTier(PLENTY)
        disk = DiskTier(tmp_path / folder, 64 << 20, b"fake", floor_bytes=0)
        model = FakeModel(vocab_size=40, layer_types=(FakeLayer, kind))
        session = Session(model, (8, 4, 2), None, memory, 1, disk, pictures[-1])
        storing = Storing(disk, memory, [session])
        plan = session.plan(wanted)
        assert plan.kind is kind_of_plan
        logits = drain(session.sync(wanted, plan)).logits
        storing.stepped(session, 1.0, is_prefilled=True, is_over=True)
        while storing.is_pending:
            storing.idle()
        assert disk.close(30.0) and not storing.failed
        return logits

    def marks(pictures: Pictures) -> int:
        return len(pictures.encoded)

    cold = logits_of(one, PlanKind.COLD)
    assert marks(pictures[-1]) == 1, "or this test would prove nothing"
    longer = one.extended([3])
    assert not np.array_equal(logits_of(longer, PlanKind.LOAD), cold)
    assert marks(pictures[-1]) == 0
    assert np.array_equal(logits_of(longer, PlanKind.LOAD), logits_of(longer, PlanKind.COLD, "b"))
    logits_of(two, PlanKind.LOAD)
    assert pictures[-1].encoded == [two.spans[1].fingerprint, two.spans[2].fingerprint]
    logits_of(two.extended([3, 4]), PlanKind.LOAD)
    assert marks(pictures[-1]) == 0
