"""What becomes of earlier reasoning is a choice, and each choice says what it does to reuse."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ds4tui.chat.messages import Message
from ds4tui.chat.reasoned import said_ids, without_reasoning
from ds4tui.chat.rendering import ChatFormat, ThinkingInHistory
from ds4tui.config import Settings, table
from ds4tui.engine.tokenizer import Tokenizer
from tests.chat import formats
from tests.chat.formats import ID

THINK, CLOSE, LINES = ID["<think>"], ID["</think>"], ID["\n\n"]
THOUGHT = (THINK, 10, *b"hm", 10, CLOSE, LINES, *b"t", *b"h")
SAID = THOUGHT[-2:]
FIRST, MORE = Message("user", "x"), Message("user", "y")
REPLY = Message("assistant", "th", THOUGHT)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return formats.tokenizer(tmp_path_factory.mktemp("vocabulary"))


def made(tokenizer: Tokenizer, wish: ThinkingInHistory, name: str = "merged results") -> ChatFormat:
    return ChatFormat(tokenizer, formats.CORPUS[name], thinking_in_history=wish)


def written(chat_format: ChatFormat, *messages: Message) -> str:
    ids = chat_format.render(messages).ids.tolist()
    return chat_format.tokenizer.decode(ids, skip_special=False)


def test_kept_it_is_as_it_was_sampled(tokenizer: Tokenizer) -> None:
    chat_format = made(tokenizer, "keep")
    seen = chat_format.render([FIRST]).extended(THOUGHT)
    rendering = chat_format.laid_out([FIRST, REPLY, MORE])
    assert seen.common_prefix(rendering.timeline) == len(seen)
    assert [t.has_reasoning for t in rendering.outline] == [False, True, False, False]
    assert rendering.notes == (chat_format.history_words,)
    assert "none is computed again" in rendering.notes[0]


def test_as_the_template_wishes_it_is_left_out_behind_the_next_question(
    tokenizer: Tokenizer,
) -> None:
    chat_format = made(tokenizer, "template")
    seen = chat_format.render([FIRST]).extended(THOUGHT)
    rendering = chat_format.laid_out([FIRST, REPLY, MORE])
    before = len(chat_format.render([FIRST]))
    assert seen.common_prefix(rendering.timeline) == before
    assert rendering.timeline.ids[before : before + 3].tolist() == [*SAID, ID["<|im_end|>"]]
    assert "computed again" in rendering.notes[0]


def test_as_the_template_wishes_it_stays_in_the_newest_rounds_of_tools(
    tokenizer: Tokenizer,
) -> None:
    chat_format = made(tokenizer, "template")
    result = Message("tool", "1")
    assert "<think>\nhm\n</think>\n\nth<|im_end|>" in written(chat_format, FIRST, REPLY, result)
    assert "hm" not in written(chat_format, FIRST, REPLY, result, MORE)


def test_dropped_only_what_was_said_is_kept_as_sampled(tokenizer: Tokenizer) -> None:
    chat_format = made(tokenizer, "drop")
    before = chat_format.render([FIRST])
    rendering = chat_format.laid_out([FIRST, REPLY, Message("tool", "1")])
    assert rendering.timeline.ids[len(before) : len(before) + 3].tolist() == [
        *SAID,
        ID["<|im_end|>"],
    ]
    assert [t.has_reasoning for t in rendering.outline] == [False] * 4
    assert "reasoning of 1 earlier replies is left out" in rendering.notes[0]
    text = written(chat_format, FIRST, Message("assistant", "th", reasoning="hm"), MORE)
    assert "hm" not in text


@pytest.mark.parametrize("wish", get_args(ThinkingInHistory))
def test_a_stable_template_without_reasoning_is_the_same_whatever_is_wished(
    tokenizer: Tokenizer, wish: ThinkingInHistory
) -> None:
    told = [FIRST, Message("assistant", "th", tuple(b"th")), MORE]
    rendering = made(tokenizer, wish, "chatml").laid_out(told)
    assert rendering == made(tokenizer, "keep", "chatml").laid_out(told)
    assert rendering.notes == ()


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (THOUGHT, SAID),
        ((*b"hm", CLOSE, *b"x"), tuple(b"x")),
        (tuple(b"x"), tuple(b"x")),
        ((THINK, CLOSE), ()),
        ((), ()),
    ],
)
def test_what_was_said_is_what_stands_behind_the_reasoning(
    tokenizer: Tokenizer, ids: tuple[int, ...], said: tuple[int, ...]
) -> None:
    assert tuple(said_ids(tokenizer, ids) or ()) == said


def test_where_it_cannot_be_cut_its_text_is_used(tokenizer: Tokenizer) -> None:
    spelt = tuple(b"<think>a</think>b")
    reply = without_reasoning(tokenizer, Message("assistant", "b", spelt, reasoning="a"))
    assert reply == Message("assistant", "b")
    assert without_reasoning(tokenizer, FIRST) is FIRST
    assert without_reasoning(tokenizer, REPLY) == replace(REPLY, sampled_ids=SAID)


def test_the_setting_has_the_choices_that_a_format_knows(tmp_path: Path) -> None:
    about = next(f for f in table() if f.name == "thinking_in_history")
    assert about.metadata["choices"] == get_args(ThinkingInHistory)
    assert Settings().thinking_in_history == "keep"
