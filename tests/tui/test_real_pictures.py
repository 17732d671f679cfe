"""The real model and its screen reader in the app: a picture in by keys, an answer about it."""

from pathlib import Path

import pytest
from textual import events

from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from ds4tui.opening import open_assistant
from ds4tui.tui.graphics import Way
from tests.screens import screen
from tests.tui.harness import Driver, running

pytestmark = pytest.mark.real_model


@pytest.fixture(autouse=True)
def settings(
    smollm2_path: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    folder = own_folders / "data"
    folder.mkdir()
    (folder / "models").symlink_to(smollm2_path.parent)
    monkeypatch.setenv("DS4TUI_DATA_DIR", str(folder))
    monkeypatch.delenv("DS4TUI_DEBUG")
    monkeypatch.setattr("tests.tui.harness.TIMEOUT_S", 120.0)
    return {"temperature": 0.0, "max_tokens": 12, "kv_disk": "off"}


async def drop_and_ask(on: Driver, name: str, question: str) -> str:
    """The answer to `question` about the file `name`, dropped before it."""
    count = len(on.answers)
    on.prompt.post_message(events.Paste(str(screen(name))))
    await on.until(lambda: on.prompt.text.startswith(f"[{name} "), "the label")
    assert " · 260 tokens] " in on.prompt.text
    await on.type(question)
    await on.press("enter")
    await on.until(lambda: len(on.answers) == count + 1, "it is asked")
    await on.answered()
    assert not on.notices, on.notices
    return on.answers[-1].strip()


async def test_a_dropped_screenshot_is_answered_kept_and_brought_back(
    settings: dict[str, object], tmp_path: Path
) -> None:
    loaded = load_settings(settings)

    def open_model(name: str, progress: object) -> object:
        return open_assistant("smollm2", loaded, lambda words: None)

    store = ConversationStore(tmp_path / "c.db")
    async with running(open_model=open_model, store=store, way=Way.BLOCKS, **settings) as on:
        assert await drop_and_ask(on, "sample_01.png", "Which colour is the background?") == "Pink"
        assert await drop_and_ask(on, "sample_04.png", "Is the theme dark or light?") == "Dark"
        stats = on.app._slot.assistant.stats
        assert stats.usage.cached_tokens >= 260 and stats.images_encoded == 2
        await on.until(lambda: len([p for p in on.chat.query("Preview") if p.display]) == 2)
    store = ConversationStore(tmp_path / "c.db")
    flags = {**settings, "continue_last": True}
    async with running(open_model=open_model, store=store, way=Way.BLOCKS, **flags) as on:
        await on.until(lambda: "sample_04.png 248x175 · 260 tokens" in on.screen_text())
        await on.press("up")
        await on.until(lambda: "[sample_04.png 248x175 · 260 tokens] Is the" in on.prompt.text)
        await on.press("enter")
        await on.until(lambda: len(on.answers) == 3)
        await on.answered()
        assert on.answers[-1].strip() == "Dark"
        assert on.app._slot.assistant.stats.images_encoded == 2  # the same one twice, and another
