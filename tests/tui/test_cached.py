from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.kvtally import DiskStats
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision
from ds4tui.tui.cached import stored_end
from ds4tui.tui.cached_words import cache_words
from ds4tui.tui.forecast import SOME_QUESTION
from tests.cache.kv_samples import IDENTITY, true_page
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running

LONG = "a question that is long enough to be kept, " * 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path / "kv", 10**8, IDENTITY, label="mine", floor_bytes=0)
    yield tier
    tier.close(30.0)


@pytest.fixture
def assistant(disk: DiskTier) -> FakeAssistant:
    found = FakeAssistant("an answer")
    found.engine.disk_tier = disk
    return found


def conversation(on: Driver, assistant: FakeAssistant) -> Timeline:
    return assistant.render(on.chat.chat.messages(SOME_QUESTION, assistant.info))


def store(disk: DiskTier, timeline: Timeline, start: int, end: int) -> None:
    whole = timeline.prefix(end)
    assert disk.put_page(whole, start, true_page(whole, start, end).layers, what="person: it")
    assert disk.flush(30.0)


async def entered(on: Driver, command: str, told: str) -> None:
    """Enter a command, and wait until `told` is said in the conversation or a toast."""
    await on.until(lambda: not on.prompt.text)
    await on.type(command)
    await on.press("enter")
    await on.until(lambda: told in " ".join([*on.notices, *on.toasts]), f"{command}: {told}")


async def test_a_conversation_is_pinned_as_far_as_it_is_stored(
    assistant: FakeAssistant, disk: DiskTier
) -> None:
    async with running(assistant) as on:
        await on.ask(LONG)
        await on.answered()
        wanted = conversation(on, assistant)
        store(disk, wanted, 0, 64)
        store(disk, wanted, 64, 128)
        await entered(on, "/pin", f"pinned: 128 of its {len(wanted):,} tokens")
        (pinned,) = [entry for entry in disk.entries() if entry.is_pinned]
        assert (pinned.start, pinned.end) == (64, 128)
        assert disk.clear() == 0  # it leans on the other page
        await entered(on, "/pin off", "is not pinned")
        assert disk.stats.pinned == 0 and disk.clear() > 0


async def test_what_is_not_stored_yet_is_not_pinned_and_told(
    assistant: FakeAssistant, disk: DiskTier
) -> None:
    async with running(assistant) as on:
        await entered(on, "/pin", "Nothing of yours stands in this conversation yet.")
        await on.ask(LONG)
        await on.answered()
        await entered(on, "/pin", "Nothing of this conversation is on disk.")
        assert "stored when the engine rests" in on.notices[-1]
        await on.until(lambda: on.prompt.text == "", "the command is done with")


async def test_a_shared_beginning_is_no_conversation(
    assistant: FakeAssistant, disk: DiskTier
) -> None:
    async with running(assistant, system=LONG) as on:
        await on.ask(LONG)
        await on.answered()
        wanted = conversation(on, assistant)
        system = len(assistant.render([*on.chat.chat.messages(SOME_QUESTION, assistant.info)[:1]]))
        store(disk, wanted, 0, system - 1)  # without what opens the reply
        assert stored_end(assistant, disk, on.chat.chat) is None
        store(disk, wanted, system - 1, system + 40)
        holder, tokens, length = stored_end(assistant, disk, on.chat.chat) or (0, 0, 0)
        assert (tokens, length) == (system + 40, len(wanted)) and holder
        other = replace(on.chat.chat, path=[])
        assert stored_end(assistant, disk, other) is None


@pytest.mark.parametrize("command", ["/pin", "/cache clear"])
async def test_without_a_disk_there_is_nothing_to_change(command: str) -> None:
    async with running(FakeAssistant()) as on:
        await on.ask(LONG)
        await on.answered()
        await entered(on, command, "KV states are not kept on disk (kv_disk is off).")


async def test_clearing_is_asked_twice_and_spares_what_is_pinned(
    assistant: FakeAssistant, disk: DiskTier
) -> None:
    kept, other = Timeline.of([1] * 300), Timeline.of([2] * 300)
    store(disk, kept, 0, 300)
    store(disk, other, 0, 300)
    disk.pin(next(e.holder_id for e in disk.entries() if e.start == 0))
    async with running(assistant) as on:
        await entered(on, "/cache clear", "/cache clear again removes what is on disk")
        assert len(disk.entries()) == 2
        await entered(on, "/cache clear", "were removed from the disk")
        assert [entry.is_pinned for entry in disk.entries()] == [True]


async def test_cache_tells_and_opens_its_panels(assistant: FakeAssistant) -> None:
    async with running(assistant) as on:
        await on.ask(LONG)
        await on.answered()
        await entered(on, "/cache", "Live: ")
        assert f"{assistant.stats.resident_tokens:,} of 4,096 tokens" in on.notices[-1]
        for word in ("disk", "decisions"):
            await on.type(f"/cache {word}")
            await on.press("enter")
            await on.until(lambda word=word: on.app.query_one(f"#{word}").display)  # type: ignore[misc]
        await entered(on, "/cache nonsense", "/cache does not know 'nonsense'.")


async def test_the_words_that_pin_takes_are_told(assistant: FakeAssistant) -> None:
    async with running(assistant) as on:
        await entered(on, "/pin down", "/pin takes off or nothing, not 'down'.")


def test_what_is_told_of_the_cache() -> None:
    disk = DiskStats(used_bytes=2 * 10**9, budget_bytes=20 * 10**9, pinned=1, is_writer=True)
    decision = Decision(
        "job", "rewind", "memory", "restore-exact", 100, 80, 60, 60, 40, 20, "none", "edited"
    )
    stats = EngineStats(
        context_tokens=1000,
        resident_tokens=250,
        kv_bytes=5_000_000,
        parked_states=2,
        parked_tokens=700,
        parked_bytes=9_000_000,
        snapshots=1,
        cache_budget_bytes=90_000_000,
        total_cached_tokens=30,
        total_evaluated_tokens=10,
        disk=disk,
        conversation_count=3,
        decision=decision,
    )
    told, hint = cache_words(stats)
    assert told.split("\n") == [
        "Live: 250 of 1,000 tokens (25%), 5.0 MB.",
        "Beside it in memory: 2 branches parked (700 tokens), 1 snapshot; 9.0 MB of 90.0 MB.",
        "On disk: 3 conversations, 1 pinned, 2.0 GB of 20.0 GB.",
        "Reused since the start: 75% of 40 prompt tokens.",
        f"Last decision: rewind -40 -> 60, then +20: {decision.reason}.",
    ]
    assert "/pin" in hint
    told, _ = cache_words(replace(stats, disk=replace(disk, why_not="another ds4tui writes")))
    assert "20.0 GB. Nothing is stored: another ds4tui writes." in told
    told, _ = cache_words(EngineStats(context_tokens=10))
    assert "Beside it in memory: nothing; " in told and "kv_disk is off" in told
