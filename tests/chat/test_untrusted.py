"""Protected text holds no control token, makes none with its neighbours, and comes back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.untrusted import Guard
from ds4tui.engine.tokenizer import literal_pattern
from ds4tui.errors import RequestError
from tests.scale import scaled

PROTECTED = ("<|im_start|>", "<|im_end|>", "[INST]", "</s>", "¤", "ab", "aba", "][", " x ")
KEPT = ("<b>", "\n\n", "c<", "|>!", "<|im_st", "é", "c>d")

GUARD = Guard(PROTECTED, KEPT)
FOUND = literal_pattern(GUARD.protected)

cuts = [
    t[a:b] for t in (*PROTECTED, *KEPT) for a in range(len(t)) for b in range(a + 1, len(t) + 1)
]
pieces = st.one_of(
    st.sampled_from((*PROTECTED, *KEPT)),
    st.sampled_from(cuts),
    st.text(" \nabc\ue000\ue001", max_size=3),
)
texts = st.lists(pieces, max_size=6).map("".join)
words = st.sampled_from(["", *cuts])  # what a template may have beside a text


@settings(max_examples=scaled(1000))
@given(text=texts.filter(bool), before=words, after=words)
def test_no_protected_text_reaches_into_what_people_wrote(
    text: str, before: str, after: str
) -> None:
    marks = GUARD.choose_marks([text, before, after])
    marked = GUARD.protect(text, marks)
    own = range(len(before), len(before) + len(marked))
    for match in FOUND.finditer(before + marked + after):
        assert match.end() <= own.start or match.start() >= own.stop
    assert GUARD.reveal(marked, marks) == text


@settings(max_examples=scaled(500))
@given(parts=st.lists(texts, min_size=2, max_size=4), data=st.data())
def test_pieces_of_protected_texts_make_nothing_when_joined(
    parts: list[str], data: st.DataObject
) -> None:
    marks = GUARD.choose_marks(parts)
    joined = ""
    for part in parts:
        marked = GUARD.protect(part, marks)
        joined += marked[data.draw(st.integers(0, len(marked))) :]
    assert not FOUND.search(joined)


@given(text=st.text())
def test_blanks_at_the_ends_stay_at_the_ends(text: str) -> None:
    guard = Guard(("<|im_end|>", "¤"))
    marks = guard.choose_marks([text])
    assert guard.reveal(guard.protect(text, marks).strip(), marks) == text.strip()


def test_ordinary_text_is_left_alone() -> None:
    guard = Guard(("<|im_start|>",), ("<b>",))
    marks = guard.choose_marks([])
    for text in ("", "Hello, world! [x] 1 + 2", "<b>", "a<b>c", "\n \t"):
        assert guard.protect(text, marks) == text


def test_user_defined_tokens_stay_whole_unless_a_control_token_could_be_made_of_them() -> None:
    guard = Guard(("<|end|>",), ("<b>", "|>!", "<|e", "x"))
    assert guard.protected == {"<|end|>", "|>!", "<|e"}


def test_marks_are_in_no_text() -> None:
    guard = Guard(("¤", "<s>"))
    texts = ["\ue000\ue001", "".join(map(chr, range(0xE002, 0xF8FF)))]
    marks = guard.choose_marks(texts)
    used = {marks.joint, marks.reply, *marks.stand_ins}
    assert len(used) == 3 and not used & set("".join(texts))
    assert guard.reveal(guard.protect("¤<s>", marks), marks) == "¤<s>"


def test_a_text_of_all_private_characters_is_refused() -> None:
    codes = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))
    with pytest.raises(RequestError, match="private-use"):
        Guard(("<s>",)).choose_marks(["".join(map(chr, codes))])


def test_no_protected_texts_at_all() -> None:
    guard = Guard(())
    marks = guard.choose_marks(["<s>"])
    assert guard.protect("<s>", marks) == "<s>"
