"""Faults of our own on the engine thread: whoever waits is told."""

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ds4tui.engine.books import Books
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.worker import Engine
from ds4tui.errors import EngineClosed, EngineError
from ds4tui.events import Failed
from tests.engine.test_worker import PROMPT, Bench, failure, finished
from tests.fake_model import ByteTokenizer, FakeModel


def test_a_fault_between_loading_and_serving_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(books: Books) -> None:
        raise RuntimeError("the books cannot be opened")

    monkeypatch.setattr(Books, "looked_at_memory", fail)
    loaded = LoadedModel("fake", FakeModel(), ByteTokenizer())  # type: ignore[arg-type]
    engine = Engine(lambda: loaded)
    with caplog.at_level(logging.CRITICAL, "ds4tui.engine.worker"):
        engine.start()
        with pytest.raises(EngineClosed, match="the books cannot be opened"):
            engine.wait_ready(20)
    assert engine.stats.state == "closed"
    engine.close()


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Only what nobody holds any more is freed, as device memory must be: not some time later."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(bench: Bench) -> list[weakref.ref[Any]]:
    """References to all states that are made from now on, and to their layers."""
    made: list[weakref.ref[Any]] = []
    new_state = bench.model.new_state

    def new_watched_state() -> Any:
        state = new_state()
        made.extend(weakref.ref(one) for one in (state, *state.layers))
        return state

    bench.model.new_state = new_watched_state  # type: ignore[method-assign]
    return made


def fails_at(row: int) -> Callable[[Any], None]:
    def fail(rows: Any) -> None:
        if rows.positions[0] >= row:
            raise RuntimeError("the device is gone")

    return fail


@pytest.mark.parametrize("row", [9, len(PROMPT) + 2], ids=["in the prompt", "in the reply"])
def test_a_failed_step_keeps_nothing_of_its_state(row: int, without_collector: None) -> None:
    bench = Bench()
    made = watched(bench)
    bench.model.before_forward = fails_at(row)
    log = bench.run()
    error = failure(log)  # a front-end that shows it keeps it
    assert isinstance(error.__cause__, RuntimeError) and "gone" in str(error)
    assert made and not [alive for alive in made if alive() is not None]
    bench.model.before_forward = lambda rows: None
    assert finished(bench.run()).token_ids
    bench.engine.close()


def test_memory_that_runs_out_keeps_nothing_of_the_state(without_collector: None) -> None:
    bench = Bench()
    made = watched(bench)

    def fail(rows: Any) -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise MemoryError("no buffer") from None

    bench.model.before_forward = fail
    log = bench.run()
    failure(log)
    assert made and not [alive for alive in made if alive() is not None]
    assert log.of_type(Failed)[0].error.__traceback__ is None
    bench.engine.close()


def test_an_error_that_is_kept_does_not_keep_the_model(
    without_collector: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "ds4tui.engine.jobs")  # pytest keeps tracebacks
    bench = Bench()
    bench.model.before_forward = fails_at(0)
    log = bench.run()
    error = failure(log)
    model = weakref.ref(bench.model)
    bench.engine.close()
    del bench
    gc.collect()  # the engine and its thread know each other
    assert str(error) and model() is None


def test_a_load_that_fails_keeps_nothing_of_what_was_loaded(without_collector: None) -> None:
    loaded: list[weakref.ref[FakeModel]] = []

    def load() -> LoadedModel:
        model = FakeModel()
        loaded.append(weakref.ref(model))
        raise EngineError("The last tensor is missing.")

    engine = Engine(load)
    engine.start()
    with pytest.raises(EngineError, match="last tensor"):
        engine.wait_ready(20)
    assert loaded[0]() is None
    engine.close()
