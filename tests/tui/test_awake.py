"""A long prefill keeps the machine awake; a program that only waits stands in for the system's."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui.engine.stats import EngineStats
from ds4tui.events import PrefillProgress
from ds4tui.tui import awake
from ds4tui.tui.awake import LONG_S, KeepAwake

WAITS = (sys.executable, "-c", "import sys; sys.stdin.read()")


def prefilling(eta_s: float) -> EngineStats:
    return EngineStats("prefilling", prefill=PrefillProgress("j", 10, 1000, 0, 9.0, eta_s))


@pytest.fixture
def kept() -> Iterator[KeepAwake]:
    keeper = KeepAwake(lambda: WAITS)
    yield keeper
    keeper.release()


def test_a_long_prefill_holds_and_the_end_of_the_work_lets_go(kept: KeepAwake) -> None:
    kept.follow(prefilling(LONG_S - 1))
    assert kept._running is None
    kept.follow(prefilling(LONG_S))
    running = kept._running
    assert running is not None and running.poll() is None
    kept.follow(prefilling(1.0))  # the end of it, and the answer, are not left alone
    kept.follow(EngineStats("decoding"))
    assert kept._running is running and running.poll() is None
    kept.follow(EngineStats("idle"))
    assert kept._running is None and running.returncode == -signal.SIGKILL


def test_a_model_that_is_gone_lets_go(kept: KeepAwake) -> None:
    kept.follow(prefilling(LONG_S))
    kept.follow(None)
    assert kept._running is None


def test_it_ends_with_us_whatever_happens(kept: KeepAwake) -> None:
    kept.follow(prefilling(LONG_S))
    running = kept._running
    assert running is not None and running.stdin is not None
    running.stdin.close()  # as the system does when we are gone
    assert running.wait(20) == 0


@pytest.mark.parametrize("found", [None, ("/nowhere/at/all",)])
def test_a_machine_without_such_a_program_is_none_the_worse(found: tuple[str, ...] | None) -> None:
    keeper = KeepAwake(lambda: found)
    keeper.follow(prefilling(LONG_S))
    assert keeper._running is None


@pytest.mark.parametrize(
    ("name", "part"), [("caffeinate", str(os.getpid())), ("systemd-inhibit", "--what=idle:sleep")]
)
def test_the_system_s_own_program_is_found(
    name: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = awake.command()
    assert found is not None and found[0] == str(program) and part in found
    program.unlink()
    assert awake.command() is None
