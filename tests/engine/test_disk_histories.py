"""Random histories of sessions with a disk tier beside them, stopped and killed now and then:
what is resident is right after any mix of stores, evictions, restarts and loads, kept rows are
those that once were computed, to the bit, and logits are those of a cold run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds4tui.cache.kvfile import read_head
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import Timeline
from ds4tui.engine import disk_store
from ds4tui.engine.disk_store import Storing
from ds4tui.errors import LostRecord
from tests.engine.histories import PLENTY, FakeRig, Judge, Operation, drain, every_kind, histories
from tests.engine.test_session_real import FAMILIES, FamilyRig
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer
from tests.scale import scaled

KINDS = [(FakeLayer, FakeLayer), (FakeLayer, WindowLayer), (FakeLayer, RecurrentLayer)]
BUDGET_BYTES = 4 << 20


class DiskJudge(Judge):
    """A Judge whose sessions have a disk. `ends` are (after how many operations, how): "stop"
    stores the rest, "kill" leaves what waits unwritten, "cut" damages a file besides."""

    def __init__(
        self,
        rig: Any,
        folder: Path,
        ends: dict[int, str],
        sessions: int = 1,
        budget_bytes: int = PLENTY,
        disk_bytes: int = BUDGET_BYTES,
    ) -> None:
        super().__init__(rig, sessions, budget_bytes)
        self.folder, self.ends, self.count, self.disk_bytes = folder, ends, sessions, disk_bytes
        self.budget, self.done, self.loads = budget_bytes, 0, 0
        self.is_complete = False
        self._attach()

    def _attach(self) -> None:
        self.disk = DiskTier(self.folder, self.disk_bytes, b"one", floor_bytes=0)
        for session in self.sessions:
            session._disk = self.disk
        self.storing = Storing(self.disk, self.memory, self.sessions)

    def play(self, history: list[Operation]) -> None:
        for operation in history:
            self.ends_now()
            try:
                super().play([operation])
            except LostRecord:
                self.examine()
            self.done += 1
            self.loads += self.was_load
            for session in self.sessions:
                over = operation.seed % 3 == 0
                self.storing.stepped(session, 1.0, is_prefilled=True, is_over=over)
            while self.storing.is_pending:
                self.storing.idle()
            assert not self.storing.failed
        self.disk.close(10.0)

    def ends_now(self) -> None:
        how = self.ends.get(self.done)
        if how is None:
            return
        if how == "stop":
            self.storing.finish(10.0)
            assert self.disk.close(10.0) and not self.storing.failed
        else:
            self.disk.flush(0.05)
            self.disk.close(0.0)
        if how == "cut":
            for path in sorted(self.folder.glob("*.page"))[:2]:
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(bytes(data))
        self.memory = MemoryTier(self.budget)
        self.sessions = [self.rig.session(self.memory, n + 1) for n in range(self.count)]
        for session in self.sessions:
            session.neighbours = tuple(s for s in self.sessions if s is not session)
        self.session = self.sessions[0]
        self._seen.clear()
        self._attach()

    @property
    def was_load(self) -> bool:
        return self.disk.stats.hits > 0


@pytest.fixture(autouse=True)
def short_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "MIN_TOKENS", 2)
    monkeypatch.setattr(disk_store, "SNAPSHOT_SPACING", 12)
    monkeypatch.setattr(disk_store, "PAGE_POSITIONS_MAX", 7)


ends_of = st.dictionaries(
    st.integers(1, 12), st.sampled_from(["stop", "kill", "cut"]), min_size=1, max_size=4
)


@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: kinds[1].__name__)
@given(
    history=histories,
    ends=ends_of,
    budget_bytes=st.sampled_from([PLENTY, 3_000, 0]),
    disk_bytes=st.sampled_from([BUDGET_BYTES, 300_000]),
    sessions=st.integers(1, 2),
)
@settings(
    max_examples=scaled(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_histories(
    kinds: Any,
    history: list[Operation],
    ends: dict[int, str],
    budget_bytes: int,
    disk_bytes: int,
    sessions: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("kv")
    rig = FakeRig(layer_types=kinds)
    DiskJudge(rig, folder, ends, sessions, budget_bytes, disk_bytes).play(history)


@pytest.fixture(scope="module", params=FAMILIES)
def rig(request: pytest.FixtureRequest) -> Iterator[FamilyRig]:
    yield FamilyRig(request.param)


def test_every_kind_of_operation_around_restarts(rig: FamilyRig, tmp_path: Path) -> None:
    loads = 0
    for place, history in enumerate(every_kind()):
        if place % 7 == 0:
            ends = {place % 5 + 1: "stop", place % 5 + 3: "kill", place % 5 + 4: "stop"}
            judge = DiskJudge(rig, tmp_path / f"{place}", ends, 1 + place % 2)
            judge.play(history)
            loads += judge.loads
    assert loads


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_stored_conversation_goes_on_as_if_never_stopped(
    rig: FamilyRig, how: str, tmp_path: Path
) -> None:
    """Greedy tokens after a restart are those of a run without one."""
    random = np.random.default_rng(5)
    prompt = random.integers(0, rig.vocab_size, 60).tolist()

    def greedy(session: Any, ids: list[int], count: int) -> list[int]:
        logits = drain(session.sync(Timeline.of(ids)), 8).logits
        sampled = [int(np.argmax(logits))]
        for _ in range(count - 1):
            sampled.append(int(np.argmax(session.append(sampled[-1]))))
        session.end_turn()
        return sampled

    whole = rig.session(MemoryTier(PLENTY))
    first = greedy(whole, prompt, 6)
    second = greedy(whole, [*prompt, *first, 3, 1, 2], 8)

    def opened() -> tuple[Any, DiskTier, Storing]:
        memory = MemoryTier(PLENTY)
        disk = DiskTier(tmp_path / "kv", BUDGET_BYTES, b"one", floor_bytes=0)
        session = rig.session(memory)
        session._disk = disk
        return session, disk, Storing(disk, memory, [session])

    session, disk, storing = opened()
    assert greedy(session, prompt, 6) == first
    storing.stepped(session, 0.0, is_prefilled=True, is_over=True)
    while storing.is_pending:
        storing.idle()
    assert disk.flush(10.0)
    if how == "stop":
        storing.finish(5.0)
    disk.close(5.0)
    session, disk, storing = opened()
    wanted = Timeline.of([*prompt, *first, 3, 1, 2])
    plan = session.plan(wanted)
    assert plan.kind is PlanKind.LOAD and plan.kept == 65 and "disk" in plan.source
    assert greedy(session, wanted.ids.tolist(), 8) == second
    stored = disk.stats
    storing.stepped(session, 0.0, is_prefilled=True, is_over=True)
    while storing.is_pending:
        storing.idle()
    assert disk.flush(10.0)
    pages = [e for e in disk.entries() if e.kind == "page"]
    assert sum(e.end - e.start for e in pages) == len(session.timeline), "rows are stored once"
    assert stored.faults == ()
    disk.close(5.0)


def test_a_damaged_page_is_a_miss_and_planned_anew(tmp_path: Path) -> None:
    rig = FakeRig()
    judge = DiskJudge(rig, tmp_path / "kv", {})
    ids = [i % 40 for i in range(30)]
    drain(judge.session.sync(Timeline.of(ids)))
    judge.storing.stepped(judge.session, 0.0, is_prefilled=True, is_over=True)
    while judge.storing.is_pending:
        judge.storing.idle()
    judge.ends, judge.done = {0: "cut"}, 0
    assert judge.disk.flush(10.0)
    judge.ends_now()
    wanted = Timeline.of([*ids, 5])
    for _ in range(8):
        try:
            prefill = judge.session.sync(wanted)
            break
        except LostRecord:
            assert not len(judge.session.timeline)
    logits = drain(prefill).logits
    assert np.array_equal(logits, rig.cold_logits([*ids, 5]))
    assert ("flipped", 1) in judge.disk.stats.faults or judge.disk.stats.faults
    judge.disk.close(5.0)


@pytest.mark.parametrize(
    ("kind", "sound"), [(FakeLayer, 34), (WindowLayer, 20), (RecurrentLayer, 20)]
)
def test_a_damaged_page_behind_live_rows_costs_what_is_behind_it_only(
    kind: Any, sound: int, tmp_path: Path
) -> None:
    """The live state has 20 rows of a conversation of which 48 are on disk."""
    rig = FakeRig(layer_types=(FakeLayer, kind))
    ids = [i % 40 for i in range(48)]
    judge = DiskJudge(rig, tmp_path / "kv", {})
    for end in (20, 48):
        drain(judge.session.sync(Timeline.of(ids[:end])))
        judge.storing.stepped(judge.session, 0.0, is_prefilled=True, is_over=True)
        while judge.storing.is_pending:
            judge.storing.idle()
    assert judge.disk.flush(10.0)
    judge.ends, judge.done = {0: "stop"}, 0
    judge.ends_now()
    session = judge.session
    drain(session.sync(Timeline.of(ids[:20])))
    page = next(e for e in judge.disk.entries() if e.kind == "page" and e.start == 34)
    path = next(p for p in (tmp_path / "kv").glob("*.page") if is_page_from(p, page.start))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    wanted = Timeline.of([*ids, 5])
    plan = session.plan(wanted)
    assert plan.base == "live" and plan.kept == 48
    with pytest.raises(LostRecord):
        session.sync(wanted, plan)
    assert session.timeline == wanted.prefix(sound)
    again = session.plan(wanted)
    logits = drain(session.sync(wanted, again)).logits
    assert again.base == "live"
    assert np.array_equal(logits, rig.cold_logits([*ids, 5]))
    judge.examine()
    judge.disk.close(5.0)


def is_page_from(path: Path, start: int) -> bool:
    return read_head(path)[0].start == start
