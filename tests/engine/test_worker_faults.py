"""Faults of our own on the engine thread: whoever waits is told."""

import logging

import pytest

from ds4tui.engine.books import Books
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.worker import Engine
from ds4tui.errors import EngineClosed
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
