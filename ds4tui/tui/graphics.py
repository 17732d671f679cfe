"""Pixels in cells: how this terminal shows a picture, found out before the app runs.

Graphics of kitty and Sixel come from textual-image; half blocks are made here, off the loop, as
lines of `▀` in two colours. Importing textual-image asks the terminal with questions that some
terminals print and an answer that, late, is typed as keys: so it is imported with nothing to ask,
once our own question (`doctor/terminal.py`) was answered, and only for what needs it.
"""

import fcntl
import os
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from itertools import groupby
from typing import IO, Any, cast

import numpy as np
from PIL import Image
from textual.color import Color
from textual.content import Content, Span
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Static

from ds4tui.doctor.terminal import Answer, ask

CELL_PIXELS = (10, 20)  # of a terminal that does not tell: the VT340's


class Way(Enum):
    """How pictures are shown."""

    TEXT = "text"  # their names and sizes only
    BLOCKS = "half blocks"
    SIXEL = "sixel"
    KITTY = "kitty"


def way_of(environment: Mapping[str, str], answer: Answer | None) -> Way:
    """What this terminal can show, by what it says (`answer`, None: nothing) and is called."""
    kind, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("NO_COLOR") or kind in ("", "dumb", "linux"):
        return Way.TEXT
    # Others that know kitty's graphics lack the placeholders by which pictures scroll with text.
    has_placeholders = (
        "KITTY_WINDOW_ID" in environment or "kitty" in kind or "ghostty" in (kind + program).lower()
    )
    if answer is not None and answer.kitty and has_placeholders and "TMUX" not in environment:
        return Way.KITTY
    if answer is not None and answer.sixel:
        return Way.SIXEL
    is_true_colour = environment.get("COLORTERM") in ("truecolor", "24bit")
    return Way.BLOCKS if is_true_colour else Way.TEXT


def asked_way(environment: Mapping[str, str] = os.environ) -> Way:
    """Ask the terminal; for the main thread, before Textual reads from it."""
    if way_of(environment, Answer(kitty=True, sixel=True)) in (Way.TEXT, Way.BLOCKS):
        return way_of(environment, None)  # no answer would change it
    descriptor = sys.__stdin__.fileno() if sys.__stdin__ is not None else -1
    if not (os.isatty(descriptor) and sys.__stdout__ is not None and sys.__stdout__.isatty()):
        return Way.TEXT
    way = way_of(environment, ask(descriptor, environment)[0])
    if way in (Way.SIXEL, Way.KITTY):
        _import_silently(_cell_pixels(descriptor))
    return way


def cells_of(size: tuple[int, int], most: tuple[int, int], way: Way) -> tuple[int, int]:
    """(columns, rows) that a picture of `size` pixels takes within `most`; never enlarged."""
    wide, high = cell_pixels(way)
    shrink = min(1.0, most[0] * wide / size[0], most[1] * high / size[1])
    columns, rows = (
        round(side * shrink / cell) for side, cell in zip(size, (wide, high), strict=True)
    )
    return min(max(1, columns), most[0]), min(max(1, rows), most[1])


def cell_pixels(way: Way) -> tuple[int, int]:
    """(width, height) in pixels of what one cell shows."""
    if way is Way.BLOCKS:
        return 1, 2
    size = _library("_terminal").get_cell_size() if way is not Way.TEXT else CELL_PIXELS
    return size[0], size[1]


def drawn(picture: Image.Image, cells: tuple[int, int], way: Way) -> Callable[[], Widget]:
    """A maker of the widget that shows `picture` (mode RGB) in `cells`. Call this off the loop,
    and what it returns on it."""
    wide, high = cell_pixels(way)
    small = picture.resize((cells[0] * wide, cells[1] * high), Image.Resampling.BOX)
    if way is Way.BLOCKS:
        content = blocks(small)
        return lambda: _sized(Static(content), cells)
    kind = _SafeKitty.widget() if way is Way.KITTY else _library("widget").SixelImage
    return lambda: _sized(cast(Widget, kind(small)), cells)


def blocks(picture: Image.Image) -> Content:
    """`picture` (mode RGB, of even height) in half blocks: a pixel a half."""
    pixels = np.asarray(picture)
    lines = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        spans, at = [], 0
        for (above, below), run in groupby(zip(upper, lower, strict=True)):
            end = at + len(list(run))
            style = Style(foreground=Color(*above), background=Color(*below))
            spans.append(Span(at, end, style))
            at = end
        lines.append(Content("▀" * at, spans))
    return Content("\n").join(lines)


def _sized(widget: Widget, cells: tuple[int, int]) -> Widget:
    widget.styles.width, widget.styles.height = cells
    return widget


# -- textual-image -------------------------------------------------------------------------------


def _library(module: str) -> Any:
    return sys.modules[f"textual_image.{module}"]


class _NoTerminal:
    """Standard output for whoever would ask a terminal there."""

    def isatty(self) -> bool:
        return False


@contextmanager
def _nothing_to_ask() -> Iterator[None]:
    before = sys.__stdout__
    cast(Any, sys).__stdout__ = cast(IO[str], _NoTerminal())
    try:
        yield
    finally:
        cast(Any, sys).__stdout__ = before


def _import_silently(cell: tuple[int, int]) -> None:
    # The variables are the library's own, for terminals in web pages.
    names = ("TEXTUAL_CELL_WIDTH", "TEXTUAL_CELL_HEIGHT")
    for name, value in zip(names, cell, strict=True):
        os.environ.setdefault(name, str(value))
    with _nothing_to_ask():
        import textual_image.widget  # noqa: F401


def _cell_pixels(descriptor: int) -> tuple[int, int]:
    try:
        told = fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
    except OSError:
        return CELL_PIXELS
    rows, columns, width, height = struct.unpack("HHHH", told)
    if not (rows and columns and width >= columns and height >= rows):
        return CELL_PIXELS
    return width // columns, height // rows


class _SafeKitty:
    """The library's renderable writes to the terminal where Textual only asks for lines: on one
    that is gone that fails, and must not end the app before the conversation is stored."""

    _made: Any = None

    @classmethod
    def widget(cls) -> Any:
        if cls._made is None:
            tgp = _library("renderable.tgp").Image

            class Renderable(tgp):  # type: ignore[misc, valid-type]
                def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
                    try:
                        yield from super().__rich_console__(console, options)
                    except (OSError, ValueError):
                        return

                def cleanup(self) -> None:
                    try:
                        super().cleanup()
                    except (OSError, ValueError):
                        return

            class Kitty(_library("widget").TGPImage, Renderable=Renderable):  # type: ignore[misc, call-arg]
                pass

            cls._made = Kitty
        return cls._made
