"""A reply that comes back as text is known again, whatever its blanks; nothing else is."""

import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Image, Message, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.replay import ReplayMemory
from ds4tui.chat.saved_replies import SavedReplies
from ds4tui.chat.seen import SeenMessages
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from tests.chat import formats
from tests.scale import scaled

QUESTION = [Message("system", "Be brief."), Message("user", "Hi")]


def with_reply(text: str, question: list[Message] = QUESTION) -> list[Message]:
    return [*question, Message("assistant", text), Message("user", "And?")]


@pytest.fixture
def memory() -> ReplayMemory:
    made = ReplayMemory()
    made.remember(QUESTION, "Hello there", (5, 6))
    return made


@pytest.mark.parametrize(
    "text", ["Hello there", " Hello there", "Hello there\n\n", "\tHello there "]
)
def test_blanks_at_either_end_change_nothing(memory: ReplayMemory, text: str) -> None:
    assert memory.recall(with_reply(text))[2] == Message("assistant", text, (5, 6))


def test_blanks_in_the_conversation_before_change_nothing(memory: ReplayMemory) -> None:
    question = [Message("system", "Be brief.\n"), Message("user", " Hi ")]
    assert memory.recall(with_reply("Hello there", question))[2].sampled_ids == (5, 6)


@pytest.mark.parametrize(
    "messages",
    [
        with_reply("Hello  there"),
        with_reply("Hello"),
        with_reply(""),
        with_reply("Hello there", QUESTION[:1]),
        with_reply("Hello there", QUESTION[1:]),
        with_reply("Hello there", [Message("system", "Be brief!"), *QUESTION[1:]]),
        with_reply("Hello there", [QUESTION[0], Message("tool", "Hi")]),
        with_reply("Hello there", [QUESTION[0], Message("user", "H"), Message("user", "i")]),
        [*QUESTION, Message("user", "Hello there")],
        [Message("assistant", "Hello there"), *QUESTION],
    ],
)
def test_another_text_or_another_conversation_is_not_known(
    memory: ReplayMemory, messages: list[Message]
) -> None:
    assert memory.recall(messages) == messages


def test_known_ids_are_kept(memory: ReplayMemory) -> None:
    messages = [*QUESTION, Message("assistant", "Hello there", (9,))]
    assert memory.recall(messages) == messages


def test_the_argument_is_not_changed(memory: ReplayMemory) -> None:
    messages = with_reply("Hello there")
    copy = list(messages)
    memory.recall(messages)
    assert messages == copy


def test_the_latest_of_equal_replies_counts(memory: ReplayMemory) -> None:
    memory.remember(QUESTION, " Hello there", (7, 8, 9))
    assert memory.recall(with_reply("Hello there"))[2].sampled_ids == (7, 8, 9)
    assert len(memory) == 1


def test_an_empty_reply_is_remembered(memory: ReplayMemory) -> None:
    memory.remember(QUESTION, "", ())
    assert memory.recall(with_reply(" "))[2].sampled_ids == ()


@pytest.mark.parametrize("text", ["auser b", "a user b", "auser 1 b", "auser1b", "a\nuser\nb"])
def test_role_and_text_do_not_run_together(text: str) -> None:
    memory = ReplayMemory()
    memory.remember([Message("user", text)], "x", (1,))
    split = [Message("user", "a"), Message("user", "b"), Message("assistant", "x")]
    assert memory.recall(split) == split


def test_lone_surrogates_are_texts_too() -> None:
    memory = ReplayMemory()
    memory.remember([Message("user", "\ud800")], "\udfff", (1,))
    assert memory.recall([Message("user", "\ud800"), Message("assistant", "\udfff")])[1].sampled_ids


def test_the_least_recently_used_reply_is_forgotten_first() -> None:
    memory = ReplayMemory(max_entries=3)
    for number in range(3):
        memory.remember(QUESTION, str(number), (number,))
    memory.recall(with_reply("0"))
    memory.remember(QUESTION, "3", (3,))
    known = [memory.recall(with_reply(str(n)))[2].sampled_ids for n in range(4)]
    assert known == [(0,), None, (2,), (3,)]


def test_bytes_are_bounded() -> None:
    memory = ReplayMemory(max_bytes=10_000)
    for number in range(50):
        memory.remember(QUESTION, str(number), range(100))
        assert memory.nbytes <= 10_000
    assert 5 < len(memory) < 50
    memory.remember(QUESTION, "huge", range(10_000))
    assert memory.nbytes <= 10_000


@settings(max_examples=scaled(200))
@given(data=st.data())
def test_books_are_kept_in_any_history(data: st.DataObject) -> None:
    memory = ReplayMemory(max_entries=4, max_bytes=2_000)
    expected: dict[str, tuple[int, ...]] = {}
    for _ in range(data.draw(st.integers(1, 12))):
        text = data.draw(st.sampled_from("abcdef"))
        ids = tuple(data.draw(st.lists(st.integers(0, 2**31), max_size=60)))
        memory.remember(QUESTION, text, ids)
        expected[text] = ids
        assert len(memory) <= 4 and 0 <= memory.nbytes <= 2_000
        for known, wanted in expected.items():
            found = memory.recall(with_reply(known))[2].sampled_ids
            assert found in (None, wanted)


def calling(*arguments: str, text: str = "", name: str = "f", reasoning: str = "") -> Message:
    calls = tuple(ToolCall(f"id{n}", name, a) for n, a in enumerate(arguments))
    return Message("assistant", text, reasoning=reasoning, tool_calls=calls)


@pytest.fixture
def called() -> ReplayMemory:
    made = ReplayMemory()
    calls = calling('{"a": 1, "b": [1, 2]}').tool_calls
    made.remember(QUESTION, "", (7, 8), calls)
    made.remember([*QUESTION, calling('{"a": 1, "b": [1, 2]}'), RESULT], "Done.", (9,))
    return made


RESULT = Message("tool", "ok", tool_call_id="id0")


@pytest.mark.parametrize(
    "reply",
    [
        calling('{"b":[1,2],  "a":1}'),
        calling('{"a": 1, "b": [1, 2]}', reasoning="dropped or not"),
        calling('{"a": 1, "b": [1, 2]}', text=" \n"),
        replace(calling("{}"), tool_calls=(ToolCall("other", "f", '{"a":1,"b":[1,2]}'),)),
    ],
)
def test_calls_are_known_whatever_the_order_of_keys_and_their_ids(
    called: ReplayMemory, reply: Message
) -> None:
    told = called.recall([*QUESTION, reply, RESULT, Message("assistant", "Done.")])
    assert [m.sampled_ids for m in told] == [None, None, (7, 8), None, (9,)]


@pytest.mark.parametrize(
    "reply",
    [
        calling(),
        calling('{"a": 1, "b": [2, 1]}'),
        calling('{"a": "1", "b": [1, 2]}'),
        calling('{"a": 1, "b": [1, 2]}', '{"a": 1, "b": [1, 2]}'),
        calling('{"a": 1, "b": [1, 2]}', name="g"),
        calling('{"a": 1, "b": [1, 2]}', text="So."),
        calling("no JSON"),
    ],
)
def test_other_calls_are_not_known(called: ReplayMemory, reply: Message) -> None:
    told = called.recall([*QUESTION, reply, RESULT, Message("assistant", "Done.")])
    assert all(m.sampled_ids is None for m in told)


# --- with a format: what is sent back renders to what is resident -----------


def play(chat_format: ChatFormat, draw: random.Random, turns: int) -> None:
    """A client that keeps texts only, and trims them, extends every turn's tokens."""
    tokenizer, memory = chat_format.tokenizer, ReplayMemory()
    plain = [i for i in range(tokenizer.vocab_size) if not tokenizer.is_control(i)]
    history: list[Message] = []
    resident: list[int] = []
    for turn in range(turns):
        history.append(Message("user", f" question {turn}\n"))
        wanted = chat_format.render(memory.recall(history)).ids.tolist()
        assert wanted[: len(resident)] == resident
        reply = draw.choices(plain, k=draw.randint(0, 8))
        text = tokenizer.decode(reply)
        memory.remember(history, text, reply)
        resident = [*wanted, *reply]
        sent_back = draw.choice((text, text.strip(), text + "\n", " " + text))
        history.append(Message("assistant", sent_back))


@pytest.mark.parametrize("seed", range(scaled(20)))
@pytest.mark.parametrize("name", formats.STABLE)
def test_replies_sent_back_as_text_render_to_what_is_resident(
    tmp_path: Path, name: str, seed: int
) -> None:
    chat_format = ChatFormat(formats.tokenizer(tmp_path), formats.ALL[name])
    play(chat_format, random.Random(seed), turns=6)


def test_without_the_memory_they_would_not(tmp_path: Path) -> None:
    chat_format = ChatFormat(formats.tokenizer(tmp_path), formats.ALL["chatml"])
    reply = (ord("t"), ord("h"))  # as text: the token "th"
    history = with_reply("th")
    known = [replace(m, sampled_ids=reply) if m.text == "th" else m for m in history]
    assert chat_format.render(history) != chat_format.render(known)


@pytest.mark.real_model
@pytest.mark.parametrize("seed", range(scaled(5)))
def test_smollm2_replies_sent_back_as_text(smollm2_path: Path, seed: int) -> None:
    with GGUFFile.open(smollm2_path) as file:
        chat_format = ChatFormat.from_gguf(file, Tokenizer.from_gguf(file))
    play(chat_format, random.Random(seed), turns=8)


# --- what clients do to the rest of a conversation ---------------------------


def sent_twice(first: list[Message], again: list[Message]) -> tuple[list[Message], list[Message]]:
    """What a model is told of both."""
    memory = ReplayMemory(now=lambda: datetime(2030, 5, 17, 23, 58))
    return memory.recall(first, note=True), memory.recall(again, note=True)


FOUND = Message("tool", '{"a": 1, "b": {"c": 2, "d": 3}}', tool_call_id="id0")
ASKED = [*QUESTION, calling('{"x": 1, "y": 2}')]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ([*QUESTION], [QUESTION[0], Message("user", "Hi \n")]),
        ([*QUESTION], [Message("system", "\nBe brief."), QUESTION[1]]),
        ([*ASKED, FOUND], [*ASKED, replace(FOUND, text='{"b":{"d":3,"c":2},"a":1}')]),
        ([*ASKED, FOUND], [*ASKED, replace(FOUND, tool_call_id="other")]),
        ([*ASKED, FOUND], [*QUESTION, calling('{"y":2,"x":1}'), FOUND]),
        (
            [Message("system", "x-anthropic-billing-header: cch=1;\nHelp."), QUESTION[1]],
            [Message("system", "x-anthropic-billing-header: cch=2;\nHelp."), QUESTION[1]],
        ),
        (
            [Message("system", "x-anthropic-billing-header: cch=1;\nHelp."), QUESTION[1]],
            [Message("system", "x-anthropic-billing-header: cch=2;\nHelp."), FOUND],
        ),
    ],
)
def test_what_says_the_same_is_told_as_it_was_first(
    first: list[Message], again: list[Message]
) -> None:
    told, told_again = sent_twice(first, again)
    assert told == first
    assert told_again == [*first[:-1], again[-1] if again[-1] is FOUND else first[-1]]


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (QUESTION, [QUESTION[0], Message("user", "  Hi")]),
        (QUESTION, [Message("system", "Be  brief."), QUESTION[1]]),
        ([*ASKED, FOUND], [*ASKED, replace(FOUND, text='{"a": 1, "b": {"c": 3, "d": 2}}')]),
        ([*ASKED, FOUND], [*ASKED, replace(FOUND, text='["a", 1]')]),
        ([*ASKED, FOUND], [*QUESTION, calling('{"y": 1, "x": 2}'), FOUND]),
        (
            [Message("system", "Now: 2030-05-17 23:58:01"), QUESTION[1]],
            [Message("system", "Now: 2030-05-17 23:59:44"), Message("user", "Another talk")],
        ),
        (
            [Message("system", "Open from 9:00."), QUESTION[1]],
            [Message("system", "Open from 10:00."), QUESTION[1]],
        ),
    ],
)
def test_what_says_something_else_is_told_as_it_is(
    first: list[Message], again: list[Message]
) -> None:
    assert sent_twice(first, again)[1] == again


def test_looking_changes_nothing_that_is_told_later() -> None:
    memory = ReplayMemory()
    memory.recall([QUESTION[0], Message("user", "Hi\n")])
    assert memory.recall(QUESTION, note=True) == QUESTION


def test_a_reply_that_comes_back_in_two_messages_is_one() -> None:
    memory = ReplayMemory()
    calls = calling('{"a": 1}').tool_calls
    memory.remember(QUESTION, "I look.", (7, 8, 9), calls)
    cut = [Message("assistant", "I look.", reasoning="Hm."), calling('{"a":1}')]
    told = memory.recall([*QUESTION, *cut, RESULT])
    assert [m.sampled_ids for m in told] == [None, None, (7, 8, 9), None]
    two_calls = memory.recall([*QUESTION, calling("{}"), calling("[]"), RESULT])
    assert [len(m.tool_calls) for m in two_calls] == [0, 0, 2, 0]
    apart = [*QUESTION, Message("assistant", "One."), Message("assistant", "Two."), RESULT]
    assert memory.recall(apart) == apart


def test_replies_are_known_after_a_restart(tmp_path: Path) -> None:
    shelf = SavedReplies(tmp_path / "replies.sqlite3", b"vocabulary")
    ReplayMemory(shelf=shelf).remember(QUESTION, "Hello there", (5, 6))
    later = ReplayMemory(shelf=shelf)
    assert later.recall(with_reply("Hello there\n"))[2].sampled_ids == (5, 6)
    shelf.close()
    assert later.recall(with_reply("Hello there"))[2].sampled_ids == (5, 6)
    assert ReplayMemory().recall(with_reply("Hello there"))[2].sampled_ids is None


def test_messages_that_were_seen_are_bounded() -> None:
    memory = SeenMessages(max_bytes=20_000)
    for number in range(100):
        memory.note(bytes([number] * 16), Message("user", "x" * number * 10))
        assert memory.nbytes <= 20_000
    assert memory.first(bytes([99] * 16)) is not None and memory.first(bytes(16)) is None


def test_a_clock_stands_still_in_a_conversation_and_is_right_in_a_new_one() -> None:
    memory = ReplayMemory(now=lambda: datetime(2030, 5, 17, 23, 58))
    first = [Message("system", "Now: 2030-05-17 23:58:01"), QUESTION[1]]
    later = [Message("system", "Now: 2030-05-17 23:59:44"), QUESTION[1]]
    memory.recall(first, note=True)
    goes_on = [*later, Message("assistant", "Yes."), Message("user", "And?")]
    assert memory.recall(goes_on)[0] == first[0]
    assert memory.recall(later, note=True)[0] == later[0]
    assert memory.recall([later[0], *goes_on[1:]])[0] == later[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":3,"a":2}', '{"a":1,"a":2}'),
        ("2e400", "1e400"),
        ('{"a": 2e400}', '{"a": 1e400}'),
        ("x = 1\n  y", "    x = 1\n  y"),
    ],
)
def test_results_that_say_something_else_are_told_as_they_are(one: str, other: str) -> None:
    def asked(result: str) -> list[Message]:
        return [*QUESTION, calling("{}"), Message("tool", result, tool_call_id="id0")]

    told, told_again = sent_twice(asked(one), asked(other))
    assert (told[-1].text, told_again[-1].text) == (one, other)


def test_a_system_text_that_was_edited_is_told_as_it_is_now() -> None:
    first = [
        Message("system", "The meeting time is 2030-05-17 10:00. Answer with it."),
        QUESTION[1],
    ]
    again = [
        Message("system", "The meeting time is 2030-05-17 15:30. Answer with it."),
        QUESTION[1],
    ]
    more = [Message("assistant", "Yes."), Message("user", "And?")]
    told, told_again = sent_twice([*first, *more], [*again, *more])
    assert (told[0], told_again[0]) == (first[0], again[0])


def shown(*files: bytes, at: int = 3) -> Message:
    return Message("user", "So: what?", images=tuple(Image(data, at) for data in files))


def test_a_reply_is_found_by_the_pictures_before_it() -> None:
    replay = ReplayMemory()
    replay.remember([shown(b"red")], "A cat.", (1, 2))
    reply = Message("assistant", "A cat.")
    others = [shown(b"blue"), shown(), shown(b"red", b"red"), shown(b"red", at=4)]
    found = [replay.recall([m, reply])[1].sampled_ids for m in (shown(b"red"), *others)]
    assert found == [(1, 2), None, None, None, None]


def test_pictures_are_known_by_what_they_show_and_blanks_move_none() -> None:
    replay = ReplayMemory(identity=lambda image: image.data.lower())
    replay.recall([shown(b"red")], note=True)
    replay.remember([shown(b"red")], "A cat.", (1, 2))
    padded = Message("user", "  So: what? ", images=(Image(b"RED", 5, "again.png"),))
    told = replay.recall([padded, Message("assistant", "A cat.")])
    assert told[1].sampled_ids == (1, 2)
    trailing = Message("user", "So: what?\n", images=(Image(b"RED", 3),))
    first = replay.recall([trailing])[0]  # its text is that of the first time, its file its own
    assert first == Message("user", "So: what?", images=(Image(b"RED", 3),))


def test_files_of_pictures_are_not_held() -> None:
    seen = SeenMessages()
    seen.note(b"key", shown(bytes(10**6)))
    first = seen.first(b"key")
    assert first is not None and first.images == (Image(b"", 3),)
    assert seen.nbytes < 10_000
