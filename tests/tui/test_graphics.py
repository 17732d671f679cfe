"""How a terminal shows pictures, by what it says and is called; and how they are drawn."""

import fcntl
import io
import os
import pty
import subprocess
import sys
import termios
import textwrap

import pytest
from PIL import Image
from textual.content import Content

from ds4tui.chat import messages
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.doctor.terminal import Answer
from ds4tui.tui import graphics
from ds4tui.tui.graphics import Way, asked_way, blocks, cells_of, way_of
from tests.pictures.samples import picture, png
from tests.tui.harness import running
from tests.tui.pictures import seeing

XTERM = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
KITTY = {**XTERM, "TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"}
ALL, NONE, SIXEL = Answer(True, True), Answer(False, False), Answer(False, True)


@pytest.mark.parametrize(
    ("environment", "answer", "way"),
    [
        (KITTY, Answer(True, False), Way.KITTY),
        ({**XTERM, "TERM_PROGRAM": "ghostty"}, Answer(True, False), Way.KITTY),
        (XTERM, Answer(True, True), Way.SIXEL),  # WezTerm and Konsole: no placeholders
        (XTERM, Answer(True, False), Way.BLOCKS),
        ({**KITTY, "TMUX": "x"}, Answer(True, False), Way.BLOCKS),
        ({**XTERM, "TMUX": "x"}, SIXEL, Way.SIXEL),  # tmux itself answers
        (XTERM, NONE, Way.BLOCKS),
        (XTERM, None, Way.BLOCKS),
        ({"TERM": "xterm-256color"}, NONE, Way.TEXT),
        ({"TERM": "xterm-256color"}, SIXEL, Way.SIXEL),
        ({**KITTY, "NO_COLOR": "1"}, ALL, Way.TEXT),
        ({**XTERM, "TERM": "dumb"}, ALL, Way.TEXT),
        ({**XTERM, "TERM": "linux"}, ALL, Way.TEXT),
        ({}, ALL, Way.TEXT),
    ],
)
def test_what_a_terminal_can_show(environment: dict[str, str], answer: Answer, way: Way) -> None:
    assert way_of(environment, answer) is way


def test_without_a_terminal_nothing_is_asked_nor_drawn() -> None:
    assert asked_way({"TERM": "dumb"}) is Way.TEXT
    if not (sys.__stdin__ and sys.__stdin__.isatty()):
        assert asked_way(KITTY) is Way.TEXT


PROGRAM = textwrap.dedent(
    """
    import os, sys
    from ds4tui.tui import graphics
    from PIL import Image
    way = graphics.asked_way({**os.environ})
    size = graphics.cells_of((400, 200), (40, 12), way)
    make = graphics.drawn(Image.new("RGB", (400, 200), "red"), size, way)
    print("WAY", way.name, size, type(make()).__mro__[1].__name__, flush=True)
    """
)


@pytest.mark.parametrize(
    ("kind", "answer", "expected"),
    [
        ("xterm-kitty", b"\x1b_Gi=31;OK\x1b\\\x1b[?62;c", b"WAY KITTY"),
        ("xterm-256color", b"\x1b[?62;4c", b"WAY SIXEL"),
    ],
)
def test_a_terminal_is_asked_once_and_the_library_asks_nothing(
    kind: str, answer: bytes, expected: bytes
) -> None:
    here, there = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TMUX")}
    environment |= {"TERM": kind, "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=there, stdout=there, stderr=there, env=environment, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    seen = b""
    try:
        while b"\x1b[c" not in seen:
            seen += os.read(here, 4096)
        os.write(here, answer)
        while b"WAY" not in seen or not seen.endswith(b"\n"):
            seen += os.read(here, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(there)
        os.close(here)
    assert expected in seen and seen.count(b"\x1b[c") == 1, seen


def test_sizes_in_cells_keep_the_shape_and_never_enlarge() -> None:
    assert cells_of((1280, 800), (48, 12), Way.BLOCKS) == (38, 12)
    assert cells_of((400, 20), (48, 12), Way.BLOCKS) == (48, 1)
    assert cells_of((8, 8), (48, 12), Way.BLOCKS) == (8, 4)
    assert cells_of((1, 9000), (48, 12), Way.BLOCKS) == (1, 12)


def test_half_blocks_hold_two_pixels_a_cell() -> None:
    image = Image.new("RGB", (2, 2), (1, 2, 3))
    image.putpixel((1, 1), (9, 8, 7))
    content = blocks(image)
    assert isinstance(content, Content) and content.plain == "▀▀"
    first, second = (span.style for span in content.spans)
    assert first.foreground.rgb == first.background.rgb == second.foreground.rgb == (1, 2, 3)
    assert second.background.rgb == (9, 8, 7)
    assert blocks(picture((4, 4))).plain == "▀▀▀▀\n▀▀▀▀"
    assert len(blocks(picture((40, 2))).spans) == 2  # runs of one colour are one


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """textual-image as a terminal of 10 x 20 pixels a cell has it, and what it writes there."""
    monkeypatch.setenv("TEXTUAL_CELL_WIDTH", "10")
    monkeypatch.setenv("TEXTUAL_CELL_HEIGHT", "20")
    graphics._import_silently((10, 20))
    written = io.StringIO()
    monkeypatch.setattr(sys, "__stdout__", written)
    return written


def stored() -> ConversationStore:
    store = ConversationStore.in_memory()
    made = store.create("before")
    image = Message("user", "what?", images=(messages.Image(png((400, 200)), 0, "shot.png"),))
    asked = store.add_message(made.id, None, image)
    store.set_leaf(made.id, store.add_message(made.id, asked, Message("assistant", "Yes.")))
    return store


async def test_kitty_gets_the_picture_and_placeholders_that_scroll(library: io.StringIO) -> None:
    async with running(seeing(), store=stored(), continue_last=True, way=Way.KITTY) as on:
        await on.until(lambda: "\U0010eeee" in on.screen_text())
        assert "\x1b_G" in library.getvalue() and "U=1" in library.getvalue()
        assert "shot.png 400x200 · 80 tokens" in on.screen_text()
        await on.press("ctrl+n")
        await on.until(lambda: "never computes" in on.screen_text())


async def test_a_terminal_that_is_gone_does_not_end_the_app_by_its_pictures(
    library: io.StringIO,
) -> None:
    library.close()
    async with running(seeing(), store=stored(), continue_last=True, way=Way.KITTY) as on:
        await on.until(lambda: on.chat.query("Kitty"))
        await on.type("still here")
        assert on.prompt.text == "still here"


async def test_sixel_is_drawn_at_the_size_of_its_cells(library: io.StringIO) -> None:
    async with running(seeing(), store=stored(), continue_last=True, way=Way.SIXEL) as on:
        await on.until(lambda: on.chat.query("Preview > Image"))
        await on.pilot.pause()
        [drawn] = on.chat.query("Preview > Image")
        assert (drawn.size.width, drawn.size.height) == (40, 10)
        strips = on.app.screen._compositor.render_strips(on.app.size)
        assert any("\x1bP" in segment.text for strip in strips for segment in strip)
    assert library.getvalue() == ""
