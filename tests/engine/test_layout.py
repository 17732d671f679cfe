"""What the positions of a session are of."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import ImageSpan
from ds4tui.engine.layout import Run, layout
from tests.scale import scaled

ROLES = ("system", "user", "assistant", "tool")
TURNS = (
    Turn(0, 30, "system", b""),
    Turn(30, 80, "user", b""),
    Turn(80, 84, "opening", b""),
)


def picture(start: int, rows: int) -> ImageSpan:
    return ImageSpan(start, rows, b"f" * 16, (1,) * rows)


def test_the_reply_begins_with_its_opening() -> None:
    assert layout(TURNS, (), 100) == (
        Run("system", 0, 30), Run("user", 30, 80), Run("assistant", 80, 100),
    )  # fmt: skip


def test_pictures_lie_in_turns() -> None:
    assert layout(TURNS[:2], (picture(30, 10), picture(50, 30)), 80) == (
        Run("system", 0, 30), Run("image", 30, 40), Run("user", 40, 50), Run("image", 50, 80),
    )  # fmt: skip


def test_what_is_not_resident_is_left_out_and_a_text_has_no_turns() -> None:
    assert layout(TURNS, (picture(50, 30),), 40) == (Run("system", 0, 30), Run("user", 30, 40))
    assert layout((), (), 7) == (Run("text", 0, 7),)
    assert layout(TURNS, (), 0) == ()


@settings(max_examples=scaled(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ROLES), st.integers(1, 20)), max_size=8),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 8)), max_size=5),
    st.integers(0, 200),
)
def test_runs_cover_all_positions_once(
    turns: list[tuple[str, int]], pictures: list[tuple[int, int]], tokens: int
) -> None:
    outline, at = [], 0
    for role, length in turns:
        outline.append(Turn(at, at + length, role, b""))
        at += length
    images, start = [], 0
    for gap, rows in pictures:
        images.append(picture(start + gap, rows))
        start += gap + rows
    runs = layout(tuple(outline), images, tokens)
    assert [p for run in runs for p in range(run.start, run.end)] == list(range(tokens))
    in_picture = {p for i in images for p in range(i.start, min(i.start + i.rows, tokens))}
    # A picture that crosses a border is cut there, as nothing lays them out.
    shown = {p for run in runs if run.kind == "image" for p in range(run.start, run.end)}
    assert shown <= in_picture
