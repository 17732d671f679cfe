"""Reasoning is told from content in any pieces of a reply."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.chat.thinking import ContentPiece, Piece, ReasoningPiece, ThinkingParser
from tests.scale import scaled


def pieces_of(texts: Sequence[str], inside: bool = False) -> tuple[str, str]:
    """The reasoning and the content; reasoning comes first."""
    parser = ThinkingParser(inside)
    found: list[Piece] = [*(p for text in texts for p in parser.push(text)), *parser.finish()]
    kinds = [type(piece) for piece in found]
    assert kinds == sorted(kinds, key=lambda kind: kind is ContentPiece)
    assert all(piece.text for piece in found)
    parts = {kind: "".join(p.text for p in found if type(p) is kind) for kind in set(kinds)}
    return parts.get(ReasoningPiece, ""), parts.get(ContentPiece, "")


PARTS = ["<think>", "</think>", "<thi", "</", "\n", "  ", " " * 70, "text", "é<", ">", "nk>"]
texts = st.lists(st.sampled_from(PARTS), max_size=9).map("".join)


@settings(max_examples=scaled(800), deadline=None)
@given(text=texts, inside=st.booleans(), seed=st.integers(0, 2**32))
@example(text=" " * 70 + "<think>", inside=False, seed=0)
@example(text="<think>a" + " " * 140 + "</think>", inside=False, seed=0)
def test_parts_do_not_depend_on_the_pieces(text: str, inside: bool, seed: int) -> None:
    whole = pieces_of([text], inside)
    assert pieces_of(list(text), inside) == whole
    draw = random.Random(seed)
    cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 5)))
    cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert pieces_of(cut, inside) == whole


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.\n", "Hm.", "Yes.\n"),
        ("\n <think>Hm.\n\nSo.</think>Yes.", "Hm.\n\nSo.", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("Yes: `<think>` and </think>.", "", "Yes: `<think>` and </think>."),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("<think>never ended </thin", "never ended </thin", ""),
        ("<think>a\n</think>", "a", ""),
        ("", "", ""),
        (" \n", "", " \n"),
        ("<thinking>x", "", "<thinking>x"),
        (" " * 65 + "<think>x", "", " " * 65 + "<think>x"),
    ],
)
def test_parts(text: str, reasoning: str, content: str) -> None:
    assert pieces_of([text]) == pieces_of(list(text)) == (reasoning, content)


def test_a_reply_that_begins_inside() -> None:
    assert pieces_of(["Hm.\n</think>\n\nYes."], inside=True) == ("Hm.", "Yes.")
    assert pieces_of(["\n\nHm."], inside=True) == ("Hm.", "")


def test_what_is_sure_is_told_at_once() -> None:
    parser = ThinkingParser()
    told = [
        parser.push(text) for text in ("<th", "ink>\nHm", ", ", "so </th", "e", "\n</think>\n", "A")
    ]
    assert told == [
        [],
        [ReasoningPiece("Hm")],
        [ReasoningPiece(",")],
        [ReasoningPiece(" so")],
        [ReasoningPiece(" </the")],
        [],
        [ContentPiece("A")],
    ]
