"""What people reported of other programs, with their numbers, through a real session.

The states are synthetic (one id a row), so 340,000 tokens take a moment; how exact the kept rows
are is the other tests' to say.
"""

from collections.abc import Sequence

import numpy as np
import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Turn
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.fork_points import SPACING
from ds4tui.engine.session import Session
from tests.engine.histories import FailingModel, drain, outline_of
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer

CONTEXT = 400_000
BUDGET = 1 << 40


def ids_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 200, count).tolist()


def session_of(*layer_types: type[FakeLayer]) -> Session:
    model = FakeModel(context_tokens=CONTEXT, layer_types=layer_types)
    return Session(FailingModel(model), memory=MemoryTier(BUDGET))


def evaluated(session: Session, ids: Sequence[int], turn_tokens: int = 1000) -> int:
    """Rows that the model was fed to get to `ids`, the last one alone."""
    before = session._model.fed  # type: ignore[attr-defined]
    outline = outline_of(len(ids), turn_tokens)
    prefill = drain(session.sync(Timeline.of(ids), outline=outline))
    assert prefill.logits.shape == (262,)
    return session._model.fed - before  # type: ignore[attr-defined, no-any-return]


KINDS = pytest.mark.parametrize(
    "layers",
    [(FakeLayer,), (FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)],
    ids=["append-only", "recurrent", "window"],
)


@KINDS
def test_a_prompt_wholly_resident_in_a_longer_session_costs_one_token(layers: tuple) -> None:
    """Live 165,755, prompt 4,977: others evaluated all of it."""
    session = session_of(*layers)
    whole = ids_of(165_755)
    assert evaluated(session, whole[:4977]) == 4977  # the agent's first step
    assert evaluated(session, whole) == 165_755 - 4977
    assert evaluated(session, whole[:4977]) == 1


@KINDS
def test_a_fork_costs_its_new_tokens_and_the_old_branch_stays_whole(layers: tuple) -> None:
    """Live 165,755, prompt 4,977 of which 4,973 are common: four, and going back is free."""
    session = session_of(*layers)
    whole = ids_of(165_755)
    system = (Turn(0, 4973, "system", b""), Turn(4973, 4977, "user", b""))
    drain(session.sync(Timeline.of(whole[:4977]), outline=system))
    evaluated(session, whole)
    fork = [*whole[:4973], 201, 202, 203, 204]
    plan = session.plan(Timeline.of(fork))
    assert plan.to_evaluate == 4
    assert plan.put_away == "whole"  # the smaller side is copied, not the 160,778 others
    assert evaluated(session, fork) == 4
    assert evaluated(session, [*whole, 205, 206]) == 2
    assert evaluated(session, [*fork, 207]) == 1


@pytest.mark.parametrize("layers", [(FakeLayer,), (FakeLayer, FakeLayer)])
def test_a_tail_mismatch_costs_what_is_new(layers: tuple) -> None:
    """Live 340,263, prompt 340,551, common 340,144: 407."""
    session = session_of(*layers)
    whole = ids_of(340_263)
    evaluated(session, whole)
    prompt = [*whole[:340_144], 201, *ids_of(406, seed=1)]
    plan = session.plan(Timeline.of(prompt))
    assert (plan.kind, plan.live, plan.prompt) == (PlanKind.REWIND, 340_263, 340_551)
    assert (plan.common, plan.to_evaluate, plan.put_away) == (340_144, 407, "tail")
    assert evaluated(session, prompt) == 407
    assert evaluated(session, [*whole, 202]) == 1


@pytest.mark.parametrize("layers", [(FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)])
def test_a_tail_mismatch_of_a_state_that_cannot_go_back_replays_little(layers: tuple) -> None:
    """The same where the reply, which was sent back in other words, began at a border."""
    session = session_of(*layers)
    whole = ids_of(340_263)
    turn = (Turn(0, 4000, "system", b""), Turn(4000, 340_140, "user", b""))
    reply = (*turn, Turn(340_140, 340_263, "assistant", b""))
    drain(session.sync(Timeline.of(whole), outline=reply))
    prompt = [*whole[:340_144], 201, *ids_of(406, seed=1)]
    plan = session.plan(Timeline.of(prompt))
    assert plan.to_evaluate == 407 + 4  # the border is four tokens before
    assert plan.replayed == 4
    assert evaluated(session, prompt) == 411


@pytest.mark.parametrize("layers", [(FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)])
def test_trying_to_go_back_does_not_lose_a_state_that_cannot(layers: tuple) -> None:
    """With no room for anything beside it: a cold start is told, and only if it is wanted."""
    model = FakeModel(context_tokens=CONTEXT, layer_types=layers)
    session = Session(FailingModel(model), memory=MemoryTier(0))
    whole = ids_of(5000)
    evaluated(session, whole)
    fork = Timeline.of([*whole[:3000], 201])
    plan = session.plan(fork)
    assert (plan.kind, plan.kept) == (PlanKind.COLD, 0)
    assert session._state is not None
    assert not session._state.can_rewind(3000)
    with pytest.raises(ValueError, match=r"cannot|can not|Layer"):
        session._state.rebuild(3000, ())
    assert session._state.length == 5000
    assert evaluated(session, [*whole, 202]) == 1  # nothing was lost by asking and trying


@pytest.mark.parametrize("layers", [(FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)])
def test_an_edit_anywhere_replays_at_most_a_share_of_what_it_needs(layers: tuple) -> None:
    for at in (137, 2900, 15_000, 29_000, 29_990):
        session = session_of(*layers)
        whole = ids_of(30_000)
        evaluated(session, whole, turn_tokens=700)
        edited = [*whole[:at], 201, *whole[at + 1 :]]
        needed = len(edited) - at
        plan = session.plan(Timeline.of(edited))
        # A chunk is 512 rows: nearer to the end than that its ends do not stand.
        assert plan.replayed <= max(needed / SPACING * 1.1, 512)
        assert evaluated(session, edited, turn_tokens=700) == needed + plan.replayed


@pytest.mark.parametrize("layers", [(FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)])
def test_turns_regenerations_edits_and_branches_cost_new_tokens_only(layers: tuple) -> None:
    """What people do all day, on states that cannot be cut back. A reply's last sampled token
    (its end) is not fed: the next prompt brings it."""
    session = session_of(*layers)
    system, question = ids_of(50), ids_of(30, seed=1)

    def turns(*lengths: int) -> tuple[Turn, ...]:
        ends = np.cumsum(lengths).tolist()
        roles = ("system", "user", "opening", "assistant", "user", "opening")
        return tuple(
            Turn(end - length, end, role, b"")
            for end, length, role in zip(ends, lengths, roles, strict=False)
        )

    def ask(ids: list[int], outline: tuple[Turn, ...], reply: list[int]) -> int:
        before = session._model.fed  # type: ignore[attr-defined]
        drain(session.sync(Timeline.of(ids), outline=outline))
        count = session._model.fed - before  # type: ignore[attr-defined]
        for token in reply[:-1]:
            session.append(token)
        session.end_turn()
        return int(count)

    opening, reply = [210, 211], [*ids_of(40, seed=2), 220]
    first = system + question + opening
    outline = turns(50, 30, 2)
    assert ask(first, outline, reply) == len(first)
    # (a) the next turn: the end of the reply, then what is new
    second = [*first, *reply, *ids_of(20, seed=3), *opening]
    longer = turns(50, 30, 2, 41, 20, 2)
    assert ask(second, longer, [*ids_of(10, seed=4), 220]) == 1 + 20 + 2
    # (b) regenerated: one token
    assert ask(second, longer, [*ids_of(12, seed=5), 220]) == 1
    # (c) the last message edited at its beginning: what is new behind the border
    edited = [*first, *reply, *ids_of(25, seed=6), *opening]
    assert ask(edited, turns(50, 30, 2, 41, 25, 2), [*ids_of(9, seed=7), 220]) == 25 + 2
    # (d) back to the branch before, and on
    back = [*second, *ids_of(12, seed=5), 220, 230, 231]
    assert ask(back, longer, [220]) == 1 + 2
    # and to the first reply of (a), which was regenerated away
    again = [*second, *ids_of(10, seed=4), 220, 240]
    assert ask(again, longer, [220]) == 1 + 1
