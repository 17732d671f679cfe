"""The widget of an answer: streamed text against the same text rendered at once, and its cost."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Offset, Region
from textual.selection import Selection
from textual.widgets import Static

from ds4tui.tui.markdown import AnswerMarkdown, LinkChosen
from ds4tui.tui.messages import Answer
from tests.scale import scaled
from tests.tui.test_markdown_lines import PIECES


class Page(App[None]):
    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.answer = AnswerMarkdown(text)
        self.links: list[str] = []

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.answer

    def on_link_chosen(self, event: LinkChosen) -> None:
        self.links.append(event.href)

    def lines(self) -> list[str]:
        return [s.text.rstrip() for s in self.screen._compositor.render_strips(self.size)]


async def shown(pieces: list[str], size: tuple[int, int] = (50, 150)) -> list[str]:
    app = Page()
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        for piece in pieces:
            app.answer.add(piece)
            await pilot.pause()
        app.answer.settle()
        await pilot.pause()
        return app.lines()


async def shown_at_once(text: str, size: tuple[int, int] = (50, 150)) -> list[str]:
    app = Page(text)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        return app.lines()


@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join), max_size=15)
)
@settings(max_examples=scaled(15), deadline=None)
async def test_any_stream_ends_as_the_whole_text_looks(pieces: list[str]) -> None:
    assert await shown(pieces) == await shown_at_once("".join(pieces))


async def test_a_resize_wraps_anew() -> None:
    app = Page("one two three four five six seven eight nine")
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        assert "nine" in app.lines()[0]
        await pilot.resize_terminal(20, 20)
        await pilot.pause()
        assert "nine" not in app.lines()[0] and "nine" in "".join(app.lines())


@pytest.fixture
def refreshed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[tuple[Region, ...], bool]]]:
    """What an answer asked to be drawn or laid out."""
    asked: list[tuple[tuple[Region, ...], bool]] = []
    real = AnswerMarkdown.refresh

    def watched(self: AnswerMarkdown, *regions: Region, layout: bool = False, **more: Any) -> Any:
        asked.append((regions, layout))
        return real(self, *regions, layout=layout, **more)

    monkeypatch.setattr(AnswerMarkdown, "refresh", watched)
    yield asked


async def test_words_on_the_same_line_ask_for_no_layout(
    refreshed: list[tuple[tuple[Region, ...], bool]],
) -> None:
    app = Page("first\n\nlast\n\none")
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        refreshed.clear()
        app.answer.add(" two")
        ((region,), is_layout) = refreshed.pop()
        assert not is_layout and region.y >= 1  # the first line is not drawn again
        await pilot.pause()
        assert "one two" in app.lines()[4]
        app.answer.add(" and many more words than can stand on one line of sixty cells")
        assert refreshed.pop()[1]
        await pilot.pause()
        assert "one two and many" in app.lines()[4]


async def test_an_answer_is_one_widget_and_a_settled_one_is_not_drawn_again(
    refreshed: list[tuple[tuple[Region, ...], bool]],
) -> None:
    app = Page("# H\n\n- a\n- b\n\n| a |\n|---|\n| 1 |\n")
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        assert not app.answer.children
        refreshed.clear()
        app.answer.settle()
        assert refreshed == []


async def test_the_text_of_a_selection_is_what_is_shown_without_padding() -> None:
    app = Page("some words\n\n```\na = 1\nb = 2\n```\n")
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        whole = app.answer.get_selection(Selection(None, None))
        assert whole == ("some words\n\n  a = 1\n  b = 2", "\n")
        part = Selection(Offset(5, 0), Offset(7, 2))
        app.screen.selections = {app.answer: part}
        await pilot.pause()
        assert app.answer.get_selection(part) == ("words\n\n  a = 1", "\n")
        marked = app.answer.render_line(0)
        styles = {str(segment.style.bgcolor) for segment in marked if segment.style}
        assert len(styles) == 2  # the chosen part stands out


async def test_a_click_on_a_link_tells_its_address_alone() -> None:
    app = Page("see [this](https://example.org/x?a=%22) now")
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        await pilot.click(AnswerMarkdown, offset=(2 + 5, 0))
        await pilot.pause()
        assert app.links == ['https://example.org/x?a="']
        await pilot.click(AnswerMarkdown, offset=(2 + 1, 0))
        await pilot.pause()
        assert len(app.links) == 1


async def test_a_renderer_that_fails_costs_the_markdown_and_not_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnePage(App[None]):
        def compose(self) -> ComposeResult:
            yield Answer()

    app = OnePage()
    async with app.run_test() as pilot:
        answer = app.query_one(Answer)
        await answer.add_text("first ")

        def broken(text: str) -> None:
            raise IndexError("the renderer")

        monkeypatch.setattr(answer._body, "add", broken)
        await answer.add_text("second ")
        await answer.add_text("[/third]")
        await answer.settle("footer")
        await pilot.pause()
        assert not answer.is_rich and answer.text == "first second [/third]"
        assert str(answer.query(".plain").first(Static).content) == answer.text
