"""Pictures in the transcript: drawn where the terminal can, captions where it cannot."""

import threading
from pathlib import Path

import pytest
from textual import events

from ds4tui.chat.messages import Image, Message
from ds4tui.chat.store import ConversationStore
from ds4tui.tui import previews
from ds4tui.tui.graphics import Way
from ds4tui.tui.previews import PREVIEWS_MAX, Preview
from ds4tui.tui.transcript import PREVIEWED_QUESTIONS
from tests.fakes import FakeAssistant
from tests.pictures.samples import BLUE, RED, png
from tests.tui.harness import Driver, running
from tests.tui.pictures import blind, seeing


def shot(number: int = 0, size: tuple[int, int] = (100, 50)) -> Image:
    return Image(png((size[0], size[1] + number)), 0, f"shot{number}.png")


def asked_before(store: ConversationStore, *questions: Message) -> None:
    made = store.create("before")
    parent = None
    for question in questions:
        asked = store.add_message(made.id, parent, question)
        parent = store.add_message(made.id, asked, Message("assistant", "Yes."))
    store.set_leaf(made.id, parent)


def shown(on: Driver) -> list[str]:
    return [p.image.name for p in on.chat.query(Preview) if p.is_shown]


def colours(on: Driver) -> set[tuple[int, int, int]]:
    """Of the half blocks on the screen."""
    strips = on.app.screen._compositor.render_strips(on.app.size)
    found = set()
    for segment in (s for strip in strips for s in strip if "▀" in s.text and s.style):
        for colour in (segment.style.color, segment.style.bgcolor):
            if colour is not None and colour.triplet is not None:
                found.add(tuple(colour.triplet))
    return found


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_a_sent_picture_is_drawn_in_half_blocks_over_its_caption(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    path = tmp_path / "shot.png"
    path.write_bytes(png((400, 200)))
    async with running(seeing(), way=Way.BLOCKS, size=size) as on:
        on.prompt.post_message(events.Paste(str(path)))
        await on.until(lambda: "tokens]" in on.prompt.text)
        await on.type("what?")
        await on.press("enter")
        await on.until(lambda: shown(on) == ["shot.png"])
        await on.answered()
        [preview] = on.chat.query(Preview)
        drawn = preview.query_one("Static")
        assert drawn.size.height <= size[1] // 3 and drawn.size.width <= 48
        assert drawn.size.width == pytest.approx(4 * drawn.size.height, abs=2)  # its shape
        on.chat.query_one("#transcript").scroll_home(animate=False)
        await on.pilot.pause()
        assert {RED, BLUE} <= colours(on)
        assert "shot.png 400x200 · 80 tokens" in on.screen_text()


async def test_where_nothing_can_be_drawn_the_caption_stands_alone() -> None:
    store = ConversationStore.in_memory()
    asked_before(store, Message("user", "what?", images=(shot(),)))
    async with running(seeing(), store=store, continue_last=True) as on:
        await on.until(lambda: "shot0.png 100x50 · 5 tokens" in on.screen_text())
        assert shown(on) == [] and "▀" not in on.screen_text()


async def test_a_conversation_that_is_opened_brings_its_pictures_back_and_sends_them_on() -> None:
    store = ConversationStore.in_memory()
    first = Message("user", "what is  here?", images=(shot(1).moved(8),))
    asked_before(store, first, Message("user", "", images=(shot(2), shot(3))))
    assistant = seeing()
    async with running(assistant, store=store, continue_last=True, way=Way.BLOCKS) as on:
        await on.until(lambda: sorted(shown(on)) == ["shot1.png", "shot2.png", "shot3.png"])
        await on.type("and?")
        await on.press("enter")
        await on.until(lambda: on.answers[-1:] == ["I see."])
        await on.answered()
        sent = assistant.asked[0]  # type: ignore[attr-defined]
        assert [m.images for m in sent if m.role == "user"] == [
            first.images,
            (shot(2), shot(3)),
            (),
        ]
        await on.press("up", "up", "up")
        await on.until(lambda: on.prompt.text == "what is [shot1.png 100x51 · 5 tokens]  here?")


async def test_a_conversation_that_is_there_before_its_model_is_counted_once_it_is_open() -> None:
    store = ConversationStore.in_memory()
    asked_before(store, Message("user", "what?", images=(shot(),)))
    may_open = threading.Event()

    def slow(name: str, progress: object) -> FakeAssistant:
        assert may_open.wait(20)
        return seeing()

    async with running(store=store, continue_last=True, open_model=slow, is_open=False) as on:
        await on.until(lambda: "shot0.png 100x50" in on.screen_text())
        assert "tokens" not in on.screen_text()
        await on.press("up")
        await on.until(lambda: on.prompt.text == "[shot0.png 100x50] what?")
        may_open.set()
        await on.until(lambda: "shot0.png 100x50 · 5 tokens\n" in on.screen_text())
        await on.until(lambda: on.prompt.text == "[shot0.png 100x50 · 5 tokens] what?")
        await on.press("down", "up")
        await on.until(lambda: on.prompt.text == "[shot0.png 100x50 · 5 tokens] what?")


async def test_a_text_model_shows_pictures_without_a_cost() -> None:
    store = ConversationStore.in_memory()
    asked_before(store, Message("user", "what?", images=(shot(),)))
    async with running(blind(), store=store, continue_last=True, way=Way.BLOCKS) as on:
        await on.until(lambda: shown(on) == ["shot0.png"])
        assert "shot0.png 100x50" in on.screen_text() and "tokens" not in on.screen_text()


async def test_few_pictures_are_drawn_however_many_there_are() -> None:
    store = ConversationStore.in_memory()
    many = tuple(shot(number) for number in range(PREVIEWS_MAX + 2))
    questions = [Message("user", "x", images=(shot(number),)) for number in range(8)]
    asked_before(store, *questions, Message("user", "many", images=many))
    assistant = seeing()
    async with running(assistant, store=store, continue_last=True, way=Way.BLOCKS) as on:
        wanted = PREVIEWS_MAX + PREVIEWED_QUESTIONS - 1
        await on.until(lambda: len(shown(on)) == wanted)
        await on.until(lambda: "shot5.png 100x55" in on.screen_text())
        await on.press("up", "enter")
        await on.until(lambda: on.answers[-1:] == ["I see."])
        await on.answered()
        await on.until(lambda: len(shown(on)) == 2 * PREVIEWS_MAX + PREVIEWED_QUESTIONS - 2)


async def test_decoding_does_not_hold_the_app_up(monkeypatch: pytest.MonkeyPatch) -> None:
    may_decode = threading.Event()
    decode = previews.preview

    def slow(*arguments: object) -> object:
        assert may_decode.wait(20)
        return decode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(previews, "preview", slow)
    store = ConversationStore.in_memory()
    asked_before(store, Message("user", "what?", images=(shot(),)))
    async with running(seeing(), store=store, continue_last=True, way=Way.BLOCKS) as on:
        await on.until(lambda: "shot0.png" in on.screen_text())
        await on.type("still here")
        assert on.prompt.text == "still here" and shown(on) == []
        may_decode.set()
        await on.until(lambda: shown(on) == ["shot0.png"])


async def test_a_stored_picture_that_cannot_be_read_any_more_is_its_name() -> None:
    store = ConversationStore.in_memory()
    asked_before(store, Message("user", "what?", images=(Image(b"old format", 0, "old.heic"),)))
    async with running(seeing(), store=store, continue_last=True, way=Way.BLOCKS) as on:
        await on.until(lambda: "old.heic" in on.screen_text())
        await on.pilot.pause()
        assert shown(on) == [] and on.notices == []


async def test_a_question_with_a_picture_is_copied_with_its_name() -> None:
    store = ConversationStore.in_memory()
    asked_before(store, Message("user", "what is it?", images=(shot(),)))
    async with running(seeing(), store=store, continue_last=True) as on:
        await on.until(lambda: "shot0.png" in on.screen_text())
        on.app.screen.text_select_all()
        await on.pilot.pause()
        selected = on.app.screen.get_selected_text() or ""
        assert "what is it?" in selected and "shot0.png 100x50 · 5 tokens" in selected
