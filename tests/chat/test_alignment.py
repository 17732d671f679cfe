"""Resident tokens are kept while they spell what is wanted, and never stand for a control token."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.chat.alignment import aligned
from ds4tui.chat.messages import Message
from ds4tui.chat.rendering import CHATML, ChatFormat
from tests.chat import formats
from tests.chat.formats import ID
from tests.scale import scaled

TEXTS = {1: b"t", 2: b"h", 3: b"th", 4: b"the", 5: b"e", 6: b" ", 7: b"he", 8: b"\xc3", 9: b"\xa9"}
END, OPEN = 90, 91


def spelling(token_id: int) -> bytes | None:
    return TEXTS.get(token_id)


def align(wanted: Sequence[int], resident: Sequence[int]) -> list[int]:
    found = aligned(Timeline.of(wanted), Timeline.of(resident), spelling)
    ids: list[int] = found.timeline.ids.tolist()
    return ids


@pytest.mark.parametrize(
    ("wanted", "resident", "kept"),
    [
        ([90, 4, 91, 5], [90, 1, 2, 5, 91, 5], [90, 1, 2, 5, 91, 5]),
        ([90, 1, 2, 5, 91, 5], [90, 4, 91], [90, 4, 91, 5]),
        ([3, 5, 91], [1, 7, 91, 6], [1, 7, 91]),
        ([3, 5, 6, 91], [1, 7, 6], [1, 7, 6, 91]),
        # Both end in the same word, but not yet at a border of both.
        ([90, 3, 5, 6], [90, 1, 7], [90, 1, 7, 6]),
        ([90, 4, 6], [90, 3], [90, 4, 6]),
        ([4], [3, 5, 6], [3, 5]),
        # Texts that differ.
        ([3, 5, 91], [1, 2, 6, 91], [1, 2, 5, 91]),
        ([4, 90], [1, 2, 6, 90], [4, 90]),
        # A control token is nothing but itself.
        ([3, 90], [1, 2, 91], [1, 2, 90]),
        ([90, 3], [91, 3], [90, 3]),
        ([], [1], []),
        ([1], [], [1]),
        ([8, 9], [8, 9], [8, 9]),
    ],
)
def test_tokens_of_the_same_text(wanted: list[int], resident: list[int], kept: list[int]) -> None:
    assert align(wanted, resident) == kept


ids = st.lists(st.sampled_from([*TEXTS, END, OPEN]), max_size=14)


def spelt(sequence: Sequence[int]) -> bytes:
    return b"".join(TEXTS.get(i, b"<%d>" % i) for i in sequence)


@settings(max_examples=scaled(500))
@given(wanted=ids, resident=ids)
def test_any_two_timelines(wanted: list[int], resident: list[int]) -> None:
    found = aligned(Timeline.of(wanted), Timeline.of(resident), spelling)
    kept = found.timeline.ids.tolist()
    assert spelt(kept) == spelt(wanted)
    plain, resident_line = Timeline.of(wanted), Timeline.of(resident)
    assert resident_line.common_prefix(found.timeline) >= resident_line.common_prefix(plain)
    outline = tuple(Turn(a, b, "user", b"") for a, b in pairwise(range(0, len(wanted) + 1, 2)))
    for turn, moved in zip(outline, found.moved(outline), strict=True):
        assert spelt(kept[: moved.start]) == spelt(wanted[: turn.start]) or moved.start < len(kept)
        assert 0 <= moved.start <= moved.end <= len(kept)


@settings(max_examples=scaled(300))
@given(text=st.text("the é", max_size=12), cut=st.data())
def test_the_same_text_in_other_tokens_is_kept_whole(text: str, cut: st.DataObject) -> None:
    data = text.encode()
    spellings = {value: key for key, value in TEXTS.items()}

    def tokens() -> list[int]:
        made, at = [], 0
        while at < len(data):
            fits = [n for n in (3, 2, 1) if data[at : at + n] in spellings]
            length = cut.draw(st.sampled_from(fits))
            made.append(spellings[data[at : at + length]])
            at += length
        return made

    resident = [END, *tokens(), END]
    assert align([END, *tokens(), END, OPEN], resident) == [*resident, OPEN]


def test_images_move_with_what_is_around_them() -> None:
    image = (-5, -6)
    span = ImageSpan(2, 2, b"f" * 16, (7, 7))
    wanted = Timeline.of([90, 3, *image, 91], (span,))
    resident = Timeline.of([90, 1, 2], ())
    found = aligned(wanted, resident, spelling).timeline
    assert found.ids.tolist() == [90, 1, 2, *image, 91]
    assert [s.start for s in found.spans] == [3]


def test_an_outline_moves_with_its_turns() -> None:
    wanted, resident = Timeline.of([90, 4, 91, 5]), Timeline.of([90, 1, 2, 5, 91])
    outline = (Turn(0, 3, "user", b""), Turn(3, 4, "opening", b""))
    moved = aligned(wanted, resident, spelling).moved(outline)
    assert [(t.start, t.end) for t in moved] == [(0, 5), (5, 6)]


def test_a_format_keeps_what_is_resident_and_is_not_forged(tmp_path: Path) -> None:
    chat_format = ChatFormat(formats.tokenizer(tmp_path), CHATML)
    told = [Message("user", "x"), Message("assistant", "th"), Message("user", "y")]
    sampled = Message("assistant", "th", (ord("t"), ord("h")))
    resident = chat_format.laid_out([told[0], sampled, told[2]])
    plain = chat_format.laid_out(told)
    assert plain.timeline != resident.timeline
    assert chat_format.aligned(plain, resident.timeline) == resident
    forged = Message("assistant", "<|im_end|>")
    written = chat_format.laid_out([told[0], forged, told[2]])
    ended = chat_format.render([told[0]]).extended([ID["<|im_end|>"]])
    assert chat_format.aligned(written, ended) == written
