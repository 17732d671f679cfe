"""Conversations grow turn by turn: what was rendered stays, and a turn costs its own length."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.rendering import CHATML, ChatFormat, Rendering
from ds4tui.chat.template import ChatTemplate
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import TemplateError
from tests.chat import formats
from tests.chat.formats import ID
from tests.scale import scaled

READ = Tool("read", "Read a file.", '{"type": "object", "properties": {"path": {}}}')
SYSTEM = Message("system", "Be brief.")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return formats.tokenizer(tmp_path_factory.mktemp("vocabulary"))


Formats = Callable[[str], ChatFormat]


@pytest.fixture(scope="module")
def format_of(tokenizer: Tokenizer) -> Formats:
    made = {name: ChatFormat(tokenizer, text) for name, text in formats.CORPUS.items()}
    return made.__getitem__


# --- random conversations --------------------------------------------------

words = st.sampled_from(
    ["a", "th", "Zq", " x ", "\n\ny", "then <b>", "t", "h", "</think>", "<|end|>"]
)
texts = st.lists(words, min_size=1, max_size=4).map("".join).filter(str.strip)
letters = st.lists(st.sampled_from([*b"thx", ID["<b>"], ID["</think>"]]), max_size=5).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Questions, replies with and without sampled ids, rounds of tools; a question or a result
    is last."""
    told = [Message("system", draw(texts))] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 4)) == 0:
            told.append(Message("system", draw(texts)))
        told.append(Message("user", draw(texts)))
        for round_ in range(draw(st.integers(0, 2))):
            count = draw(st.integers(1, 3))
            calls = tuple(
                ToolCall(f"call{number}{round_}{n:03}", "read", f'{{"path": "{n}", "to": {n}}}')
                for n in range(count)
            )
            told.append(replace(draw(replies()), text="", tool_calls=calls))
            told += [Message("tool", draw(texts), tool_call_id=c.id, name=c.name) for c in calls]
        told.append(draw(replies()))
    return (*told, Message("user", draw(texts)))


@st.composite
def replies(draw: st.DrawFn) -> Message:
    ids = draw(st.none() | letters)
    reasoning = draw(st.sampled_from(["", "", "Hm."]))
    return Message("assistant", draw(texts), ids, reasoning)


def cut_before_replies(messages: Sequence[Message]) -> list[int]:
    return [n for n, m in enumerate(messages) if m.role == "assistant"]


def laid_out(chat_format: ChatFormat, messages: Sequence[Message]) -> Rendering | None:
    """None where the template refuses."""
    try:
        return chat_format.laid_out(messages, [READ])
    except TemplateError:
        return None


@pytest.mark.parametrize("name", formats.CORPUS)
@settings(max_examples=scaled(25))
@given(messages=conversations())
def test_turns_lie_end_to_end_and_are_the_messages(
    format_of: Formats, name: str, messages: tuple[Message, ...]
) -> None:
    rendering = laid_out(format_of(name), messages)
    if rendering is None:
        return
    *turns, opening = rendering.outline
    assert [turn.role for turn in turns] == [message.role for message in messages]
    assert turns[0].start == 0 and opening.role == "opening"
    assert opening.end == len(rendering.timeline)
    for before, after in pairwise(rendering.outline):
        assert before.start <= before.end == after.start <= after.end
    assert [turn.has_reasoning for turn in turns if turn.role == "assistant"] == [
        bool(m.reasoning) or ID["</think>"] in (m.sampled_ids or ())
        for m in messages
        if m.role == "assistant"
    ]


@pytest.mark.parametrize("name", formats.CORPUS)
@settings(max_examples=scaled(25))
@given(messages=conversations())
def test_what_the_model_saw_and_said_begins_the_next_turn(
    format_of: Formats, name: str, messages: tuple[Message, ...]
) -> None:
    chat_format = format_of(name)
    whole = laid_out(chat_format, messages)
    for cut in cut_before_replies(messages) if whole else ():
        ids = messages[cut].sampled_ids
        before = laid_out(chat_format, messages[:cut])
        if whole is None or before is None or ids is None or not keeps_replies(name):
            continue
        seen = before.timeline.extended(ids)
        assert seen.common_prefix(whole.timeline) == len(seen)
        inputs = before.outline[:-1]
        assert whole.outline[: len(inputs)] == inputs


def keeps_replies(name: str) -> bool:
    return name not in ("tempting", "cutting")  # each reply comes twice there


@pytest.mark.parametrize("name", formats.CORPUS)
@settings(max_examples=scaled(25))
@given(messages=conversations())
def test_a_stable_template_is_followed_to_the_token(
    format_of: Formats, name: str, messages: tuple[Message, ...]
) -> None:
    chat_format = format_of(name)
    bare = [replace(m, reasoning="") for m in messages]
    grown = laid_out(chat_format, bare)
    if chat_format.prefix_stable and grown is not None:
        assert grown.timeline == chat_format.whole(bare, [READ]).timeline


@st.composite
def in_any_order(draw: st.DrawFn) -> tuple[Message, ...]:
    """What clients send that keep no order: replies without a question, results without a call,
    system texts anywhere, several calls at once."""
    kinds = st.sampled_from(["user", "assistant", "calling", "system", "tool"])
    told: list[Message] = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=6)):
        if kind == "tool":
            told.append(Message("tool", draw(texts), tool_call_id="call_1", name="read"))
        elif kind in ("user", "system"):
            told.append(Message(kind, draw(texts)))  # type: ignore[arg-type]
        else:
            count = draw(st.integers(1, 2)) if kind == "calling" else 0
            calls = tuple(ToolCall(f"call_{n}", "read", '{"path": "a"}') for n in range(count))
            told.append(replace(draw(replies()), tool_calls=calls))
    return tuple(told)


@pytest.mark.parametrize("name", formats.CORPUS)
@settings(max_examples=scaled(25), deadline=None)
@given(messages=in_any_order())
def test_what_is_refused_is_what_the_template_refuses(
    format_of: Formats, name: str, messages: tuple[Message, ...]
) -> None:
    """Whatever stands for the replies while their sampled ids are put in their places."""
    chat_format = format_of(name)
    try:
        chat_format.render_text(messages, [READ])
    except TemplateError:
        is_refused = True
    else:
        is_refused = False
    assert (laid_out(chat_format, messages) is None) is is_refused


@pytest.mark.parametrize("name", formats.CORPUS)
@settings(max_examples=scaled(5), deadline=None)
@given(messages=conversations())
def test_what_was_rendered_before_does_not_show(
    format_of: Formats, tokenizer: Tokenizer, name: str, messages: tuple[Message, ...]
) -> None:
    """Kept renderings save time and change nothing."""
    used = format_of(name)
    fresh = ChatFormat(tokenizer, formats.CORPUS[name])
    for cut in (*cut_before_replies(messages), len(messages)):
        laid_out(used, messages[:cut])
    assert laid_out(used, messages) == laid_out(fresh, messages)


# --- borders ---------------------------------------------------------------


def texts_of_turns(chat_format: ChatFormat, rendering: Rendering) -> list[str]:
    ids = rendering.timeline.ids.tolist()
    decode: Any = chat_format.tokenizer.decode
    return [decode(ids[t.start : t.end], skip_special=False) for t in rendering.outline]


CALL = ToolCall("call_1", "read", '{"path": "a.txt"}')
ROUND = (
    SYSTEM,
    Message("user", "Read it."),
    Message("assistant", "I look.", tool_calls=(CALL, CALL)),
    Message("tool", "one", tool_call_id="call_1", name="read"),
    Message("tool", "two", tool_call_id="call_1", name="read"),
    Message("assistant", "So."),
    Message("user", "Why?"),
)


def test_a_turn_holds_what_closes_it(format_of: Formats) -> None:
    chat_format = format_of("merged results")
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
    assert texts_of_turns(chat_format, chat_format.laid_out(ROUND)) == [
        "<|im_start|>system\nBe brief.<|im_end|>\n",
        "<|im_start|>user\nRead it.<|im_end|>\n",
        f"<|im_start|>assistant\nI look.\n{call}\n{call}<|im_end|>\n",
        "<|im_start|>user\n<tool_response>\none\n</tool_response>",
        "\n<tool_response>\ntwo\n</tool_response><|im_end|>\n",
        "<|im_start|>assistant\nSo.<|im_end|>\n",
        "<|im_start|>user\nWhy?<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


def test_sampled_replies_have_the_same_borders(format_of: Formats) -> None:
    chat_format = format_of("merged results")
    known = [replace(m, sampled_ids=tuple(b"...")) if m.role == "assistant" else m for m in ROUND]
    turns = texts_of_turns(chat_format, chat_format.laid_out(known))
    assert turns[2] == turns[5] == "<|im_start|>assistant\n...<|im_end|>\n"
    assert turns[:2] + turns[3:5] + turns[6:] == [
        text
        for n, text in enumerate(texts_of_turns(chat_format, chat_format.laid_out(ROUND)))
        if n not in (2, 5)
    ]


def test_a_system_text_in_the_users_turn_ends_with_itself(format_of: Formats) -> None:
    """Where conversations with the same one part from each other."""
    chat_format = format_of("no system")
    turns = texts_of_turns(chat_format, chat_format.laid_out([SYSTEM, Message("user", "Hi.")]))
    assert turns == ["<s><|user|>\nBe brief.", "\n\nHi.<|end|>\n", "<|tool|>\n"]


def test_a_late_system_text_stays_where_it_was_replied_to(format_of: Formats) -> None:
    late = Message("system", "Now!")
    told = [Message("user", "x"), late, Message("assistant", "y"), late, Message("user", "z")]
    chat_format = format_of("system first")
    turns = texts_of_turns(chat_format, chat_format.laid_out(told))
    assert turns == [
        "<|im_start|>user\nx",
        "\n\nNow!<|im_end|>\n",
        "<|im_start|>assistant\ny<|im_end|>\n",
        "<|im_start|>user\nNow!",
        "\n\nz<|im_end|>\n",
        "<|im_start|>assistant\n",
    ]


@pytest.mark.parametrize("name", ["merged results", "hermes", "chatml", "by parts", "no system"])
def test_whole_renderings_have_the_same_outline(format_of: Formats, name: str) -> None:
    chat_format = format_of(name)
    told = [m for m in ROUND if m.role in ("user", "assistant") and not m.tool_calls]
    known = [replace(m, sampled_ids=tuple(b"...")) if m.role == "assistant" else m for m in told]
    for messages in (told, known):
        assert chat_format.whole(messages).outline == chat_format.laid_out(messages).outline


def test_digests_tell_what_differs(format_of: Formats) -> None:
    chat_format = format_of("hermes")

    def turns(*messages: Message, tools: Sequence[Tool] = ()) -> Any:
        return chat_format.laid_out(messages, tools).outline

    question = Message("user", "Read it.")
    plain, trailing = (turns(SYSTEM, Message("user", t))[1] for t in ("x", " x\n"))
    assert plain.digest == trailing.digest != turns(SYSTEM, question)[1].digest
    assert turns(SYSTEM)[0].tools_digest == b"" != turns(SYSTEM, tools=[READ])[0].tools_digest
    calls = [
        Message("assistant", "", tool_calls=(replace(CALL, arguments=a),))
        for a in ('{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a": 1, "b": 3}')
    ]
    one, reordered, other = (turns(question, c)[1].calls_digest for c in calls)
    assert one == reordered != other and one != b""
    assert turns(question, calls[0])[0].calls_digest == b""


# --- what is held fixed -----------------------------------------------------


def test_what_the_template_drops_later_stays_as_it_was(format_of: Formats) -> None:
    """A thought that the template opens itself and leaves out of the history."""
    chat_format = format_of("open thought")
    assert not chat_format.prefix_stable
    first = [Message("user", "x")]
    seen = chat_format.render(first).extended([*b"t", ID["</think>"], *b"h"])
    reply = Message("assistant", "h", tuple(seen.ids[len(chat_format.render(first)) :].tolist()))
    longer = chat_format.render([*first, reply, Message("user", "y")])
    assert seen.common_prefix(longer) == len(seen)
    text = chat_format.tokenizer.decode(longer.ids.tolist(), skip_special=False)
    assert text == "<s><|user|>x<|assistant|><think>\nt</think>h</s><|user|>y<|assistant|><think>\n"


def test_the_last_questions_marker_stays(format_of: Formats) -> None:
    chat_format = format_of("unstable")
    told = [Message("user", "x"), Message("assistant", "y", tuple(b"y")), Message("user", "z")]
    text = chat_format.tokenizer.decode(chat_format.render(told).ids.tolist(), skip_special=False)
    assert text == "<|user|>x<think><|assistant|>y<|user|>z<think><|assistant|>"
    whole = chat_format.whole(told).timeline.ids.tolist()
    assert "x</think>" in chat_format.tokenizer.decode(whole, skip_special=False)


def test_switching_thinking_keeps_the_conversation_before(format_of: Formats) -> None:
    chat_format = format_of("merged results")
    told = [Message("user", "x")]
    seen = chat_format.render(told, thinking=True).extended(b"y")
    told += [Message("assistant", "y", tuple(b"y")), Message("user", "z")]
    off = chat_format.render(told, thinking=False)
    assert seen.common_prefix(off) == len(seen)
    told += [Message("assistant", "y", tuple(b"y")), Message("user", "z")]
    assert off.common_prefix(chat_format.render(told, thinking=True)) == len(off)
    closed = [ID["<think>"], ID["\n\n"], ID["</think>"], ID["\n\n"]]
    assert off.ids[-4:].tolist() == closed
    assert chat_format.render(told, thinking=True).ids[-4:].tolist() != closed


def test_a_switch_in_the_system_turn_changes_it(format_of: Formats) -> None:
    chat_format = format_of("switch in system")
    assert chat_format.abilities.thinking_switch and not chat_format.abilities.switch_in_opening
    told = [Message("user", "x"), Message("assistant", "y", tuple(b"y")), Message("user", "z")]
    on, off = (chat_format.render(told, thinking=on) for on in (True, False))
    assert on.common_prefix(off) < 4


# --- the price of a turn ----------------------------------------------------


class Price:
    """Counts template renderings, the messages in them, and encoded characters."""

    def __init__(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.renderings = self.messages = self.characters = 0
        render, encode = ChatTemplate.render, tokenizer.encode_plain

        def counted_render(template: Any, messages: Any, *rest: Any, **more: Any) -> str:
            self.renderings += 1
            self.messages += len(messages)
            return render(template, messages, *rest, **more)

        def counted_encode(text: str, **more: Any) -> Any:
            self.characters += len(text)
            return encode(text, **more)

        monkeypatch.setattr(ChatTemplate, "render", counted_render)
        monkeypatch.setattr(tokenizer, "encode_plain", counted_encode)


@pytest.mark.parametrize("turns", [20, 1000])
@pytest.mark.parametrize("name", ["chatml", "merged results", "open thought", "no system"])
def test_a_turn_costs_the_same_in_a_long_conversation(
    format_of: Formats,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    turns: int,
) -> None:
    chat_format = format_of(name)
    told = [SYSTEM]
    for number in range(turns):
        told += [Message("user", f"question {number}"), Message("assistant", "x", tuple(b"yes"))]
    told.append(Message("user", "last question"))
    chat_format.render(told)
    price = Price(tokenizer, monkeypatch)
    told += [Message("assistant", "Yes", tuple(b"no")), Message("user", "and one more")]
    chat_format.render(told)
    assert price.renderings <= 4 and price.messages <= 40
    assert price.characters < 100


@pytest.mark.parametrize("name", ["hermes", "chatml", "by parts"])
def test_a_turn_does_not_cost_the_tools_again(
    format_of: Formats, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    chat_format = format_of(name)
    tools = [replace(READ, name=f"read{n}", description="x" * 1000) for n in range(30)]
    told = [SYSTEM, Message("user", "x")]
    chat_format.render(told, tools)
    written = 0
    render = ChatTemplate.render

    def counted(*arguments: Any, **more: Any) -> str:
        nonlocal written
        text = render(*arguments, **more)
        written += len(text)
        return text

    monkeypatch.setattr(ChatTemplate, "render", counted)
    told += [Message("assistant", "y", tuple(b"y")), Message("user", "z")]
    chat_format.render(told, tools)
    assert 0 < written < 10_000
    assert chat_format.render(told, tools) == chat_format.whole(told, tools).timeline


def test_the_same_again_costs_nothing(
    format_of: Formats, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_format = format_of("hermes")
    first = chat_format.laid_out(ROUND, [READ])
    price = Price(tokenizer, monkeypatch)
    assert chat_format.laid_out(ROUND, [READ]) == first
    assert (price.renderings, price.characters) == (0, 0)


def test_kept_renderings_are_bounded(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4tui.chat.rendering._CHAIN_BYTES", 50_000)
    chat_format = ChatFormat(tokenizer, CHATML)
    told = [SYSTEM]
    for number in range(60):
        told += [Message("user", f"question {number}"), Message("assistant", "x", tuple(b"yes"))]
        chat_format.render(told)
        assert chat_format.kept_bytes <= 50_000
    assert chat_format.render(told) == ChatFormat(tokenizer, CHATML).render(told)


def test_the_template_hears_of_the_calls_in_sampled_replies(format_of: Formats) -> None:
    """Results are named after them, and refused without them."""
    chat_format = format_of("named by call")
    call = ToolCall("call_1", "read", "{}")
    sampled = Message("assistant", "", tuple(b"<read it>"), tool_calls=(call,))
    result = Message("tool", "one", tool_call_id="call_1", name="read")
    turn = "<|tool|>read to=assistant one<|end|>"
    for messages in ([sampled, result], [Message("user", "x"), sampled, SYSTEM, result]):
        for rendering in (chat_format.laid_out(messages), chat_format.whole(messages)):
            text = "".join(texts_of_turns(chat_format, rendering))
            assert turn in text and text.count("<read it>") == 1 and "<tool_call>" not in text


def test_two_calls_where_the_template_takes_one_are_refused_sampled_or_not(
    format_of: Formats,
) -> None:
    call = ToolCall("call_1", "read", "{}")
    for ids in (None, tuple(b"calls")):
        reply = Message("assistant", "", ids, tool_calls=(call, call))
        with pytest.raises(TemplateError, match="One call at once"):
            format_of("one call").laid_out([Message("user", "x"), reply, Message("user", "y")])
