"""Who is next: persons first, agents never for ever."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.schedule import PERSONS_IN_A_ROW, Schedule
from tests.scale import scaled


def of(*names: str) -> Schedule[str]:
    """p1, p2 are jobs of persons, a1, a2 of agents."""
    schedule: Schedule[str] = Schedule()
    for name in names:
        schedule.add(name, "person" if name.startswith("p") else "agent")
    return schedule


def taken(schedule: Schedule[str]) -> list[str]:
    return [schedule.take() for _ in range(len(schedule))]


@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        ("a1 a2 a3", "a1 a2 a3"),
        ("a1 p1 a2 p2", "p1 p2 a1 a2"),
        ("a1 p1 p2 p3 p4 p5", "p1 p2 p3 a1 p4 p5"),
        ("a1 a2 p1 p2 p3 p4 p5 p6 p7", "p1 p2 p3 a1 p4 p5 p6 a2 p7"),
    ],
)
def test_the_order(waiting: str, order: str) -> None:
    schedule = of(*waiting.split())
    assert schedule.in_order() == order.split()
    assert taken(schedule) == order.split()
    assert len(schedule) == 0


def test_persons_taken_while_no_agent_waited_do_not_count() -> None:
    schedule = of("p1", "p2", "p3", "p4", "p5")
    for _ in range(4):
        schedule.take()
    schedule.add("a1", "agent")
    schedule.add("p6", "person")
    assert taken(schedule) == ["p5", "p6", "a1"]


def test_add_says_how_many_are_before() -> None:
    schedule = of("a1", "a2", "p1")
    assert schedule.add("p2", "person") == 1
    assert schedule.add("a3", "agent") == 4
    assert schedule.add("p3", "person") == 2
    assert schedule.add("p4", "person") == 4  # after three persons it is an agent's turn


def test_a_removed_job_does_not_come() -> None:
    schedule = of("a1", "p1", "a2")
    assert schedule.remove("a1")
    assert not schedule.remove("a1")
    assert taken(schedule) == ["p1", "a2"]
    with pytest.raises(IndexError):
        schedule.take()


@given(st.lists(st.sampled_from(["person", "agent", "take"]), max_size=60))
@settings(max_examples=scaled(100))
def test_nobody_starves(moves: list) -> None:
    schedule: Schedule[int] = Schedule()
    agents: list[int] = []
    arrived = passed = 0
    for move in moves:
        if move != "take":
            arrived += 1
            schedule.add(arrived, move)
            agents += [arrived] if move == "agent" else []
        elif len(schedule):
            job = schedule.take()
            if job in agents:
                assert job == agents.pop(0)  # the one that waited longest
                passed = 0
            else:
                passed = passed + 1 if agents else 0
            assert passed <= PERSONS_IN_A_ROW


def test_who_is_not_ready_is_passed_over_and_keeps_its_place() -> None:
    schedule = of("p1", "a1", "p2", "a2")
    assert schedule.take_ready(lambda job: job != "p1") == "p2"
    assert schedule.take_ready(lambda job: job == "a2") == "a2"
    assert schedule.take_ready(lambda job: False) is None
    assert schedule.in_order() == ["p1", "a1"]


def test_an_agent_that_was_not_ready_is_first_once_it_is() -> None:
    schedule = of("a1", "a2", "p1", "p2", "p3", "p4", "p5", "p6")
    persons = [schedule.take_ready(lambda job: not job.startswith("a")) for _ in range(5)]
    assert persons == ["p1", "p2", "p3", "p4", "p5"]
    assert schedule.in_order()[0] == "a1"
    assert schedule.take_ready(lambda job: True) == "a1"
    assert schedule.take_ready(lambda job: True) == "p6"


def test_steps_of_jobs_at_work_go_round() -> None:
    schedule = of("a1", "a2", "p1")
    steps = []
    for _ in range(12):
        steps.append(schedule.take())
        schedule.add(steps[-1], "person" if steps[-1] == "p1" else "agent")
    assert steps == "p1 p1 p1 a1 p1 p1 p1 a2 p1 p1 p1 a1".split()
