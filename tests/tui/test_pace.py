"""How often is drawn, and what is told to what shows the stats."""

from collections.abc import Iterator

import pytest
from textual.content import Content

from ds4tui.engine.stats import EngineStats
from ds4tui.tui.metering import FRUGAL_POLL_S, POLL_S, Metering
from ds4tui.tui.meters import KVPanel, changed_runs
from ds4tui.tui.pace import (
    BATCHES_PER_S,
    DRAWING_SHARE,
    FRUGAL_SHARE,
    LONGEST_REST_S,
    Load,
    Work,
    rest_s,
)
from ds4tui.tui.panels import PanelView
from tests.tui.harness import running


def load(looks: list[tuple[float, float, float]], cores: int = 2) -> Load:
    """A Load that finds these (wall, whole, own) seconds, one after the other."""
    clocks = [iter(column) for column in zip(*looks, strict=True)]
    return Load(*(lambda clock=clock: next(clock) for clock in clocks), cores)  # type: ignore[misc]


def test_dear_batches_are_followed_by_longer_rests() -> None:
    assert rest_s(Work(0.0, False)) == rest_s(Work(0.002, False)) == 1 / BATCHES_PER_S
    assert rest_s(Work(0.03, False)) == pytest.approx(0.03 / DRAWING_SHARE - 0.03)
    assert rest_s(Work(5.0, False)) == LONGEST_REST_S


def test_an_engine_that_wants_the_cores_is_left_more_of_them() -> None:
    assert rest_s(Work(0.008, True)) == pytest.approx(0.008 / FRUGAL_SHARE - 0.008)
    assert rest_s(Work(0.008, True)) > 4 * rest_s(Work(0.008, False)) - 0.1


def test_what_the_others_take_tells_whether_the_engine_wants_the_cores() -> None:
    found = load([(0.0, 0.0, 0.0), (1.0, 0.3, 0.2), (2.0, 2.2, 0.3), (3.0, 2.3, 0.4)])
    assert found.look() == Work(0.2, False)  # 0.1 s of two cores
    assert found.look() == Work(pytest.approx(0.1), True)  # 1.8 s
    assert found.look() == Work(pytest.approx(0.1), False)


def ticking(whole_per_tick_s: float) -> Iterator[tuple[float, float, float]]:
    at = 0
    while True:
        yield (POLL_S * at, whole_per_tick_s * at, 0.0)
        at += 1


@pytest.mark.parametrize(("whole_s", "every"), [(0.0, 1), (0.5, round(FRUGAL_POLL_S / POLL_S))])
def test_meters_tick_slower_beside_a_busy_engine(whole_s: float, every: int) -> None:
    ticks = ticking(whole_s)
    metering = Metering(load([next(ticks) for _ in range(13)]))
    due = [metering.is_due() for _ in range(12)]
    assert sum(due) == 12 // every and due[every - 1]


def test_only_runs_of_lines_that_differ_are_named() -> None:
    before, after = (list(map(Content, text)) for text in ("abcde", "aXYdZf"))
    assert changed_runs(before, after) == [(1, 3), (4, 6)]
    assert changed_runs(before, before) == [] and changed_runs([], before) == [(0, 5)]


async def test_the_same_stats_are_told_once_and_what_comes_into_sight_is_told() -> None:
    async with running(size=(140, 40)) as on:
        told: list[PanelView] = []
        metering, screen = Metering(), on.app.screen
        panel = on.app.query_one(KVPanel)
        real, panel.show = panel.show, told.append  # type: ignore[method-assign]
        view = PanelView(EngineStats(context_tokens=100, resident_tokens=7))
        metering.show(screen, view)
        metering.show(screen, PanelView(EngineStats(context_tokens=100, resident_tokens=7)))
        assert told == [view]
        panel.show = real  # type: ignore[method-assign]
        panel.display = False
        await on.until(lambda: "Since the start" not in on.screen_text())
        metering.show(screen, PanelView(EngineStats(context_tokens=100, resident_tokens=9)))
        panel.display = True
        await on.until(lambda: "9 / 100" in on.screen_text())
