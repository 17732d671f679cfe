"""Markdown as lines: what they say, how wide they are, and that growing text ends as the whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content
from textual.highlight import ANSIDarkHighlightTheme

from ds4tui.tui.markdown_lines import GrowingLines, markdown_lines
from ds4tui.tui.terminal_text import harmless
from tests.scale import scaled

PIECES = (
    "| a | b |\n", "|---|---|\n", "| 1 | [/2] |\n", "|", "\n", "\n\n", "- item\n", "  - nested\n",
    "1. one\n", "9) nine\n", "> quote\n", ">> deeper\n", "```python\n", "```", "    code\n",
    "# H\n", "## H2 *x*\n", "words ", "**bo", "ld**", "`co", "de`", "[l](http://x)", "![i](u)",
    "<div>", "&amp;", "---\n", "\t", "~~s~~", "[x]: http://y\n", "===\n", "\\", "🌍", "\u2028",
    "<!-- c -->", "~~~\n", "\x1b[2J", "[/bold]", "日本語の文", "> - ", "  1. ", "x" * 90,
)  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30)


def plain(text: str, width: int = 40) -> list[str]:
    return [line.plain.rstrip() for line in markdown_lines(text, width)]


def styles_of(line: Content) -> set[str]:
    return {str(span.style) for span in line.spans}


@given(TEXTS, st.integers(8, 60))
@settings(max_examples=scaled(60), deadline=None)
def test_no_line_is_wider_than_there_is_room_however_deep_it_stands(
    pieces: list[str], width: int
) -> None:
    text = harmless("".join(pieces))
    deep = 2 * text.count(">") + 3 * (text.count("- ") + text.count("1. ") + text.count("9)"))
    for line in markdown_lines(text, width):
        assert line.cell_length <= max(width, 8 + deep)


@given(TEXTS)
@settings(max_examples=scaled(60), deadline=None)
def test_growing_text_keeps_its_lines_before_the_first_that_changed(pieces: list[str]) -> None:
    growing = GrowingLines(40)
    for piece in pieces:
        before = [line.plain for line in growing.lines]
        first = growing.add(harmless(piece))
        assert [line.plain for line in growing.lines][:first] == before[:first]


WHOLE = """# Title

Some *words* and **more** of them that take a second line.

1. one
2. two
   - deeper

   ```python
   def f(x):
       return x
   ```

10. ten

> quoted
> > twice

| a | b |
|---|---|
| 1 | 2 |

```python
print("a")

print("b")
```

The end.
"""


@pytest.mark.parametrize("step", [1, 3, 7, 40])
def test_a_usual_answer_reads_the_same_however_it_came(step: int) -> None:
    growing = GrowingLines(40)
    for begin in range(0, len(WHOLE), step):
        growing.add(WHOLE[begin : begin + step])
    whole = markdown_lines(WHOLE, 40)
    assert [line.plain for line in growing.lines] == [line.plain for line in whole]
    assert all(map(Content.is_same, growing.lines, whole))


def test_only_the_last_block_is_read_again() -> None:
    growing = GrowingLines(40)
    growing.add("one\n\ntwo\n\nthree")
    assert growing.add(" more") == 1  # two may still go on where the last line is not whole
    growing.add("\n\nfour\n\nfive\n")
    assert growing.add("six") >= 6


def test_lists_number_nest_and_hang() -> None:
    assert plain("9. nine\n10. ten words that go on\n    - deep\n", 16) == [
        " 9. nine",
        "10. ten words",
        "    that go on",
        "    ▪ deep",
    ]
    assert plain("- a\n\n  b\n- c\n") == ["• a", "", "  b", "• c"]


def test_blocks_are_parted_by_one_empty_line() -> None:
    assert plain("# H\ntext\n\n---\n> q\n", 6 + 2) == ["H", "", "text", "", "─" * 8, "", "▌ q"]


def test_code_is_coloured_and_folded_and_never_read_as_markup() -> None:
    lines = markdown_lines('```python\nx = "[/b]"  # ' + "y" * 40 + "\n```\n", 30)
    assert len(lines) == 3 and {line.cell_length for line in lines} == {30}
    assert 'x = "[/b]"' in lines[0].plain
    assert len(styles_of(lines[0])) > 2
    ansi = markdown_lines("```python\nx = 1  # c\n```\n", 30, ANSIDarkHighlightTheme)
    assert any("ansi" in style or "dim" in style for style in styles_of(ansi[0]))


def test_a_table_fits_and_its_widest_column_gives_way() -> None:
    text = "| name | what it is |\n|---|---|\n| a | " + "word " * 12 + "|\n| longer | x |\n"
    lines = plain(text, 30)
    assert lines[0].split("│")[0].strip() == "name" and "─┼─" in lines[1]
    assert len(lines) > 4 and max(map(len, lines)) <= 30
    assert sum(line.count("word") for line in lines) == 12
    assert plain("| a |\n|---|\n") == ["a", "─"]


def test_words_have_their_styles_and_links_an_action() -> None:
    (line,) = markdown_lines("*a* **b** ~~c~~ `d` [e](http://x'y) ![f](g)\n", 60)
    assert line.plain == "a b c d e 🖼 f"
    styles = styles_of(line)
    assert {"italic", "bold", "strike", "$text-warning"} <= styles
    metas = [span.style.meta for span in line.spans if not isinstance(span.style, str)]
    assert {"@click": 'link("http://x\'y")'} in metas


def test_raw_html_and_link_definitions_are_not_swallowed() -> None:
    text = "\n".join(plain("<script>alert(1)</script>\n\n[x]: http://example.org\n"))
    assert "<script>alert(1)</script>" in text and "[x]: http://example.org" in text


def test_nothing_has_no_lines() -> None:
    assert markdown_lines("", 20) == [] and markdown_lines(" \n\n", 20) == []
