"""Labels: what they say, and the way from a prompt's text to a question and back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Image, Message
from ds4tui.tui.labels import Mention, beside, mention_before, widened
from ds4tui.tui.shelf import Shelf, Shelved, label_name
from tests.pictures.samples import animated_gif, png
from tests.scale import scaled

SHOT = Image(png((1280, 800)), 0, "shot.png")


def shelf(tokens: int | None = 64) -> Shelf:
    made = Shelf()
    made.tokens_of = lambda size: tokens
    return made


def test_a_label_says_name_size_and_cost() -> None:
    assert shelf().label(Shelved(SHOT, (1280, 800))) == "[shot.png 1280x800 · 64 tokens]"
    assert shelf(None).label(Shelved(SHOT, (1280, 800))) == "[shot.png 1280x800]"
    assert shelf().label(Shelved(SHOT, None)) == "[shot.png]"
    loop = Shelved(Image(animated_gif(), 0, "loop.gif"), (8, 8), "first of 3 frames")
    assert shelf().label(loop) == "[loop.gif 8x8, first of 3 frames · 64 tokens]"


def test_two_pictures_never_have_one_label_and_one_picture_has_one() -> None:
    on = shelf()
    other = Image(png((1280, 800))[:-4] + b"anew", 0, "shot.png")
    first, second = on.label(Shelved(SHOT, (1280, 800))), on.label(Shelved(other, (1280, 800)))
    assert (first, second) == (
        "[shot.png 1280x800 · 64 tokens]",
        "[shot.png (2) 1280x800 · 64 tokens]",
    )
    assert on.label(Shelved(SHOT, (1280, 800))) == first
    assert [image.digest for image in on.parted(f"{second} {first}").images] == [
        other.digest,
        SHOT.digest,
    ]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a[1].png", "a(1).png"),
        ("two\nlines\x1b[31m.png", "two lines␛(31m.png"),
        ("", "picture"),
        ("x" * 60 + ".png", "x" * 27 + "…" + "x" * 8 + ".png"),
    ],
)
def test_names_are_short_and_on_one_line(name: str, shown: str) -> None:
    assert label_name(name) == shown


def test_a_prompt_becomes_a_question_with_pictures_in_their_places() -> None:
    on = shelf()
    label = on.label(Shelved(SHOT, (1280, 800)))
    question = on.parted(f"What is {label} and {label}{label} here?")
    assert question.text == "What is and here?"
    assert [image.at for image in question.images] == [8, 12, 12]
    assert on.parted("[no label] [") == Message("user", "[no label] [")
    assert on.parted(f"{label} What?").text == "What?"


PIECES = st.lists(st.one_of(st.text(max_size=8), st.sampled_from([1, 2])), max_size=8)


@given(PIECES)
@settings(max_examples=scaled(150))
def test_what_is_sent_comes_back_as_the_same_question(pieces: list[str | int]) -> None:
    on = shelf()
    images = {1: SHOT, 2: Image(png((30, 20)), 0, "b.png")}
    labels = {key: on.label(Shelved(image, (1, 1))) for key, image in images.items()}
    text = "".join(labels[p] + " " if isinstance(p, int) else p for p in pieces)
    question = on.parted(text)
    assert question.text == "".join(p for p in pieces if isinstance(p, str))
    again = on.parted(on.joined(question))
    assert again == question and [i.name for i in again.images] == [i.name for i in question.images]


def test_another_model_relabels_and_old_labels_still_stand_for_their_pictures() -> None:
    on = shelf()
    text = f"x {on.label(Shelved(SHOT, (1280, 800)))} y"
    on.tokens_of = lambda size: 1088
    [(old, new)] = on.relabelled(text)
    assert new == "[shot.png 1280x800 · 1,088 tokens]"
    assert on.parted(text).images == on.parted(text.replace(old, new)).images == (SHOT.moved(2),)
    assert list(on.relabelled(text.replace(old, new))) == []


def test_what_no_text_holds_is_forgotten() -> None:
    on = shelf()
    label = on.label(Shelved(SHOT, (1280, 800)))
    on.keep_only([f"a {label}", "b"])
    assert on.found(label)
    on.keep_only(["b"])
    assert not on.found(label)


LINE = "ab [x] cd"  # the unit is columns 3 to 7: the label and its space


def find(line: str) -> list[tuple[int, int]]:
    at = line.find("[x]")
    return [(at, at + 4)] if at >= 0 else []


@pytest.mark.parametrize(
    ("top", "bottom", "expected"),
    [
        ((0, 6), (0, 7), ((0, 3), (0, 7))),  # backspace behind it
        ((0, 3), (0, 4), ((0, 3), (0, 7))),  # delete before it
        ((0, 0), (0, 5), ((0, 0), (0, 7))),
        ((0, 5), (0, 9), ((0, 3), (0, 9))),
        ((0, 7), (0, 8), ((0, 7), (0, 8))),
        ((0, 3), (0, 3), ((0, 3), (0, 3))),
        ((0, 5), (0, 5), ((0, 7), (0, 7))),  # typed inside
        ((0, 5), (1, 4), ((0, 3), (1, 7))),
    ],
)
def test_changes_take_a_label_whole(
    top: tuple[int, int], bottom: tuple[int, int], expected: object
) -> None:
    assert widened([LINE, LINE], top, bottom, find) == expected


PARTS = st.lists(st.sampled_from(["[x]", "[x] ", "a", " ", "bc", "\n"]), max_size=12)


@given(PARTS, st.data())
@settings(max_examples=scaled(200))
def test_no_change_tears_a_label(parts: list[str], data: st.DataObject) -> None:
    def units(line: str) -> list[tuple[int, int]]:
        return [(m.start(), m.end()) for m in re.finditer(r"\[x\] ?", line)]

    lines = "".join(parts).split("\n")
    places = []
    for _ in range(2):
        row = data.draw(st.integers(0, len(lines) - 1))
        places.append((row, data.draw(st.integers(0, len(lines[row])))))
    top, bottom = min(places), max(places)
    (row, column), (last, end) = widened(lines, top, bottom, units)
    assert (row, column) <= top or top == bottom
    before = "\n".join([*lines[:row], lines[row][:column]])
    after = "\n".join([lines[last][end:], *lines[last + 1 :]])
    assert not set("[]") & set((before + "." + after).replace("[x]", ""))


def test_a_cursor_is_never_inside_a_label() -> None:
    assert beside([LINE], (0, 6), (0, 7), find) == (0, 3)  # left
    assert beside([LINE], (0, 4), (0, 3), find) == (0, 7)  # right
    assert beside([LINE], (0, 2), (0, 3), find) == (0, 2)
    assert beside([LINE], (9, 2), (0, 3), find) == (9, 2)


@pytest.mark.parametrize(
    ("before", "mention"),
    [
        ("see @sho", Mention(4, "sho")),
        ("@", Mention(1, "")),
        ('@"two wor', Mention(9, "two wor")),
        ("@two\\ wor", Mention(9, "two wor")),
        ("me@home", None),
        ("@done and", None),
        ('@"done.png"', None),
    ],
)
def test_the_path_that_is_typed(before: str, mention: Mention | None) -> None:
    assert mention_before(before) == mention
