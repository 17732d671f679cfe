"""The report that this program was founded on, with its numbers: 340,144 of 340,551 tokens and all
images were equal, and yet everything was computed again. The states are synthetic."""

import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.fork_points import SPACING
from ds4tui.engine.session import Session
from ds4tui.engine.vision.layout import row_ids
from tests.engine.histories import drain
from tests.engine.test_session_reports import ids_of, session_of
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer

LIVE, PROMPT, COMMON = 340_263, 340_551, 340_144
ROWS = 1_026  # of a screenshot
PLACES = (5_000, 90_000, 200_000, 339_000)


def print_of(name: int) -> bytes:
    return bytes([name]) * 16


def with_images(ids: list[int], names: dict[int, int]) -> Timeline:
    """`ids` with a picture over them at each place of `names`."""
    spans = []
    for start, name in names.items():
        span = ImageSpan(start, ROWS, print_of(name), (7,) * ROWS)
        ids[start : span.end] = row_ids(span.fingerprint, ROWS).tolist()
        spans.append(span)
    return Timeline.of(ids, tuple(spans))


NAMES = {place: i for i, place in enumerate(PLACES)}
WHOLE = ids_of(LIVE)


def prompt(names: dict[int, int]) -> Timeline:
    return with_images([*WHOLE[:COMMON], 201, *ids_of(406, seed=1)], names)


def resident(*layers: type[FakeLayer]) -> Session:
    session = session_of(*layers)
    drain(session.sync(with_images(list(WHOLE), NAMES)))
    return session


def fed(session: Session, wanted: Timeline) -> int:
    before = session._model.fed  # type: ignore[attr-defined]
    drain(session.sync(wanted))
    return session._model.fed - before  # type: ignore[attr-defined, no-any-return]


def test_equal_images_and_a_tail_mismatch_cost_what_is_new() -> None:
    session = resident(FakeLayer)
    plan = session.plan(prompt(NAMES))
    assert (plan.kind, plan.live, plan.prompt) == (PlanKind.REWIND, LIVE, PROMPT)
    assert (plan.common, plan.kept, plan.to_evaluate) == (COMMON, COMMON, 407)
    assert plan.images == "match"
    assert fed(session, prompt(NAMES)) == 407


@pytest.mark.parametrize("place", PLACES)
def test_an_image_that_is_replaced_goes_back_to_just_before_it(place: int) -> None:
    """All rows of one picture differ from those of another, from the first on."""
    session, wanted = resident(FakeLayer), prompt(NAMES | {place: 9})
    plan = session.plan(wanted)
    assert (plan.common, plan.kept, plan.to_evaluate) == (place, place, PROMPT - place)
    assert plan.images == "changed" and plan.cause is not None
    assert plan.cause.value == "image replaced"
    assert fed(session, wanted) == PROMPT - place
    assert fed(session, with_images(list(WHOLE), NAMES)) == 1  # the old branch is whole


@pytest.mark.parametrize("layers", [(FakeLayer, RecurrentLayer), (WindowLayer, FakeLayer)])
@pytest.mark.parametrize("place", PLACES)
def test_a_state_that_cannot_go_back_replays_a_share(layers: tuple, place: int) -> None:
    """Snapshots stand before images, thinned with their distance from the end."""
    session, wanted = resident(*layers), prompt(NAMES | {place: 9})
    plan = session.plan(wanted)
    assert plan.common == place and plan.images == "changed"
    assert plan.replayed <= (PROMPT - place) / SPACING * 1.1
    assert fed(session, wanted) == PROMPT - place + plan.replayed


def test_a_session_without_memory_for_branches_goes_back_all_the_same() -> None:
    session = resident(FakeLayer)
    session._memory = MemoryTier(0)
    assert session.plan(prompt(NAMES | {PLACES[2]: 9})).kept == PLACES[2]
