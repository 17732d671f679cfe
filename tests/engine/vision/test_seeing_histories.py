"""Random histories with pictures, on a tiny model of each family that sees: kept rows to the bit,
positions as a row-by-row count has them, logits those of a cold run; around restarts, too."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import Timeline
from ds4tui.engine import disk_store
from ds4tui.engine.disk_store import Storing
from ds4tui.engine.models.registry import FAMILIES as READ
from ds4tui.engine.session import Session
from ds4tui.engine.vision import rows as seen_rows
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.layout import row_ids
from tests.engine.histories import PLENTY, Judge, Operation, drain, every_kind, histories
from tests.engine.test_disk_histories import DiskJudge, ends_of
from tests.engine.vision.seeing import SeeingRig, counted
from tests.golden.files import families, row
from tests.scale import scaled

FAMILIES = [
    name for name in families() if row(name)["vision"] and row(name)["architecture"] in READ
]
QUIET = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module", params=FAMILIES)
def rig(request: pytest.FixtureRequest) -> SeeingRig:
    return SeeingRig(request.param)


@pytest.fixture
def short_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "MIN_TOKENS", 2)
    monkeypatch.setattr(disk_store, "SNAPSHOT_SPACING", 12)
    monkeypatch.setattr(disk_store, "PAGE_POSITIONS_MAX", 7)


def test_four_families_see() -> None:
    assert {"idefics3", "gemma3v", "qwen3vl", "qwen35v"} <= set(FAMILIES)


@given(history=histories, budget_bytes=st.sampled_from([PLENTY, PLENTY, 100_000]))
@settings(QUIET, max_examples=scaled(6))
def test_random_histories(rig: SeeingRig, history: list[Operation], budget_bytes: int) -> None:
    Judge(rig, sessions=2, budget_bytes=budget_bytes).play(history)


def test_one_of_every_kind(rig: SeeingRig) -> None:
    for place, history in enumerate(every_kind()):
        if place % 4 == 1:
            Judge(rig, sessions=1 + place % 2).play(history)


@pytest.mark.usefixtures("short_conversations")
@given(history=histories, ends=ends_of)
@settings(QUIET, max_examples=scaled(4))
def test_random_histories_around_restarts(
    rig: SeeingRig,
    history: list[Operation],
    ends: dict[int, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    DiskJudge(rig, tmp_path_factory.mktemp("kv"), ends, 1 + len(history) % 2).play(history)


def image(rig: SeeingRig, number: int) -> list[int]:
    shown = rig.pictures[number]
    return row_ids(shown.fingerprint, shown.block.rows).tolist()


def text(words: str) -> list[int]:
    return list(words.encode())


@pytest.mark.usefixtures("short_conversations")
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_stored_prefix_comes_back_and_encodes_none_of_its_images(
    rig: SeeingRig, how: str, tmp_path: Path
) -> None:
    prompt = text("look ") + image(rig, 0) + text(" and ") + image(rig, 1) + text(" so?")
    more = [*prompt, *text(" and "), *image(rig, 1), *text("!")]
    session, disk, storing = _opened(rig, tmp_path)
    first = drain(session.sync(rig.timeline(prompt))).logits
    session.end_turn()
    storing.stepped(session, 0.0, is_prefilled=True, is_over=True)
    while storing.is_pending:
        storing.idle()
    if how == "stop":
        storing.finish(5.0)
    assert disk.flush(10.0)
    disk.close(5.0)
    with counted(rig) as images:
        session, disk, storing = _opened(rig, tmp_path)
        plan = session.plan(rig.timeline(prompt))
        assert plan.kind is PlanKind.LOAD and "disk" in plan.source
        if rig.truncates:
            assert plan.kept == len(prompt) - 1
        assert plan.kept >= rig.timeline(prompt).spans[-1].end
        again = drain(session.sync(rig.timeline(prompt), plan)).logits
        assert images.encoded == 0  # its rows are there
        np.testing.assert_allclose(again, first, atol=rig.tolerance)
        grown = drain(session.sync(rig.timeline(more))).logits
        assert images.encoded == 1
        np.testing.assert_allclose(grown, rig.cold_logits(more), atol=rig.tolerance)
    disk.close(5.0)


def _opened(rig: SeeingRig, folder: Path) -> tuple[Session, DiskTier, Storing]:
    memory = MemoryTier(PLENTY)
    disk = DiskTier(folder / "kv", 4 << 20, b"one", floor_bytes=0)
    session = rig.session(memory)
    session._disk = disk
    return session, disk, Storing(disk, memory, [session])


def test_an_early_image_that_is_replaced_or_dropped_keeps_what_is_before_it(
    rig: SeeingRig,
) -> None:
    before, behind = text("a long beginning, "), [*text(" then "), *image(rig, 1), *text(" end")]
    for changed in ([*before, *image(rig, 2), *behind], [*before, *behind]):
        session = rig.session(MemoryTier(PLENTY))
        drain(session.sync(rig.timeline([*before, *image(rig, 0), *behind])))
        plan = session.plan(rig.timeline(changed))
        common = rig.timeline(changed).common_prefix(session.timeline)
        assert plan.common == common >= len(before)
        assert plan.images in ("changed", "removed")
        if rig.truncates:
            assert plan.kept == common
        logits = drain(session.sync(rig.timeline(changed), plan)).logits
        np.testing.assert_allclose(logits, rig.cold_logits(changed), atol=rig.tolerance)


# -- the judges' own tests: faults that must not go unseen ------------------------------------


def seen_by_the_judge(rig: SeeingRig) -> bool:
    """Whether one of the long histories turns red."""
    try:
        for history in every_kind():
            Judge(rig).play(history)
    except (AssertionError, ValueError):
        return True
    return False


def test_positions_that_forget_earlier_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_rows, "_moved", lambda spans, images: 0)
    assert seen_by_the_judge(SeeingRig("qwen3vl"))


def test_vectors_of_another_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    right = HeldImages.vectors

    def swapped(self: Any, span: Any) -> Any:
        spans = [p.block.span(0, p.fingerprint) for p in rig.pictures]
        names = [p.fingerprint for p in rig.pictures]
        place = names.index(span.fingerprint)
        same = [s for s in spans if s.rows == span.rows]
        return right(self, same[-1] if self is rig.images else spans[place])

    rig = SeeingRig("idefics3")
    monkeypatch.setattr(HeldImages, "vectors", swapped)
    assert seen_by_the_judge(rig)


def test_a_prefix_that_cuts_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Timeline, other: Timeline) -> int:
        both = min(len(self), len(other))
        differs = self.ids[:both] != other.ids[:both]
        return int(differs.argmax()) if differs.any() else both

    monkeypatch.setattr(Timeline, "common_prefix", cut)
    monkeypatch.setattr(Timeline, "snapped", lambda self, position: position)
    assert seen_by_the_judge(SeeingRig("idefics3"))


def test_rows_that_do_not_see_their_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    right = seen_rows._vectors

    def blind(start: int, end: int, *more: Any) -> Any:
        given = right(start, end, *more)
        if start:  # never so in a cold run
            object.__setattr__(given, "sight", None)
        return given

    monkeypatch.setattr(seen_rows, "_vectors", blind)
    assert seen_by_the_judge(SeeingRig("gemma3v"))
