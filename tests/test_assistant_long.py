"""Long lives of all that an Assistant keeps: thousands of turns and forks, by bytes and counts."""

import gc
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ds4tui.assistant import Assistant
from ds4tui.cache import tombstones
from ds4tui.chat import remembered, rendering
from ds4tui.chat.conversation_keys import Contents
from ds4tui.chat.messages import Message
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.replay import ReplayMemory
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.stats import DECISIONS_KEPT, NOTES_KEPT
from ds4tui.engine.worker import Engine
from tests.chat import formats
from tests.fake_model import FakeModel
from tests.fakes import fake_info
from tests.scale import scaled
from tests.traced import traced_bytes

SHORT = SamplingParams(temperature=0.0, max_tokens=3)
WARM_CHATS = 24  # all that is bounded is full then
CHATS = scaled(16)
TURNS = 3


@pytest.fixture
def assistant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Over a real engine and format, with bounds that are reached soon."""
    monkeypatch.setattr(rendering, "_CHAIN_BYTES", 100_000)
    monkeypatch.setattr(remembered, "_FROZEN_CLOCKS", 16)
    monkeypatch.setattr(tombstones, "_REMEMBERED", 16)
    monkeypatch.setattr(rendering, "_RUN_CACHE_BYTES", 20_000)
    chat_format = ChatFormat(formats.tokenizer(tmp_path), formats.CORPUS["chatml"])
    model, tokenizer = FakeModel(context_tokens=4000), chat_format.tokenizer
    loaded = LoadedModel("fake", model, tokenizer, put_away_bytes=10_000)  # type: ignore[arg-type]
    engine = Engine(lambda: loaded)
    engine.start()
    engine.wait_ready(20)
    made = Assistant(fake_info(4000), engine, chat_format)
    made._replay = ReplayMemory(max_entries=50, max_bytes=20_000)
    made._replay._contents = Contents(max_entries=64)
    made._least_tokens._max_entries = 64
    made._model = model  # type: ignore[attr-defined]
    yield made
    made.close()


def one_chat(assistant: Any, number: int) -> list[int]:
    """Some turns, the last of them forked; how many tokens each turn evaluated."""
    evaluated = []
    told = [Message("system", "Be brief.")]
    for turn in range(TURNS):
        told.append(Message("user", f"question {number} {turn}"))
        said: list[str] = []
        job = assistant.chat(told, SHORT, lambda e: said.append(getattr(e, "text", "")))  # noqa: B023
        assert job.wait(20)
        evaluated.append(assistant.stats.decision.evaluated)
        told.append(Message("assistant", "".join(said)))
    fork = [*told[:-2], Message("user", f"other {number}")]
    assert assistant.chat(fork, SHORT, lambda event: None).wait(20)
    assistant._model.chunks.clear()  # the fake's own record
    return evaluated


def test_thousands_of_turns_leave_nothing_behind(assistant: Any) -> None:
    tracemalloc.start()
    try:
        for number in range(WARM_CHATS):
            first = one_chat(assistant, 1000 + number)
        before, kinds = traced_bytes(), Counter(type(o).__name__ for o in gc.get_objects())
        for number in range(CHATS):
            last = one_chat(assistant, 5000 + number)
        grown = traced_bytes() - before
    finally:
        tracemalloc.stop()
    more = Counter(type(o).__name__ for o in gc.get_objects()) - kinds
    del more["MemoryNote"]  # bounded, as is asserted below
    # Each turn has hundreds of objects; what one keeps would show CHATS x TURNS times.
    assert more.total() < CHATS * TURNS, more.most_common(5)
    assert grown < 1200 * CHATS * TURNS, f"{grown:,} bytes more"
    assert max(last) <= max(first) + 5  # a turn costs what it did, but for what is said in it
    stats, replay = assistant.stats, assistant._replay
    assert len(stats.decisions) == DECISIONS_KEPT and len(stats.notes) <= NOTES_KEPT
    assert len(replay) <= 50 and replay.nbytes <= 20_000 and replay._seen._bytes <= 20_000
    assert assistant.format.kept_bytes <= 100_000
    assert len(assistant._latest._timelines) <= 8
    assert stats.parked_bytes + stats.segment_bytes + stats.snapshot_bytes <= 10_000


def test_a_conversation_of_hundreds_of_turns_costs_its_new_tokens_only(assistant: Any) -> None:
    told: list[Message] = []
    costs, keeps = [], []
    for turn in range(40):
        told.append(Message("user", f"say {turn % 10}"))
        said: list[str] = []
        assert assistant.chat(told, SHORT, lambda e: said.append(getattr(e, "text", ""))).wait(20)  # noqa: B023
        costs.append(assistant.stats.decision.evaluated)
        keeps.append(assistant.format.kept_bytes)
        told.append(Message("assistant", "".join(said)))
    assert len(costs) == 40 and max(costs[1:]) <= 2 * min(costs[1:])
    assert max(keeps) <= 100_000
