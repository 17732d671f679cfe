"""Which job is next: the person first, and no agent waits for ever. Pure; nothing of the clock.

The rule: jobs of persons go before jobs of agents, each in order of arrival. But of the jobs
taken while an agent waits, at most PERSONS_IN_A_ROW in a row are persons': then the agent that
has waited longest is next. So an agent with n agents before it waits for at most
3 x (n + 1) + n jobs, and a person for at most one agent's job more than the persons before.

The engine asks twice. Of the jobs that wait, which one begins: one whose session is busy is
passed over and keeps its place. And of the jobs at work (several with several sessions), which
prompt is evaluated next and which reply written: sharing.py says whether a prompt's or a reply's
turn it is. Who is taken does one step and is added again at the end.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from ds4tui.engine.requests import Origin

# A person sends the next message when the last reply is read: three in a row while an agent
# waits are several front-ends at work, not one person in a hurry.
PERSONS_IN_A_ROW = 3

T = TypeVar("T")


class Schedule(Generic[T]):
    """Jobs that wait. Owned by the engine thread."""

    def __init__(self) -> None:
        self._persons: deque[T] = deque()
        self._agents: deque[T] = deque()
        self._passed = 0  # persons' jobs taken in a row while an agent waited

    def __len__(self) -> int:
        return len(self._persons) + len(self._agents)

    def add(self, job: T, origin: Origin) -> int:
        """Let `job` wait; how many of the waiting are before it, as things stand."""
        (self._persons if origin == "person" else self._agents).append(job)
        return next(i for i, waiting in enumerate(self.in_order()) if waiting is job)

    def take(self) -> T:
        """The next job. IndexError if none waits."""
        job, self._passed = _take(self._persons, self._agents, self._passed)
        return job

    def take_ready(self, is_ready: Callable[[T], bool]) -> T | None:
        """The first job, in the order in which they would be taken, that `is_ready`; None if
        none is. Those before it keep their places."""
        for job in self.in_order():
            if is_ready(job):
                is_person = job in self._persons
                self.remove(job)
                self._passed = self._passed + 1 if is_person and self._agents else 0
                return job
        return None

    def remove(self, job: T) -> bool:
        """Whether `job` was waiting; it does no longer."""
        for queue in (self._persons, self._agents):
            if job in queue:
                queue.remove(job)
                return True
        return False

    def in_order(self) -> list[T]:
        """The waiting jobs as they will be taken if no other comes."""
        persons, agents, passed = self._persons.copy(), self._agents.copy(), self._passed
        order: list[T] = []
        while persons or agents:
            job, passed = _take(persons, agents, passed)
            order.append(job)
        return order


def _take(persons: deque[T], agents: deque[T], passed: int) -> tuple[T, int]:
    if persons and not (agents and passed >= PERSONS_IN_A_ROW):
        return persons.popleft(), passed + 1 if agents else 0
    return agents.popleft(), 0
