"""Kill -9 of a process that converses and stores: whatever kind of state it had, after a restart
nothing that was stored is lost, and every token is that of a run that was never killed."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.plan import PlanKind
from ds4tui.cache.timeline import ImageSpan, Timeline
from tests.engine.disk_rigs import RIGS, TURNS, Desk, Script, make_pages_short, opened_rig
from tests.engine.histories import drain
from tests.scale import scaled

ROOT = Path(__file__).parents[2]

# A conversation takes some 150,000 calls; where one of them is a system call the next is another.
CALLS_MAX = 150_000
KILLS = scaled(2)  # of each rig, one after the other in one folder

# Of logits that are about 10: rows of a cold run are computed in other chunks.
TOLERANCES = {"f16": 0.05, "bf16": 0.4}


@pytest.fixture(scope="module", params=RIGS)
def named_rig(request: pytest.FixtureRequest) -> tuple[str, Any]:
    return request.param, opened_rig(request.param)


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages_short(monkeypatch)


def conversed(folder: Path, name: str, seed: int, call: int) -> tuple[list[dict[str, Any]], bool]:
    """The turns that a child had stored when it ended, and whether it was killed."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.disk_child", str(folder), name, str(seed), str(call)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode in (0, -9) and not ran.stderr, ran.stderr
    turns = [json.loads(line) for line in ran.stdout.splitlines()]
    return [turn for turn in turns if "ids" in turn], ran.returncode == -9


def timeline_of(turn: dict[str, Any]) -> Timeline:
    spans = (ImageSpan(at, n, bytes.fromhex(mark), (7,) * n) for at, n, mark in turn["spans"])
    return Timeline.of(turn["ids"], tuple(spans))


def test_nothing_that_was_stored_is_lost_and_no_token_is_wrong(
    named_rig: tuple[str, Any], tmp_path: Path
) -> None:
    name, rig = named_rig
    folder, kills = tmp_path / "kv", 0
    for seed in range(20 * KILLS):
        call = random.Random(f"{name} {seed}").randrange(1000, CALLS_MAX)
        turns, was_killed = conversed(folder, name, seed, call)
        kills += was_killed
        desk = Desk.of(rig, name, folder)
        look_at_all(desk, rig, turns)
        for turn in turns[-2:]:
            ask_again(Desk.at(rig, desk.disk), turn)
        go_on(desk, rig, name, seed)
        assert desk.settle() and desk.disk.close(30.0)
        if kills == KILLS:
            return
    raise AssertionError("children outlive their calls")


def look_at_all(desk: Desk, rig: Any, turns: list[dict[str, Any]]) -> None:
    told = desk.disk.stats
    assert told.is_writer and not {"flipped", "cut", "foreign"} & dict(told.faults).keys()
    for turn in turns:
        stored = timeline_of(turn).extended(turn["sampled"][:-1])
        assert desk.disk.missing_from(stored) == len(stored)
        assert desk.disk.has_snapshot(stored) or rig.truncates
    assert not desk.disk.verify()


def ask_again(desk: Desk, turn: dict[str, Any]) -> None:
    """A prompt whose rows are on disk is not evaluated again and gets the reply that it got."""
    prompt = timeline_of(turn)
    plan = desk.session.plan(prompt)
    assert plan.kind is PlanKind.LOAD
    assert desk.asked(prompt) == turn["sampled"]


def go_on(desk: Desk, rig: Any, name: str, seed: int) -> None:
    """What was killed is asked anew here, as far as another conversation; logits are a cold
    run's."""
    script = Script(name, seed)
    tolerance = TOLERANCES.get(name.partition("-")[2], rig.tolerance)
    for number, prompt in zip(range(TURNS), script.prompts(), strict=False):
        logits = drain(desk.session.sync(prompt), 8).logits
        cold = drain(rig.session(MemoryTier(0)).sync(prompt), 8).logits
        np.testing.assert_allclose(logits, cold, atol=tolerance, err_msg=f"{name}, turn {number}")
        script.answered(prompt, desk.asked(prompt))
