"""What is written can be read: in every theme, without colours, in the terminal's own."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.segment import Segment
from rich.style import Style
from textual.color import Color

from ds4tui.tui.readable import ENOUGH, Readable, contrast, readable
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running

COLOURS = st.builds(Color, *[st.integers(0, 255)] * 3)
REPLY = (
    "Hello **you**, `code`, [a link](http://x.y).\n\n> a quote\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    "```python\ndef f(x): return 'text'  # comment\n```\n\n# Head\n"
)


@given(COLOURS, COLOURS)
def test_any_two_colours_are_told_apart(colour: Color, on: Color) -> None:
    moved = readable(colour, on)
    assert contrast(moved, on) >= ENOUGH
    if contrast(colour, on) >= ENOUGH:
        assert moved == colour


def test_the_ratio_is_wcags() -> None:
    black, white, grey = Color(0, 0, 0), Color(255, 255, 255), Color(118, 118, 118)
    assert contrast(black, white) == contrast(white, black) == pytest.approx(21)
    assert contrast(grey, white) == pytest.approx(4.54, abs=0.01)


def test_drawings_and_own_colours_of_the_terminal_stay() -> None:
    pale = Style.parse("#fea62b on #e0e0e0")
    own, plain = Style.parse("yellow on default"), Segment("text")
    drawn = Segment("━━╾──", pale)
    segments = [drawn, Segment("text", own), plain, Segment("text", pale)]
    *same, moved = Readable().apply(segments, Color(0, 0, 0))
    assert same == segments[:-1]
    assert moved.style is not None and moved.style.color != pale.color
    assert moved.style.bgcolor == pale.bgcolor


def test_text_in_reverse_is_moved_on_its_own_ground() -> None:
    (moved,) = Readable().apply(
        [Segment("x", Style.parse("reverse #fea62b on #e0e0e0"))], Color(0, 0, 0)
    )
    assert moved.style is not None and moved.style.color == Style.parse("#fea62b").color
    assert moved.style.bgcolor != Style.parse("on #e0e0e0").bgcolor


def written(on: Driver) -> Iterator[tuple[str, Style]]:
    for strip in on.app.screen._compositor.render_strips(on.app.size):
        for segment in strip:
            if segment.style is not None and any(c.isalnum() for c in segment.text):
                yield segment.text, segment.style


def grounds(on: Driver) -> set[object]:
    return {style.bgcolor for _, style in written(on)}


def unreadable(on: Driver) -> list[tuple[str, str]]:
    found = []
    for text, style in written(on):
        front, behind = style.color, style.bgcolor
        assert front is not None and behind is not None
        if contrast(Color.from_rich_color(front), Color.from_rich_color(behind)) < ENOUGH:
            found.append((text, str(style)))
    return found


async def shown(on: Driver) -> None:
    """A conversation and two panels with something in them."""
    for question in ("one", "two"):
        await on.ask(question)
        await on.answered()
    await on.press("f3")
    await on.until(lambda: "decode" in on.screen_text() and "Last decision" in on.screen_text())


async def test_all_text_has_contrast_in_every_theme() -> None:
    async with running(FakeAssistant(REPLY), size=(140, 50)) as on:
        await shown(on)
        count = 0
        for name, theme in on.app.available_themes.items():
            if theme.ansi:
                continue
            on.app.theme = name
            ground = Color.parse(on.app.get_css_variables()["background"]).rich_color
            await on.until(lambda: ground in grounds(on), f"{name} is drawn")  # noqa: B023
            await on.until(lambda: not unreadable(on), f"all of {name} can be read")
            count += 1
        assert count >= 15 and len(list(written(on))) > 50


@pytest.mark.parametrize("theme", ["ansi-dark", "ansi-light"])
async def test_the_terminals_own_colours_stand_on_its_own_ground(theme: str) -> None:
    async with running(FakeAssistant(REPLY), size=(140, 50), theme=theme) as on:
        await shown(on)
        texts = list(written(on))
        assert len(texts) > 50
        for text, style in texts:
            front, behind = style.color, style.bgcolor
            assert front is not None and behind is not None, text
            assert front != behind or front.is_default or style.reverse, text
            assert behind.is_default or style.reverse or front.is_default, text


async def test_without_colours_there_are_greys_that_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(FakeAssistant(REPLY), size=(140, 50), theme="textual-light") as on:
        await shown(on)
        await on.until(lambda: not unreadable(on))
        for text, style in written(on):
            assert style.color is not None and style.color.triplet is not None
            assert len(set(style.color.triplet)) == 1, text
