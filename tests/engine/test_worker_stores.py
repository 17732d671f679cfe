"""An engine with a disk: what goes there when, and what a job gets from it, damaged or not."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache import kvkeeper
from ds4tui.cache.foreseen import Foreseen
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine import disk_store, jobs, pool, worker
from ds4tui.engine.disk_store import MIN_TOKENS, Storing
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import GenerateRequest, SamplingParams
from ds4tui.engine.stats import EngineStats
from ds4tui.engine.worker import Engine
from ds4tui.errors import ContextOverflow, EngineClosed
from ds4tui.events import Decision, Failed, Finished
from ds4tui.tui.model_slot import ModelSlot
from tests.engine.histories import FakeRig, drain
from tests.fake_model import ByteTokenizer, FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer
from tests.fakes import EventLog
from tests.server.conftest import wait_until

PROMPT = [i % 97 for i in range(700)]
REPLY_TOKENS = 8
ROOMY_BYTES = 64 << 20


class Desk:
    """An engine over a fake model, with a disk in `folder`."""

    def __init__(self, folder: Path, **loaded: Any) -> None:
        self.disk = DiskTier(folder, ROOMY_BYTES, b"fake", floor_bytes=0)
        model = FakeModel(layer_types=loaded.pop("layer_types", ()))
        values: dict[str, Any] = {
            "name": "fake",
            "model": model,
            "tokenizer": ByteTokenizer(),
            "chunk_sizes": (64, 8),
            "available_bytes": lambda: 1 << 40,
            "disk": self.disk,
            **loaded,
        }
        self.engine = Engine(lambda: LoadedModel(**values))
        self.engine.start()
        self.engine.wait_ready(20)

    def ask(self, prompt: list[int]) -> tuple[tuple[int, ...], list[Decision]]:
        """The reply, and how the engine got to the prompt: one decision more for each record
        that was of no use."""
        log = self.heard(prompt)
        ending = log.wait_end()
        assert isinstance(ending, Finished), ending
        return ending.token_ids, log.of_type(Decision)

    def heard(self, prompt: list[int]) -> EventLog:
        log = EventLog()
        sampling = SamplingParams(temperature=0.0, max_tokens=REPLY_TOKENS)
        request = GenerateRequest(Timeline.of(prompt), sampling, "agent", frozenset())
        assert self.engine.submit(request, log).wait(60)
        return log

    def is_stored(self, ids: list[int]) -> bool:
        timeline = Timeline.of(ids)
        return (
            self.disk.missing_from(timeline) == len(timeline) and not self.disk.stats.queued_bytes
        )

    @property
    def told(self) -> EngineStats:
        return self.engine.stats

    def close(self) -> None:
        self.engine.close(30.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def desk(folder: Path) -> Iterator[Desk]:
    made = Desk(folder)
    yield made
    made.close()


@pytest.mark.parametrize("kind", [FakeLayer, RecurrentLayer])
def test_what_is_foreseen_is_what_then_happens_and_changes_nothing(kind: Any, folder: Path) -> None:
    def checked(desk: Desk, prompt: list[int]) -> tuple[tuple[int, ...], Foreseen]:
        told = desk.engine.foreseen(Timeline.of(prompt)).result(20)
        assert desk.engine.foreseen(Timeline.of(prompt)).result(20) == told
        reply, (decision,) = desk.ask(prompt)
        kept = told.in_memory + told.on_disk
        assert (kept, told.to_compute) == (decision.kept, decision.evaluated)
        assert ("disk" in decision.source) == bool(told.on_disk)
        return reply, told

    desk = Desk(folder, layer_types=(FakeLayer, kind))
    reply, cold = checked(desk, PROMPT)
    assert (cold.in_memory, cold.on_disk, cold.to_compute) == (0, 0, len(PROMPT))
    assert desk.disk.stats.misses == 1  # of the prompt that was asked
    resident = [*PROMPT, *reply[:-1]]
    wait_until(lambda: desk.is_stored(resident))
    desk.close()
    desk = Desk(folder, layer_types=(FakeLayer, kind))
    longer = [*resident, reply[-1], 5, 6]
    reply, stored = checked(desk, longer)
    assert (stored.in_memory, stored.on_disk, stored.to_compute) == (0, len(resident), 3)
    _, live = checked(desk, [*longer, *reply, 7])
    assert (live.on_disk, live.to_compute) == (0, 2)
    with pytest.raises(ContextOverflow):
        desk.engine.foreseen(Timeline.of([1] * 100_000)).result(20)
    desk.close()
    with pytest.raises(EngineClosed):
        desk.engine.foreseen(Timeline.of(longer))


def test_what_a_prompt_costs_is_told_while_another_is_answered(desk: Desk) -> None:
    reply, _ = desk.ask(PROMPT)
    other, told = [96 - i % 97 for i in range(500)], []
    log = EventLog()

    def hear(event: Any) -> None:
        log(event)
        if isinstance(event, Decision):
            told.append(desk.engine.foreseen(Timeline.of([*PROMPT, *reply, 1])))

    sampling = SamplingParams(temperature=0.0, max_tokens=REPLY_TOKENS)
    request = GenerateRequest(Timeline.of(other), sampling, "agent", frozenset())
    assert desk.engine.submit(request, hear).wait(60)
    assert isinstance(log.wait_end(), Finished)
    assert told[0].result(20).prompt == len(PROMPT) + REPLY_TOKENS + 1


@pytest.mark.parametrize("kind", [FakeLayer, RecurrentLayer])
def test_a_turn_is_stored_while_the_engine_rests_and_goes_on_after_a_restart(
    kind: Any, folder: Path
) -> None:
    desk = Desk(folder, layer_types=(FakeLayer, kind))
    reply, _ = desk.ask(PROMPT)
    resident = [*PROMPT, *reply[:-1]]
    wait_until(lambda: desk.is_stored(resident))
    # All of it is told without another job.
    wait_until(lambda: desk.told.disk is not None and desk.told.disk.tokens == len(resident))
    desk.close()
    desk = Desk(folder, layer_types=(FakeLayer, kind))
    again, (decision,) = desk.ask([*resident, reply[-1], 5, 6])
    assert decision.kind == "load" and "disk" in decision.source
    assert (decision.kept, decision.evaluated) == (len(resident), 3)
    cold = Desk(folder / "other", layer_types=(FakeLayer, kind))
    assert again == cold.ask([*resident, reply[-1], 5, 6])[0]
    cold.close()
    desk.close()


def test_short_conversations_are_not_stored(desk: Desk) -> None:
    desk.ask(PROMPT[: MIN_TOKENS // 2])
    desk.close()
    assert not desk.disk.stats.stores


def test_what_memory_lets_go_of_is_stored_whole_though_the_queue_is_short(folder: Path) -> None:
    rig = FakeRig(context_tokens=4096)
    disk = DiskTier(folder, ROOMY_BYTES, b"fake", floor_bytes=0, queue_bytes=2000)
    memory = MemoryTier(1 << 20)
    session = rig.session(memory)
    storing = Storing(disk, memory, [session])
    ids = [i % 40 for i in range(3000)]
    drain(session.sync(Timeline.of(ids)), 64)
    session.clear("another one comes")
    assert memory.parked_count == 1 and not disk.stats.stores
    assert memory.make_room(memory.budget_bytes)
    assert not memory.parked_count and not storing.failed
    assert disk.flush(30.0) and disk.missing_from(Timeline.of(ids)) == len(ids)
    assert disk.close(5.0)


def test_an_end_that_is_cut_short_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk stands still; what was not written is written after the next turn."""
    stuck = threading.Event()
    write = kvkeeper.write_record

    def waits(*arguments: Any) -> Any:
        assert stuck.wait(60)
        return write(*arguments)

    monkeypatch.setattr(kvkeeper, "write_record", waits)
    monkeypatch.setattr(pool, "STORE_THE_REST_S", 0.0)
    monkeypatch.setattr(worker, "CLOSE_DISK_S", 0.0)
    desk = Desk(folder)
    reply, _ = desk.ask(PROMPT)
    closing = threading.Thread(target=desk.close)
    closing.start()
    wait_until(lambda: desk.disk._queue.is_stopped())
    stuck.set()
    closing.join(30)
    assert not closing.is_alive() and "deadline" in dict(desk.disk.stats.faults)
    monkeypatch.undo()
    desk = Desk(folder)
    resident = [*PROMPT, *reply[:-1]]
    assert desk.disk.missing_from(Timeline.of(resident)) < len(resident)
    assert desk.ask(PROMPT)[0] == reply
    wait_until(lambda: desk.is_stored(resident))
    desk.close()
    assert not desk.disk.stats.faults


def test_a_damaged_page_is_planned_around_inside_its_job(folder: Path) -> None:
    desk = Desk(folder)
    reply, _ = desk.ask(PROMPT)
    desk.close()
    for path in folder.glob("*.page"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    desk = Desk(folder)
    again, decisions = desk.ask(PROMPT)
    assert again == reply
    assert decisions[0].kind == "load" and len(decisions) > 1
    told = desk.told.disk
    assert told is not None and "flipped" in dict(told.faults)
    assert any(note.kind == "damaged" for note in desk.told.notes)
    # What was lost is stored again.
    wait_until(lambda: desk.is_stored([*PROMPT, *reply[:-1]]))
    desk.close()


def test_storing_that_fails_is_told_and_the_engine_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any, **options: Any) -> bool:
        raise ValueError("no such rows")

    monkeypatch.setattr(desk.disk, "put_page", refused)
    reply, _ = desk.ask(PROMPT)
    wait_until(lambda: desk.told.disk is not None and desk.told.disk.failed)
    assert desk.told.disk is not None and desk.told.disk.failed == "ValueError: no such rows"
    assert any("nothing more is stored" in note.text for note in desk.told.notes)
    assert desk.ask(PROMPT)[0] == reply


class Lack:
    """`owner.name` raises so many times, then it is itself."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str, *errors: Exception):
        original, self.errors = getattr(owner, name), list(errors)

        def call(*arguments: Any, **named: Any) -> Any:
            if self.errors:
                raise self.errors.pop()
            return original(*arguments, **named)

        patch.setattr(owner, name, call)


def no_memory(desk: Desk) -> int:
    told = desk.told.disk
    return dict(told.faults).get("no memory", 0) if told is not None else 0


@pytest.mark.parametrize(
    ("copied", "error"),
    [
        ("host_rows", MemoryError()),
        ("host_rows", RuntimeError("[malloc] Unable to allocate 64 bytes.")),
        ("host_snapshot", MemoryError()),
    ],
)
def test_without_memory_for_a_copy_storing_goes_on_with_the_next_turn(
    folder: Path, copied: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack = Lack(monkeypatch, disk_store, copied, error)
    desk = Desk(folder, layer_types=(FakeLayer, RecurrentLayer))
    reply, _ = desk.ask(PROMPT)
    wait_until(lambda: no_memory(desk) == 1)
    assert not lack.errors
    longer = [*PROMPT, *reply, 5, 6]
    reply, _ = desk.ask(longer)
    resident = [*longer, *reply[:-1]]
    wait_until(lambda: desk.is_stored(resident))
    wait_until(lambda: desk.disk.has_snapshot(Timeline.of(resident)))
    assert desk.told.disk is not None and not desk.told.disk.failed
    assert any("no memory for a copy" in note.text for note in desk.told.notes)
    desk.close()


@pytest.mark.parametrize("asked", ["missing_from", "tidy"])
def test_a_disk_that_cannot_be_asked_ends_storing_and_nothing_else(
    desk: Desk, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask(PROMPT)
    Lack(monkeypatch, desk.disk, asked, ValueError("a fault"))
    desk.ask([*PROMPT, 1])
    wait_until(lambda: bool(desk.told.disk and desk.told.disk.failed))
    assert desk.ask([*PROMPT, 1, 2])[1][0].kept == len(PROMPT) + 1


def storing_of(folder: Path, budget_bytes: int) -> tuple[Any, MemoryTier, Storing]:
    memory = MemoryTier(budget_bytes)
    session = FakeRig(context_tokens=4096).session(memory)
    disk = DiskTier(folder, ROOMY_BYTES, b"fake", floor_bytes=0)
    return session, memory, Storing(disk, memory, [session])


def test_what_rests_in_memory_is_stored_once_there_is_memory_for_a_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _, storing = storing_of(folder, 1 << 20)
    ids = [i % 40 for i in range(600)]
    drain(session.sync(Timeline.of(ids)), 64)
    session.clear("another one comes")
    lack = Lack(monkeypatch, disk_store, "host_rows", MemoryError())
    storing.idle()
    assert not lack.errors and not storing._disk.missing_from(Timeline.of(ids))
    storing.idle()
    assert storing._disk.missing_from(Timeline.of(ids)) == 600
    assert not storing.failed and storing._disk.close(5.0)


def test_a_branch_that_memory_lets_go_of_bears_the_name_of_its_conversation(folder: Path) -> None:
    session, memory, storing = storing_of(folder, 1 << 20)
    for what, token in (("person: ants", 1), ("agent: bees", 2)):
        storing.begun(session, what)
        drain(session.sync(Timeline.of([token, *range(20, 40)] * 14)), 64)
        # Only its name is to be noted: its rows stay where they are.
        storing._named(session.timeline, storing._shelves[session.number].what)
        session.clear("another one comes")
    assert memory.make_room(memory.budget_bytes)
    assert storing._disk.flush(30.0)
    assert sorted(entry.what for entry in storing._disk.entries()) == [
        "agent: bees",
        "person: ants",
    ]
    assert storing._disk.close(5.0)


def test_a_name_is_known_from_the_end_of_a_job(folder: Path) -> None:
    session, _, storing = storing_of(folder, 1 << 20)
    storing.begun(session, "person: ants")
    drain(session.sync(Timeline.of([1] * 300)), 64)
    storing.stepped(session, 0.0, is_prefilled=True, is_over=False)
    assert not storing._what
    storing.stepped(session, 0.0, is_prefilled=True, is_over=True)
    assert storing._what == {session.timeline.digest(): "person: ants"}
    assert storing._disk.close(5.0)


def test_what_was_looked_at_is_forgotten_when_memory_lets_it_go(folder: Path) -> None:
    session, memory, storing = storing_of(folder, 600 * 32)
    for first in range(12):
        drain(session.sync(Timeline.of([first, *range(20, 40)] * 14)), 64)
        session.clear("another one comes")
        storing.idle()
        assert storing._swept <= {held.holder_id for held in memory.holders()}
    assert storing._swept and storing._disk.close(5.0)


def test_a_job_that_fails_before_its_plan_is_executed_holds_nothing_on_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(folder)
    reply, _ = desk.ask(PROMPT)
    desk.close()
    desk = Desk(folder)
    Lack(monkeypatch, jobs, "decision_of", ValueError("a fault"))
    assert isinstance(desk.heard(PROMPT).wait_end(), Failed)
    assert not desk.disk._keeper.uses.held
    again, (decision,) = desk.ask(PROMPT)
    assert again == reply and decision.kind == "load"
    desk.close()


def test_another_model_is_opened_when_the_folder_is_free(folder: Path) -> None:
    """As the app does it: the second one writes there, too."""
    desks: list[Desk] = []

    def opened(name: str, progress: Any) -> Any:
        desks.append(Desk(folder))
        return desks[-1].engine

    async def switched() -> None:
        slot = ModelSlot(opened)
        await slot.open("one", lambda words: None)
        await slot.open("two", lambda words: None)
        assert desks[1].disk.stats.is_writer and not desks[0].disk.stats.is_writer
        await slot.close()

    asyncio.run(switched())


def test_the_turn_after_a_clearing_is_stored_from_its_beginning(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lay before it is gone: it does not wait for one more turn."""
    monkeypatch.setattr(disk_store, "SHARE", 0.0)  # nothing is stored before the turn is over
    reply, _ = desk.ask(PROMPT)
    resident = [*PROMPT, *reply[:-1]]
    wait_until(lambda: desk.is_stored(resident))
    desk.disk.clear()
    more = [*resident, reply[-1], *range(300)]
    said, (decision,) = desk.ask(more)
    assert decision.kind == "extend"
    wait_until(lambda: desk.is_stored([*more, *said[:-1]]))
