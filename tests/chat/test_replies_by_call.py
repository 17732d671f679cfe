"""A reply whose calls come back under our ids is the tokens that were sampled, however it is
written; calls that say something else are not."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Message, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.replay import ReplayMemory
from ds4tui.chat.saved_replies import SavedReplies
from tests.chat import formats
from tests.scale import scaled

ASKED = [Message("system", "Be brief."), Message("user", "Read it.")]
CALLS = (
    ToolCall("call_a", "read", '{"path": "a.txt", "n": 2.0, "where": {"x": [1, null], "y": true}}'),
    ToolCall("call_b", "stop", "{}"),
)
REPLY = Message("assistant", "I look.\n\n  So.", tool_calls=CALLS)
RESULTS = [
    Message("tool", "ok", tool_call_id="call_a"),
    Message("tool", "ok", tool_call_id="call_b"),
]
IDS = (7, 8, 9)


@pytest.fixture
def memory() -> ReplayMemory:
    made = ReplayMemory()
    made.remember(ASKED, REPLY.text, IDS, CALLS)
    made.remember([*ASKED, REPLY, *RESULTS], "Done.", (5,))
    return made


def with_arguments(**arguments: Any) -> Message:
    call = replace(CALLS[0], arguments=json.dumps(arguments))
    return replace(REPLY, tool_calls=(call, CALLS[1]))


SAME = {"where": {"y": True, "x": [1, None]}, "n": 2, "path": "a.txt"}


@pytest.mark.parametrize(
    "reply",
    [
        REPLY,
        replace(REPLY, text=""),
        replace(REPLY, text="I look. So."),
        replace(REPLY, reasoning="Hm."),
        with_arguments(**SAME),
        with_arguments(**SAME, follow=None, deep=False),
        replace(with_arguments(**SAME), text=" \n"),
    ],
)
@pytest.mark.parametrize(
    "before", [ASKED, ASKED[1:], [Message("system", "Be long."), ASKED[1]], [*ASKED, *ASKED]]
)
def test_calls_under_our_ids_are_the_sampled_tokens(
    memory: ReplayMemory, before: list[Message], reply: Message
) -> None:
    told = memory.recall([*before, reply, *RESULTS, Message("assistant", "Done.")])
    assert [m.sampled_ids for m in told[len(before) :]] == [IDS, None, None, (5,)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (with_arguments(**{**SAME, "n": 3}), "call_a came back with other arguments"),
        (with_arguments(**{**SAME, "n": "2"}), "call_a came back with other arguments"),
        (with_arguments(**{**SAME, "n": True}), "call_a came back with other arguments"),
        (with_arguments(path="a.txt"), "call_a came back with other arguments"),
        (
            with_arguments(**{**SAME, "where": {"x": [None, 1], "y": True}}),
            "call_a came back with other arguments",
        ),
        (
            replace(REPLY, tool_calls=(replace(CALLS[0], name="write"), CALLS[1])),
            "call_a came back with other arguments",
        ),
        (replace(REPLY, tool_calls=CALLS[:1]), "of the 2 calls that were made with call_a"),
        (
            replace(REPLY, tool_calls=(*CALLS, ToolCall("other", "stop", "{}"))),
            "of the 2 calls that were made with call_a",
        ),
        (replace(REPLY, tool_calls=CALLS[::-1]), "beside the call call_b was changed"),
        (replace(REPLY, text="I looked."), "beside the call call_a was changed"),
    ],
)
def test_what_says_something_else_is_not_replayed_and_why_is_told_once(
    memory: ReplayMemory, reply: Message, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="ds4tui.chat.replies_by_call")
    for _ in range(2):
        told = memory.recall([*ASKED, reply, *RESULTS])
        assert all(m.sampled_ids is None for m in told)
        assert told[2].tool_calls == reply.tool_calls
    assert caplog.text.count("not replayed as it was sampled") == 1 and reason in caplog.text


def test_ids_of_others_say_nothing(memory: ReplayMemory, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ds4tui.chat.replies_by_call")
    calls = tuple(replace(call, id=f"other_{n}") for n, call in enumerate(CALLS))
    told = memory.recall([*ASKED, replace(REPLY, tool_calls=calls)])
    assert told[2].sampled_ids == IDS  # by what it says, in its conversation
    told = memory.recall([*ASKED[1:], replace(REPLY, tool_calls=calls)])
    assert told[1].sampled_ids is None and not caplog.text
    nameless = tuple(replace(call, id="") for call in CALLS)
    assert memory.recall([*ASKED, replace(REPLY, tool_calls=nameless)])[2].sampled_ids == IDS


def test_of_two_equal_replies_the_id_says_which(memory: ReplayMemory) -> None:
    again = tuple(replace(call, id=f"{call.id}2") for call in CALLS)
    memory.remember(ASKED, REPLY.text, (3, 4), again)
    told = [memory.recall([*ASKED, replace(REPLY, tool_calls=c)])[2] for c in (CALLS, again)]
    assert [m.sampled_ids for m in told] == [IDS, (3, 4)]


def test_what_follows_a_reply_without_its_text_is_known_too(memory: ReplayMemory) -> None:
    sent = [*ASKED, replace(REPLY, text=""), *RESULTS]
    memory.remember(sent, "Then.", (6,))
    for text in ("", REPLY.text):
        asked = [*ASKED, replace(REPLY, text=text), *RESULTS, Message("assistant", "Then.")]
        assert memory.recall(asked)[-1].sampled_ids == (6,)


def test_calls_are_known_after_a_restart(tmp_path: Path) -> None:
    shelf = SavedReplies(tmp_path / "replies.sqlite3", b"vocabulary", vocab_size=300)
    ReplayMemory(shelf=shelf).remember(ASKED, REPLY.text, IDS, CALLS)
    later = ReplayMemory(shelf=shelf)
    sent = [Message("user", "Other."), replace(with_arguments(**SAME), text="")]
    assert later.recall(sent)[1].sampled_ids == IDS
    changed = [Message("user", "Other."), with_arguments(**{**SAME, "n": 3})]
    assert later.recall(changed)[1].sampled_ids is None
    shelf.close()


@pytest.mark.parametrize(("length", "left"), [(1, 3), (400, 2)])
def test_what_is_kept_is_bounded(length: int, left: int) -> None:
    memory = ReplayMemory(max_entries=3, max_bytes=13_000)
    calls = [ToolCall(f"c{number}", "f", f'{{"n": {number}}}') for number in range(10)]
    for number, call in enumerate(calls):
        memory.remember(ASKED, str(number), (number,) * length, (call,))
    sent = [Message("assistant", "", tool_calls=(call,)) for call in calls]
    found = [memory.recall([*ASKED, message])[2].sampled_ids for message in sent]
    assert [bool(ids) for ids in found] == [False] * (10 - left) + [True] * left


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False, width=32),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def as_javascript(value: Any, draw: random.Random) -> Any:
    """Written anew: keys in another order, whole floats as whole numbers."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        keys = draw.sample(list(value), len(value))
        return {key: as_javascript(value[key], draw) for key in keys}
    return [as_javascript(item, draw) for item in value] if isinstance(value, list) else value


@settings(max_examples=scaled(150), deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=4), VALUES, max_size=4),
    key=st.text(max_size=4),
    value=VALUES,
    seed=st.integers(0, 2**32),
)
def test_values_decide_and_not_how_they_are_written(
    arguments: dict[str, Any], key: str, value: Any, seed: int
) -> None:
    memory, draw = ReplayMemory(), random.Random(seed)
    call = ToolCall("call_1", "f", json.dumps(arguments))
    memory.remember(ASKED, "", IDS, [call])

    def found(values: dict[str, Any]) -> tuple[int, ...] | None:
        layout = draw.choice([{}, {"indent": 2}, {"separators": (",", ":")}])
        text = json.dumps(as_javascript(values, draw), **layout, ensure_ascii=draw.random() < 0.5)
        sent = Message("assistant", "", tool_calls=(replace(call, arguments=text),))
        return memory.recall([*ASKED[1:], sent])[1].sampled_ids

    assert found(arguments) == IDS
    changed = {**arguments, key: value}
    same = as_javascript(changed, random.Random(0)), as_javascript(arguments, random.Random(0))
    dropped = [{k: v for k, v in each.items() if v is not None and v is not False} for each in same]
    is_same = json.dumps(dropped[0], sort_keys=True) == json.dumps(dropped[1], sort_keys=True)
    assert (found(changed) == IDS) == is_same


def test_the_timeline_is_the_resident_one(tmp_path: Path) -> None:
    tokenizer = formats.tokenizer(tmp_path)
    made, memory = ChatFormat(tokenizer, formats.HERMES), ReplayMemory()
    before = made.render(ASKED).ids.tolist()
    sampled = list(b'I look.\n<tool_call>\n{"name":"read",  "arguments":{"n":1.0}}\n</tool_call>')
    call = ToolCall("call_1", "read", '{"n": 1.0}')
    memory.remember(ASKED, "I look.", sampled, [call])
    sent = Message("assistant", "", tool_calls=(replace(call, arguments='{"n":1}'),))
    told = memory.recall([*ASKED, sent, RESULTS[0]])
    assert made.render(told).ids.tolist()[: len(before) + len(sampled)] == [*before, *sampled]
