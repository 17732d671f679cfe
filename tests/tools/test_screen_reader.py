"""The parts of tools/screen_reader that need neither torch nor its fonts: truth, rows, scores."""

import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFont

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import VisionConfig
from tests.golden.files import projector_path
from tests.scale import scaled
from tools.screen_reader import canvas, keys, pages, text
from tools.screen_reader.canvas import CELLS, PATCH, SIDE, UNSURE, Canvas, Text
from tools.screen_reader.faces import SEEN, Faces, Font
from tools.screen_reader.prompts import IGNORE, ROW, sample_row
from tools.screen_reader.scoring import edit_distance, question_kind, score

WHITE, BLACK = (255, 255, 255), (0, 0, 0)


class Words:
    """A tokenizer whose tokens are words with the space before them; ids are code sums."""

    def encode(self, line: str, add_special_tokens: bool = True) -> SimpleNamespace:
        offsets, start = [], 0
        for i in range(1, len(line) + 1):
            if i == len(line) or (line[i] == " " and line[i - 1] != " "):
                offsets.append((start, i))
                start = i
        return SimpleNamespace(ids=[sum(map(ord, line[a:b])) for a, b in offsets], offsets=offsets)


def default_font(size_px: int = 20) -> Font:
    face = ImageFont.load_default(size_px)
    assert isinstance(face, ImageFont.FreeTypeFont)
    return Font(face, size_px)


def drawn(line: str, x: float, y: float) -> tuple[Image.Image, canvas.Truth]:
    c = Canvas(random.Random(1), 0.5, SEEN)
    c.text(x, y, line, default_font(), BLACK)
    return canvas.draw(c, SIDE, SIDE, WHITE, Words())


def test_truth_spells_the_line_and_lies_where_the_ink_is() -> None:
    tries = (drawn("WMW MWM", 40 + shift / 2, 81) for shift in range(64))
    image, truth = next(z for z in tries if not (z[1].characters == UNSURE).any())
    rows = np.flatnonzero(truth.characters.any((1, 2)))
    assert len(rows) == 1
    row = truth.characters[rows[0]]
    assert "".join(chr(code + 31) for code in row.ravel() if code) == "WMWMWM"
    dark = np.asarray(image.convert("L")) < 128
    for column in np.flatnonzero(row.any(1)):
        top, left = rows[0] * PATCH, column * PATCH
        assert dark[top : top + PATCH, left : left + PATCH].any()


def test_a_centre_on_a_border_leaves_both_patches_out() -> None:
    font = default_font()
    characters = np.zeros((32, 32, 3), np.uint8)
    line = Text(4 * PATCH - font.advance("H") / 2, 0, "H", font, BLACK)
    canvas.mark_characters(characters, line, 100.0, 1.0)
    assert (characters[6, 3:5] == UNSURE).all()
    assert not characters[6, 5:].any()


def test_tokens_stand_in_the_cell_where_they_start() -> None:
    _, truth = drawn("one two", 70, 100)
    font, cells = default_font(), truth.tokens.reshape(CELLS, CELLS)
    at = {int(i): (row, column) for (row, column), i in np.ndenumerate(cells) if i >= 0}
    first, second = sum(map(ord, "one")), sum(map(ord, " two"))
    assert at[first] == (3, int((70 + font.advance("o") / 2) // 32))
    assert at[second] == (3, int((70 + font.width("one ") + font.advance("t") / 2) // 32))


def test_tokens_of_one_cell_move_to_the_next_free_ones() -> None:
    _, truth = drawn("i i i", 33, 100)
    row = truth.tokens.reshape(CELLS, CELLS)[3]
    assert [int(i) for i in row if i >= 0] == [ord("i"), ord("i") + 32, ord("i") + 32]
    assert (row[1:4] >= 0).all()


@settings(max_examples=scaled(15), deadline=None)
@given(st.integers(30, 900), st.integers(30, 400))
def test_preprocessing_always_gives_the_square(width: int, height: int) -> None:
    assert canvas.preprocess(Image.new("RGB", (width, height))).size == (SIDE, SIDE)


def test_preprocessing_stretches_and_keeps_places() -> None:
    picture = Image.new("RGB", (400, 100), WHITE)
    picture.paste(BLACK, (200, 50, 400, 100))
    dark = np.asarray(canvas.preprocess(picture).convert("L")) < 128
    assert dark[300:, 300:].all()
    assert not dark[:200].any()
    assert not dark[:, :200].any()


def test_a_page_is_full_of_characters_and_the_same_for_the_same_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text, "words", lambda: ["alpha", "beta", "gamma", "delta"])
    monkeypatch.setattr(pages, "font", lambda name, px: default_font(px))
    faces = Faces(["a"], ["b"], [])
    made = [pages.page(random.Random(3), faces, Words()) for _ in range(2)]
    assert (np.asarray(made[0].image) == np.asarray(made[1].image)).all()
    letters = made[0].truth.characters
    assert ((letters > 0) & (letters < UNSURE)).sum() > 60


def test_a_row_learns_the_answers_and_nothing_else() -> None:
    row = sample_row(random.Random(1), Words(), [("Which word?", "blue", 1.0)], 1)
    assert row is not None
    learnt = row[1][row[1] != IGNORE]
    assert list(learnt) == Words().encode("blue<|im_end|>").ids
    at = np.flatnonzero(row[1] != IGNORE)
    assert (row[0, at] == learnt).all()
    assert row.shape == (2, ROW)


def test_an_answer_too_long_for_a_row_is_left_out() -> None:
    long = " ".join(["word"] * (ROW + 1))
    assert sample_row(random.Random(1), Words(), [("Which?", long, 1.0)], 1) is None


@settings(max_examples=scaled(50), deadline=None)
@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_edit_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert edit_distance(a, a) == 0
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)
    assert abs(len(a) - len(b)) <= edit_distance(a, b) <= max(len(a), len(b))


def test_edit_distance_of_known_pairs() -> None:
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == 3


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("What does line 2 say?", "line"),
        ("What does the error say?", "error"),
        ("Which button is highlighted?", "button"),
        ("Which buttons are there?", "buttons"),
        ("What does this screenshot say?", "transcribe"),
        ("What is this a screenshot of?", "kind"),
        ("Is Wi-Fi on or off?", "onoff"),
    ],
)
def test_questions_are_grouped_by_what_they_ask_for(question: str, kind: str) -> None:
    assert question_kind(question) == kind


def test_scores_cap_each_answer_at_its_length() -> None:
    asked = [("What is the error?", "abcd", "log"), ("What is the error?", "xy", "log")]
    scores = score(asked, ["abcd ", "q" * 50])
    assert scores["ALL"] == {"n": 2, "exact": 0.5, "cer": round((1 + 2) / 6, 4)}
    assert scores["error"]["n"] == scores["kind:log"]["n"] == 2


def test_an_mmproj_gets_the_keys_of_its_own_tokens(tmp_path: Path) -> None:
    source, target = projector_path("idefics3"), tmp_path / "copy.gguf"
    keys.copy(source, target)
    with GGUFFile.open(source) as before, GGUFFile.open(target) as after:
        config = VisionConfig.of(after)
        assert (config.opening_ids, config.closing_ids) == ((1116, 5, 6), (5,))
        assert set(after.metadata) == set(before.metadata) | set(keys.OWN_KEYS)
        for key, value in before.metadata.items():
            np.testing.assert_array_equal(after.metadata[key], value)
        assert list(before.tensors) == list(after.tensors)
        for name in before.tensors:
            np.testing.assert_array_equal(before.raw(name), after.raw(name))
