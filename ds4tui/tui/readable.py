"""Text that can be read in every theme: colours that are too near to what is behind them are moved
away from it, as far as WCAG's 4.5:1 and no further.

Themes choose their accents for looks, and some of their muted texts and highlighted code have less
than 2:1. What is drawn (bars, borders) stays as the theme has it, and so do the terminal's own
colours, of which nobody here knows what they look like.
"""

from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

ENOUGH = 4.5  # to 1, of the brighter to the darker
BLACK, WHITE = Color(0, 0, 0), Color(255, 255, 255)
_STEPS = 32  # between a colour and black or white


class Readable(LineFilter):
    """After all other filters of an app."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [_readable(segment) for segment in segments]


READABLE = Readable()  # one for all: strips remember what it made of them


def _readable(segment: Segment) -> Segment:
    text, style, control = segment
    if style is None or control is not None:
        return segment
    better = readable_style(style)
    if better is style or not any(character.isalnum() for character in text):
        return segment
    return Segment(text, better, None)


@lru_cache(4096)
def readable_style(style: Style) -> Style:
    """`style` itself, or with its text's colour moved."""
    front, behind = style.color, style.bgcolor
    if front is None or behind is None or front.triplet is None or behind.triplet is None:
        return style
    colour, on = Color.from_rich_color(front), Color.from_rich_color(behind)
    if style.reverse:
        moved = readable(on, colour)
        return style if moved == on else style + Style.from_color(bgcolor=moved.rich_color)
    moved = readable(colour, on)
    return style if moved == colour else style + Style.from_color(moved.rich_color)


def readable(colour: Color, on: Color) -> Color:
    """`colour`, or the nearest on its way to black or white that is ENOUGH apart from `on`."""
    if contrast(colour, on) >= ENOUGH:
        return colour
    away = max(BLACK, WHITE, key=lambda end: contrast(end, on))
    ways = (colour.blend(away, step / _STEPS) for step in range(1, _STEPS))
    return next((each for each in ways if contrast(each, on) >= ENOUGH), away)


def contrast(one: Color, other: Color) -> float:
    """WCAG's ratio, from 1 to 21."""
    darker, brighter = sorted((_luminance(one), _luminance(other)))
    return (brighter + 0.05) / (darker + 0.05)


def _luminance(colour: Color) -> float:
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in colour.normalized
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
