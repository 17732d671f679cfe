"""Where a picture's rows stand, what they are, and which positions they take."""

import numpy as np
import pytest

from ds4tui.cache.timeline import Timeline
from ds4tui.engine.vision.layout import ImageBlock, block, pieces, row_ids
from ds4tui.engine.vision.preprocess import Shape
from tests.engine.vision.pictures import GEMMA3, IDEFICS3, QWEN, TILED


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def test_tiles_stand_in_lines_before_the_overview() -> None:
    """Text of `Idefics3Processor` for two rows of two tiles."""
    fake = "<fake_token_around_image>"
    assert pieces(TILED, Shape((9, 9), 5, (2, 2))) == (
        f"{fake}<row_1_col_1>",
        16,
        f"{fake}<row_1_col_2>",
        16,
        f"\n{fake}<row_2_col_1>",
        16,
        f"{fake}<row_2_col_2>",
        16,
        f"\n\n{fake}<global-img>",
        16,
        fake,
    )
    assert pieces(IDEFICS3, Shape((9, 9), 1, (0, 0))) == (f"{fake}<global-img>", 16, fake)


def test_a_picture_of_gemma_stands_between_blank_lines_and_is_seen_whole() -> None:
    made = block(GEMMA3, Shape((9, 9), 1, (0, 0)), bytes_of, 7)
    assert made.around == "\n\n"
    opening = bytes_of("<start_of_image>")
    assert made.token_ids[: len(opening) + 1] == (*opening, 7)
    assert made.is_vector.sum() == 36 and made.advance == made.rows
    sight, first = made.sight(), len(opening)
    assert (sight[first : first + 36] == first + 36).all()
    others = np.r_[:first, first + 36 : made.rows]
    assert (sight[others] == others + 1).all()


def test_tiles_are_not_seen_whole() -> None:
    made = block(TILED, Shape((9, 9), 5, (2, 2)), bytes_of, 7)
    assert (made.sight() == np.arange(1, made.rows + 1)).all()


def test_positions_of_qwen_count_rows_and_columns() -> None:
    """By hand, as get_rope_index of transformers has it for 2 rows of 3."""
    made = block(QWEN, Shape((9, 9), 1, (2, 3)), lambda text: [1], 7)
    assert made.token_ids == (1, 7, 7, 7, 7, 7, 7, 1)
    assert made.positions is not None
    assert made.positions.tolist() == [
        [0, 1, 1, 1, 1, 1, 1, 4],
        [0, 1, 1, 1, 2, 2, 2, 4],
        [0, 1, 2, 3, 1, 2, 3, 4],
    ]
    assert made.advance == 5


def test_ids_of_rows_are_negative_and_of_one_picture() -> None:
    one, other = row_ids(b"a" * 16, 300), row_ids(b"b" * 16, 300)
    assert (one < 0).all() and len(set(one.tolist()) | set(other.tolist())) == 600
    assert np.array_equal(one, row_ids(b"a" * 16, 300))
    assert np.array_equal(one[:10], row_ids(b"a" * 16, 10))


@pytest.mark.parametrize("start", [0, 5])
def test_a_timeline_takes_a_block(start: int) -> None:
    made = ImageBlock((4, -1, -1, 4), np.array([False, True, True, False]), 4)
    span, ids = made.span(start, b"f" * 16), row_ids(b"f" * 16, 4)
    timeline = Timeline.of([*range(start), *ids.tolist(), 9], (span,))
    assert timeline.spans[0].end == start + 4
    assert timeline.snapped(start + 2) == start
