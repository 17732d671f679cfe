"""Streamed Markdown against the same text rendered at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from ds4tui.tui import markdown
from ds4tui.tui.markdown import AnswerMarkdown
from ds4tui.tui.messages import Answer
from tests.scale import scaled

PIECES = (
    "| a | b |\n", "|---|---|\n", "| 1 | [/2] |\n", "|", "\n", "\n\n", "- item\n", "  - nested\n",
    "1. one\n", "9) nine\n", "> quote\n", ">> deeper\n", "```python\n", "```", "    code\n",
    "# H\n", "## H2 *x*\n", "words ", "**bo", "ld**", "`co", "de`", "[l](http://x)", "![i](u)",
    "<div>", "&amp;", "---\n", "\t", "~~s~~", "[x]: http://y\n", "===\n", "\\", "🌍", "\u2028",
    "<!-- c -->", "~~~\n", "\x1b[2J", "[/bold]",
)  # fmt: skip


class Page(App[None]):
    def __init__(self, text: str = "") -> None:
        super().__init__()
        self.answer = AnswerMarkdown(text)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.answer

    def lines(self) -> list[str]:
        return [s.text.rstrip() for s in self.screen._compositor.render_strips(self.size)]


async def shown(pieces: list[str], size: tuple[int, int] = (50, 150)) -> list[str]:
    app = Page()
    async with app.run_test(size=size) as pilot:
        for piece in pieces:
            await app.answer.add(piece)
        await app.answer.settle()
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


async def test_numbers_that_get_a_digit_more_move_all_items() -> None:
    pieces = ["8) eight\n", "9) nine\n", "10) ten\n"]
    assert await shown(pieces) == await shown_at_once("".join(pieces))
    assert await shown(pieces[1:2] * 2) == await shown_at_once(pieces[1] * 2)


LISTS = "Points:\n\n- one of *them*\n- two\n- three\n\nSteps:\n\n" + "".join(
    f"{n}. step number {n}\n" for n in range(1, 13)
)


@pytest.mark.parametrize("step", [3, 11])
async def test_lists_grow_without_being_made_anew(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_anew: list[str] = []
    grown: list[bool] = []
    real = markdown._grow_list

    async def watched(old: object, new: object) -> bool:
        grown.append(await real(old, new))  # type: ignore[arg-type]
        return grown[-1]

    monkeypatch.setattr(markdown, "_grow_list", watched)
    monkeypatch.setattr(markdown.log, "debug", lambda *words: made_anew.append(words[0]))
    pieces = [LISTS[i : i + step] for i in range(0, len(LISTS), step)]
    assert await shown(pieces) == await shown_at_once(LISTS)
    assert sum(grown) > 10 and not made_anew


async def test_words_on_the_same_line_ask_for_no_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Page()
    layouts: list[bool] = []
    async with app.run_test(size=(60, 20)) as pilot:
        await app.answer.add("one")
        await pilot.pause()
        paragraph = app.answer.query("MarkdownParagraph").first()
        real = paragraph.refresh

        def watched(*regions: object, layout: bool = False, **more: bool) -> object:
            layouts.append(layout)
            return real(layout=layout, **more)

        monkeypatch.setattr(paragraph, "refresh", watched)
        await app.answer.add(" two")
        await pilot.pause()
        assert layouts and not any(layouts)
        layouts.clear()
        await app.answer.add(" and many more words than can stand on one line of sixty cells")
        await pilot.pause()
        assert any(layouts)
        assert "one two and many" in app.lines()[0]


async def test_raw_html_and_link_definitions_are_not_swallowed() -> None:
    lines = await shown_at_once("<script>alert(1)</script>\n\n[x]: http://example.org\n")
    text = "\n".join(lines)
    assert "<script>alert(1)</script>" in text and "[x]: http://example.org" in text


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

        monkeypatch.setattr(answer._body, "append", broken)
        await answer.add_text("second ")
        await answer.add_text("[/third]")
        await answer.settle("footer")
        await pilot.pause()
        assert not answer.is_rich and answer.text == "first second [/third]"
        assert str(answer.query(".plain").first(Static).content) == answer.text
