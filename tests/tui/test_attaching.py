"""Pictures into the prompt, by keys: pasted, dropped, named, chosen, taken; and sent."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual import events
from textual.keys import _character_to_key

from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.tui.screens.picture import PictureScreen
from tests.chat.sights import FakeVision as SeeingFake
from tests.fakes import FakeAssistant
from tests.pictures.programs import give, make, only_these
from tests.pictures.samples import bomb, cut_gif, png, torn_avif
from tests.tui.harness import Driver, running
from tests.tui.pictures import REFUSAL, blind, seeing

LABEL = "[shot.png 100x50 · 5 tokens]"
ASK = "-selection clipboard -o -t"


@pytest.fixture(autouse=True)
def own_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with no programs but those that a test makes, at a screen of X11."""
    monkeypatch.setattr("platform.system", lambda: "Linux")
    for name in ("WAYLAND_DISPLAY", "SSH_CONNECTION", "WSL_DISTRO_NAME", "XDG_PICTURES_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return only_these(tmp_path, monkeypatch)


@pytest.fixture
def shot(tmp_path: Path) -> Path:
    path = tmp_path / "shot.png"
    path.write_bytes(png((100, 50)))
    return path


def on_the_clipboard(programs: Path, data: bytes) -> None:
    give(programs, "xclip", f"{ASK} TARGETS", b"TARGETS\nimage/png\n")
    give(programs, "xclip", f"{ASK} image/png", data)


def asked(assistant: FakeAssistant, place: int = -1) -> Message:
    """The last message of a request."""
    message: Message = assistant.asked[place][-1]  # type: ignore[attr-defined]
    return message


async def paste(on: Driver, text: str) -> None:
    on.prompt.post_message(events.Paste(text))
    await on.pilot.pause()


async def until_prompt(on: Driver, text: str) -> None:
    await on.until(lambda: on.prompt.text == text, f"the prompt is {text!r}: {on.prompt.text!r}")


# The clipboard


async def test_ctrl_v_puts_the_clipboards_picture_into_the_prompt_and_enter_sends_it(
    own_system: Path,
) -> None:
    on_the_clipboard(own_system, png((100, 50)))
    assistant = seeing()
    async with running(assistant) as on:
        await on.type("What is ")
        await on.press("ctrl+v")
        await until_prompt(on, "What is [pasted.png 100x50 · 5 tokens] ")
        assert "[pasted.png 100x50 · 5 tokens]" in on.screen_text()
        await on.type("this?")
        await on.press("enter")
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert on.questions == ["What is this?"] and on.prompt.text == ""
        question = asked(assistant)
        assert question.text == "What is this?"
        assert [(i.name, i.at, i.data) for i in question.images] == [
            ("pasted.png", 8, png((100, 50)))
        ]
        assert "pasted.png 100x50 · 5 tokens" in on.screen_text()


async def test_a_picture_alone_is_a_question(own_system: Path) -> None:
    on_the_clipboard(own_system, png((100, 50)))
    assistant = seeing()
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await on.press("ctrl+v")
        await on.until(lambda: "pasted.png" in on.prompt.text)
        await on.press("enter")
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert asked(assistant).text == "" and len(asked(assistant).images) == 1
        assert store.list()[0].title == "pasted.png"


async def test_enter_right_after_ctrl_v_sends_the_picture_too(own_system: Path) -> None:
    on_the_clipboard(own_system, png((100, 50)))
    assistant = seeing()
    async with running(assistant) as on:
        await on.type("see")
        on.prompt.action_paste()
        for key, character in (("enter", "\r"), ("m", "m")):
            on.prompt.post_message(events.Key(key, character))
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert (asked(assistant).text, len(asked(assistant).images)) == ("see ", 1)
        assert on.prompt.text == "m"


async def test_a_question_that_waits_for_a_hanging_clipboard_says_so_and_is_no_loss(
    own_system: Path, tmp_path: Path
) -> None:
    make(own_system, "xclip", f"while [ ! -e {tmp_path}/go ]; do /bin/sleep 0.05; done; exit 1")
    assistant = seeing()
    async with running(assistant) as on:
        await on.type("see")
        await on.press("ctrl+v", "enter")
        await on.until(lambda: "sent when its picture is read" in on.screen_text())
        await on.type("next")
        assert on.chat.draft.text == "seenext" and on.questions == []
        await on.press("enter")  # one at a time
        assert on.prompt.text == "next"
        (tmp_path / "go").touch()
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert on.questions == ["see"] and on.prompt.text == "next"


async def test_a_question_does_not_wait_for_ever(
    own_system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4tui.tui.attaching.WAIT_S", 0.05)
    make(own_system, "xclip", f"while [ ! -e {tmp_path}/go ]; do /bin/sleep 0.05; done; exit 1")
    async with running(seeing()) as on:
        await on.type("see")
        await on.press("ctrl+v", "enter")
        await on.until(lambda: any("is back in the prompt" in t for t in on.toasts))
        await until_prompt(on, "see")
        assert on.questions == []
        on.prompt.put("next")
        on.prompt.give_back("see")  # as for what was typed meanwhile
        assert on.prompt.text == "see\nnext"
        (tmp_path / "go").touch()


async def test_without_a_picture_ctrl_v_pastes_what_was_copied_here_or_says_why_not(
    own_system: Path,
) -> None:
    give(own_system, "xclip", f"{ASK} TARGETS", b"UTF8_STRING\n")
    async with running(seeing()) as on:
        await on.press("ctrl+v")
        await on.until(lambda: on.toasts == ["There is no picture on the clipboard."])
        await on.type("words")
        on.prompt.select_all()
        await on.press("ctrl+x")
        await until_prompt(on, "")
        await on.press("ctrl+v", "ctrl+v")
        await until_prompt(on, "wordswords")


async def test_a_paste_of_nothing_is_a_picture_of_terminals_that_paste_text_only(
    own_system: Path,
) -> None:
    on_the_clipboard(own_system, png((100, 50)))
    async with running(seeing()) as on:
        await paste(on, "")
        await on.until(lambda: "pasted.png" in on.prompt.text)
        (own_system / "xclip").unlink()
        await paste(on, "")
        await on.type("x")
        assert on.toasts == []


async def test_a_broken_clipboard_is_told_with_its_reason(own_system: Path) -> None:
    on_the_clipboard(own_system, png((100, 50))[:60])
    async with running(seeing()) as on:
        await on.type("draft")
        await on.press("ctrl+v")
        await on.until(lambda: any("pasted.png is damaged" in n for n in on.notices))
        assert on.prompt.text == "draft"


# Drops


@pytest.mark.parametrize("quoting", ["{}", "'{}'", "file://{}", "{} "])
async def test_a_dropped_file_becomes_its_label(shot: Path, quoting: str) -> None:
    assistant = seeing()
    async with running(assistant) as on:
        await on.type("see ")
        await paste(on, quoting.format(shot))
        await until_prompt(on, f"see {LABEL} ")
        await on.press("enter")
        await on.answered()
        await on.until(lambda: on.answers == ["I see."])
        assert asked(assistant).images[0].data == shot.read_bytes()


async def test_a_dropped_file_comes_in_whatever_its_name_would_do_to_a_terminal(shot: Path) -> None:
    odd = shot.rename(shot.with_name("shot\u202egnp.png"))
    async with running(seeing()) as on:
        await paste(on, str(odd))
        await on.until(lambda: "100x50 · 5 tokens]" in on.prompt.text)
        assert "\u202e" not in on.prompt.text


async def test_several_dropped_files_are_several_labels_and_undo_takes_them_back(
    shot: Path, tmp_path: Path
) -> None:
    other = tmp_path / "Screenshot at 9.41.07\u202fAM.png"
    other.write_bytes(png((40, 24)))
    text = f"{shot} {other.parent}/Screenshot\\ at\\ 9.41.07\\ AM.png"
    async with running(seeing()) as on:
        await paste(on, text)
        await until_prompt(on, f"{LABEL} [Screenshot at 9.41.07 AM.png 40x24 · 1 tokens] ")
        await on.press("ctrl+z")
        await until_prompt(on, text)
        await on.press("ctrl+y")
        await until_prompt(on, f"{LABEL} [Screenshot at 9.41.07 AM.png 40x24 · 1 tokens] ")


async def test_text_with_a_path_in_it_is_text(shot: Path) -> None:
    async with running(seeing()) as on:
        await paste(on, f"{shot} is the file")
        await paste(on, f"{shot} /no/such.png")
        await on.until(lambda: not on.chat._attaching.is_at_work)
        await on.pilot.pause()
        assert on.prompt.text == f"{shot} is the file{shot} /no/such.png"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bomb(), "is too large"),
        (b"no picture", "no picture that can be read"),
        (b"", "is empty"),
        (png((100, 50))[:70], "damaged or cut off"),
        (torn_avif(), "damaged or cut off"),
        (torn_avif(b"iloc"), "damaged or cut off"),
    ],
)
async def test_a_dropped_file_that_cannot_be_read_stays_as_text_with_the_reason(
    shot: Path, content: bytes, reason: str
) -> None:
    shot.write_bytes(content)
    async with running(seeing()) as on:
        await paste(on, str(shot))
        await on.until(lambda: any("shot.png" in n and reason in n for n in on.notices))
        assert on.prompt.text == str(shot)


async def test_a_file_whose_later_frames_are_damaged_comes_in(shot: Path) -> None:
    shot.write_bytes(cut_gif())
    async with running(seeing()) as on:
        await paste(on, str(shot))
        await on.until(lambda: on.prompt.text.startswith("[shot.png 8x8"))


@pytest.mark.parametrize("way", ["drop", "mention"])
async def test_no_bug_at_reading_takes_the_app_down_or_the_draft(
    shot: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    def fail(path: Path) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("ds4tui.tui.attaching.read_picture", fail)
    async with running(seeing()) as on:
        if way == "drop":
            await paste(on, str(shot))
        else:
            await on.type("see @shot.png")
            await on.press("escape", "enter")
        await on.until(lambda: any("ZeroDivisionError: a bug" in n for n in on.notices))
        await until_prompt(on, str(shot) if way == "drop" else "see @shot.png")
        assert on.app.is_running and on.questions == []


async def test_a_drop_and_enter_in_one_go_sends_the_picture(shot: Path) -> None:
    assistant = seeing()
    async with running(assistant) as on:
        on.prompt.post_message(events.Paste(str(shot)))
        for character in " what?\rnext":
            key = {"\r": "enter"}.get(character) or _character_to_key(character)
            on.prompt.post_message(events.Key(key, character))
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert asked(assistant).text == " what?" and len(asked(assistant).images) == 1
        assert on.prompt.text == "next"


# Labels under the fingers


async def test_one_backspace_takes_a_picture_out_and_the_cursor_steps_over_it(shot: Path) -> None:
    async with running(seeing()) as on:
        await on.type("a ")
        await paste(on, str(shot))
        await until_prompt(on, f"a {LABEL} ")
        await on.press("left", "x", "right", "y")
        await until_prompt(on, f"a x{LABEL} y")
        await on.press("left", "backspace")
        await until_prompt(on, "a xy")
        await on.press("ctrl+z")
        await until_prompt(on, f"a x{LABEL} y")
        await on.press("home", "right", "right", "right", "delete")
        await until_prompt(on, "a xy")


async def test_a_selection_that_ends_inside_a_label_takes_all_of_it(shot: Path) -> None:
    async with running(seeing()) as on:
        await on.type("ab")
        await paste(on, str(shot))
        await until_prompt(on, f"ab{LABEL} ")
        await on.press("home", "right", "shift+right", "shift+right", "backspace")
        await until_prompt(on, "a")


async def test_up_brings_a_question_with_its_picture_back(shot: Path) -> None:
    assistant = seeing()
    async with running(assistant) as on:
        await paste(on, str(shot))
        await until_prompt(on, f"{LABEL} ")
        await on.type("what?")
        await on.press("enter")
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        await on.press("up")
        await until_prompt(on, f"{LABEL} what?")
        await on.press("enter")
        await on.until(lambda: len(on.answers) == 2)
        await on.answered()
        first, second = asked(assistant, 0), asked(assistant, 1)
        assert first == second and len(second.images) == 1
        assert [len(m.images) for m in assistant.asked[1]] == [1, 0, 1]  # type: ignore[attr-defined]


async def test_a_draft_with_a_picture_comes_back_with_it(shot: Path, tmp_path: Path) -> None:
    async with running(seeing(), store=ConversationStore(tmp_path / "c.db")) as on:
        await on.type("look ")
        await paste(on, str(shot))
        await until_prompt(on, f"look {LABEL} ")
        on.app.quit_app()
        await on.until(lambda: not on.app.is_running)
    shot.unlink()
    assistant = seeing()
    async with running(assistant, store=ConversationStore(tmp_path / "c.db")) as on:
        await until_prompt(on, f"look {LABEL} ")
        await on.press("enter")
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert asked(assistant).images[0].data == png((100, 50))


async def test_another_model_counts_anew_and_one_that_sees_nothing_refuses(shot: Path) -> None:
    models = {"smollm2": seeing(), "blind": blind()}
    async with running(open_model=lambda name, progress: models[name]) as on:
        await paste(on, str(shot))
        await until_prompt(on, f"{LABEL} ")
        on.app.run_worker(on.app.models.change_to("blind"))
        await until_prompt(on, "[shot.png 100x50] ")
        await on.until(lambda: on.app._slot.assistant is models["blind"])
        await on.type("what?")
        await on.press("enter")
        await on.until(lambda: REFUSAL in on.toasts)
        assert on.prompt.text == "[shot.png 100x50] what?" and on.questions == []


async def test_pictures_that_the_model_is_not_shown_are_told_below_the_answer(shot: Path) -> None:
    assistant = FakeAssistant("I see.", vision=SeeingFake(), images_kept=1)
    async with running(assistant) as on:
        for name in ("shot.png", "other.png"):
            shot.with_name(name).write_bytes(png((100, 50 + len(name))))
            on.prompt.put(f"/image {name}")
            await on.press("enter")
            await on.until(lambda name=name: f"[{name}" in on.prompt.text)
            await on.press("enter")
            await on.answered()
        assert "not shown" not in on.footers[0]
        assert "1 earlier picture is not shown to the model (images_kept)" in on.footers[1]
        decision = assistant.stats.decision
        assert decision is not None and decision.images_left_out == 1


# /image and @


async def test_image_takes_files_by_name(shot: Path, tmp_path: Path) -> None:
    (tmp_path / "two words.png").write_bytes(png((40, 24)))
    async with running(seeing()) as on:
        await on.type('/image shot.png "two words.png"')
        await on.press("enter")
        await until_prompt(on, f"{LABEL} [two words.png 40x24 · 1 tokens] ")


async def test_image_says_what_is_missing_and_gives_the_command_back() -> None:
    async with running(seeing()) as on:
        await on.type("/image gone.png")
        await on.press("enter")
        await on.until(lambda: any("There is no file gone.png." in n for n in on.notices))
        await until_prompt(on, "/image gone.png")


async def test_image_alone_lists_the_newest_screenshots(shot: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Pictures" / "Screenshots"
    async with running(seeing()) as on:
        await on.type("/image ")
        await on.press("enter")
        await on.until(lambda: any("no pictures in" in t for t in on.toasts))
        folder.mkdir(parents=True)
        shot.rename(folder / "my [shot].png")
        await on.type("/image ")
        await on.press("enter")
        await on.until(lambda: isinstance(on.app.screen, PictureScreen))
        await on.pilot.pause()
        assert "my [shot].png" in on.screen_text() and "just now" in on.screen_text()
        await on.press("enter")
        await until_prompt(on, "[my (shot).png 100x50 · 5 tokens] ")


async def test_at_completes_a_path_through_folders_to_a_picture(shot: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my shots"
    folder.mkdir()
    shot.rename(folder / "shot.png")
    (folder / "notes.txt").write_text("no picture")
    async with running(seeing()) as on:
        await on.type("see @my")
        await on.until(lambda: "my shots/" in on.screen_text())
        await on.press("tab")
        await until_prompt(on, 'see @"my shots/')
        await on.until(lambda: "my shots/shot.png" in on.screen_text())
        assert "notes.txt" not in on.screen_text()
        await on.press("enter")
        await until_prompt(on, f"see {LABEL} ")
        assert on.prompt.cursor_location == on.prompt.document.end


async def test_a_path_that_is_typed_whole_is_sent_as_its_picture(shot: Path) -> None:
    assistant = seeing()
    async with running(assistant) as on:
        question = "Compare @shot.png, @nobody.png and me@home.png"
        await on.type(question)
        await on.press("escape", "enter")
        await on.until(lambda: any("no picture nobody.png" in n for n in on.notices))
        await until_prompt(on, question)
        assert on.questions == []
        await on.press("enter")  # it is meant so
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert asked(assistant).text == "Compare , @nobody.png and me@home.png"
        assert [(i.name, i.at) for i in asked(assistant).images] == [("shot.png", 8)]


async def test_punctuation_around_a_path_is_the_sentences(shot: Path) -> None:
    assistant = seeing()
    async with running(assistant) as on:
        on.prompt.put("What (@shot.png) is @shot.png's title…")
        await on.press("enter")
        await on.until(lambda: on.answers == ["I see."])
        await on.answered()
        assert asked(assistant).text == "What () is 's title…"
        assert [(i.name, i.at) for i in asked(assistant).images] == [
            ("shot.png", 6), ("shot.png", 11),
        ]  # fmt: skip


async def test_a_broken_picture_that_is_mentioned_is_told_and_the_prompt_kept(shot: Path) -> None:
    shot.write_bytes(b"rubbish")
    async with running(seeing()) as on:
        await on.type("see @shot.png")
        await on.press("escape", "enter")
        await on.until(lambda: any("shot.png is no picture" in n for n in on.notices))
        assert on.prompt.text == "see @shot.png" and on.questions == []


# /screenshot


async def test_screenshot_takes_one_with_the_systems_program(own_system: Path, shot: Path) -> None:
    make(own_system, "maim", f'/bin/cp {shot} "$3"')
    async with running(seeing()) as on:
        await on.type("/screenshot")
        await on.press("enter")
        await until_prompt(on, "[screenshot.png 100x50 · 5 tokens] ")


async def test_a_screenshot_that_was_left_or_cannot_be_taken_is_told(own_system: Path) -> None:
    async with running(seeing()) as on:
        await on.type("/screenshot")
        await on.press("enter")
        await on.until(lambda: any("No program for screenshots" in n for n in on.notices))
        make(own_system, "maim", "exit 1")
        await on.type("/screenshot")
        await on.press("enter")
        await on.until(lambda: any("No screenshot was taken" in t for t in on.toasts))


# A model that sees nothing


async def told(on: Driver) -> None:
    """Wait until the refusal is told, once, and put it away."""
    await on.until(lambda: on.toasts == [REFUSAL], "the refusal")
    on.app.clear_notifications()


async def test_a_text_model_refuses_every_way_in_at_once_and_keeps_the_prompt(
    own_system: Path, shot: Path
) -> None:
    on_the_clipboard(own_system, png((100, 50)))
    async with running(blind()) as on:
        await on.type("draft ")
        await on.press("ctrl+v")
        await told(on)
        await paste(on, str(shot))
        await told(on)
        assert on.prompt.text == f"draft {shot}"
        on.prompt.put("see @shot.png")
        await on.press("enter")
        await told(on)
        await until_prompt(on, "see @shot.png")
        on.prompt.put("/image shot.png")
        await on.press("enter")
        await told(on)
        await until_prompt(on, "/image shot.png")
        on.prompt.put("/screenshot")
        await on.press("enter")
        await told(on)
        assert on.questions == []


async def test_a_refusal_does_not_pile_up(shot: Path) -> None:
    async with running(blind()) as on:
        for _ in range(3):
            on.prompt.put("see @shot.png")
            await on.press("enter")
            await until_prompt(on, "see @shot.png")
        assert on.toasts == [REFUSAL]


async def test_pictures_wait_for_a_model_that_is_opened_and_are_told_what_they_cost(
    shot: Path,
) -> None:
    may_open = threading.Event()
    assistant = seeing()

    def slow(name: str, progress: Callable[[str], None]) -> FakeAssistant:
        progress("reading")
        may_open.wait(20)
        return assistant

    async with running(open_model=slow, is_open=False) as on:
        await paste(on, str(shot))
        await until_prompt(on, "[shot.png 100x50] ")
        await on.press("enter")  # queued
        may_open.set()
        await on.until(lambda: on.answers == ["I see."])
        assert len(asked(assistant).images) == 1
        await on.answered()
