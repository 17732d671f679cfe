"""Sampling and system prompt by keys: shown, checked, what is lost told before, kept."""

import tomllib
from pathlib import Path

import pytest
from textual.widgets import Input, Static

from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from ds4tui.errors import ConfigError
from ds4tui.tui.screens.tuning import TuningScreen
from ds4tui.tui.tuning import checked
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running


async def opened(on: Driver) -> TuningScreen:
    on.prompt.put("/sampling ")
    await on.pilot.pause()
    await on.press("enter")
    await on.until(lambda: isinstance(on.app.screen, TuningScreen), "the form is open")
    screen = on.app.screen
    assert isinstance(screen, TuningScreen)
    await on.until(lambda: on.app.focused is screen.query_one("#temperature"))
    return screen


def words(screen: TuningScreen, which: str) -> str:
    return str(screen.query_one(which, Static).content)


async def to(on: Driver, screen: TuningScreen, name: str) -> None:
    """Tab to a field."""
    while on.app.focused is not screen.query_one(f"#{name}"):
        before = on.app.focused
        await on.press("tab")
        await on.until(lambda before=before: on.app.focused is not before)


async def test_what_holds_is_shown_and_what_is_set_is_sampled_with_and_kept() -> None:
    assistant = FakeAssistant("Yes.")
    store = ConversationStore.in_memory()
    async with running(assistant, store=store, seed=5) as on:
        await on.ask("one")
        await on.answered()
        screen = await opened(on)
        assert screen.query_one("#temperature", Input).placeholder == "0.7"
        assert screen.query_one("#seed", Input).placeholder == "5"
        await on.type("0.3")
        await to(on, screen, "max_tokens")
        await on.type("2")
        await on.until(lambda: "drops" not in words(screen, "#told") and words(screen, "#told"))
        assert "Nothing of what is held is dropped" in words(screen, "#told")
        await on.press("ctrl+s")
        await on.until(lambda: any("Kept for this conversation. Nothing" in t for t in on.toasts))
        await on.ask("two")
        await on.answered()
        asked = assistant.engine.requests[-1].sampling
        assert (asked.temperature, asked.max_tokens, asked.seed) == (0.3, 2, 5)
        decision = assistant.stats.decision
        assert decision is not None and decision.kind == "extend" and decision.dropped == 0
        await on.press("ctrl+n")
        await on.until(lambda: on.answers == [])
        await on.ask("elsewhere")
        await on.answered()
        assert assistant.engine.requests[-1].sampling.temperature == 0.7


async def test_what_is_set_holds_after_a_restart_and_in_a_fork(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    async with running(store=ConversationStore(path)) as on:
        screen = await opened(on)
        await to(on, screen, "top_k")
        await on.type("7")
        await on.press("ctrl+s")
        await on.until(lambda: on.chat.chat.sampling == {"top_k": 7})
        await on.ask("one")  # a chat that is none yet keeps it, too
        await on.answered()
    assistant = FakeAssistant()
    async with running(assistant, store=ConversationStore(path), continue_last=True) as on:
        await on.until(lambda: on.questions == ["one"])
        await on.ask("two")
        await on.answered()
        assert assistant.engine.requests[-1].sampling.top_k == 7
        on.prompt.put("/fork ")
        await on.pilot.pause()
        await on.press("enter", "enter")
        await on.until(lambda: on.prompt.text == "two")
        assert on.chat.chat.sampling == {"top_k": 7}


async def test_another_system_prompt_tells_what_is_kept_and_lost_before_it_is_set() -> None:
    assistant = FakeAssistant("An answer.")
    async with running(assistant) as on:
        await on.ask("a question of some length")
        await on.answered()
        resident = assistant.stats.resident_tokens
        screen = await opened(on)
        await to(on, screen, "system")
        await on.type("Be brief.")
        await on.until(lambda: "0 tokens are kept" in words(screen, "#told"))
        told = words(screen, "#told")
        assert f"and {resident:,} lost to this conversation" in told
        assert on.chat.chat.system == ""
        await on.press("ctrl+s")
        await on.until(lambda: on.chat.chat.system == "Be brief.")
        await on.until(lambda: any("0 tokens are kept" in toast for toast in on.toasts))
        await on.ask("?")
        await on.answered()
        decision = assistant.stats.decision
        assert decision is not None and decision.kept == 0
        assert f"computes {decision.evaluated:,}." in told


async def test_what_is_wrong_is_told_at_once_and_not_kept() -> None:
    async with running() as on:
        screen = await opened(on)
        await on.type("hot")
        await on.until(lambda: "temperature must be a number" in words(screen, "#asked"))
        await on.press("ctrl+s")
        await on.until(lambda: "not 'hot'" in words(screen, "#asked"))
        assert on.app.screen is screen
        await on.press("escape")
        await on.until(lambda: len(on.app.screen_stack) == 1)
        assert on.chat.chat.sampling == {}


async def test_as_the_default_it_holds_for_other_conversations_and_the_next_start(
    own_folders: Path,
) -> None:
    assistant = FakeAssistant()
    async with running(assistant) as on:
        screen = await opened(on)
        await on.type("0.2")
        await to(on, screen, "system")
        await on.type("Be kind.")
        await on.until(lambda: screen._told == "Be kind.")
        await on.press("f2")
        await on.until(lambda: any("as the default" in toast for toast in on.toasts))
        await on.ask("one")
        await on.answered()
        await on.press("ctrl+n")
        await on.until(lambda: on.answers == [])
        await on.ask("two")
        await on.answered()
        assert on.chat.chat.system == "Be kind."
        assert assistant.engine.requests[-1].sampling.temperature == 0.2
    state = tomllib.loads((own_folders / "state" / "state.toml").read_text())
    assert (state["temperature"], state["system"]) == (0.2, "Be kind.")
    assert load_settings({}).temperature == 0.2


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"top_p": "1.5"}, "top_p must be a number from 0 to 1, not 1.5"),
        ({"top_k": "2.5"}, "top_k must be a whole number"),
        ({"temperature": "nan"}, "temperature must be"),
        ({"seed": "-1"}, "seed must be"),
    ],
)
def test_numbers_out_of_range_say_what_they_must_be(texts: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked(texts)


def test_what_is_empty_sets_nothing() -> None:
    assert checked({"seed": " ", "top_k": " 5 ", "temperature": "1"}) == {
        "top_k": 5,
        "temperature": 1.0,
    }
