"""Events of a reply, told apart: the same in any pieces, no token lost or told twice."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.reply_reader import ReplyReader
from ds4tui.chat.thinking import ThinkingParser
from ds4tui.chat.toolcalls import CallParser
from ds4tui.errors import EngineError
from ds4tui.events import (
    Event,
    Failed,
    Finished,
    Queued,
    ReasoningText,
    StopReason,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    ToolCallRejected,
    Usage,
)
from tests.scale import scaled

BARE = '{"name": "read", "arguments": {"path": "a"}}'
PARTS = [
    *("<think>", "</think>", "\n", "Hm.", "Yes. ", "<tool_call>", "</tool_call>", "```json\n"),
    *("```", BARE, '{"name": "read", "arguments": {', "<tool", "{", "  ", f"<tool_call>{BARE}"),
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


def reader(inside: bool = False) -> ReplyReader:
    ids = iter(f"call_{n}" for n in range(99))
    return ReplyReader(ThinkingParser(inside), CallParser(lambda: next(ids), ("read",)))


def heard(pieces: list[str], ending: Event, inside: bool = False) -> list[Event]:
    """What a listener hears; each piece is a token, its number the id."""
    one = reader(inside)
    events = [TokenText("j", piece, (number,)) for number, piece in enumerate(pieces)]
    return [told for event in [*events, ending] for told in one.read(event)]


def joined(events: list[Event]) -> list[Any]:
    """Without ids; texts of one kind that follow each other are one."""
    found: list[Any] = []
    for event in events:
        if not isinstance(event, TokenText | ReasoningText | ToolCallArguments):
            found.append(event)
        elif found and isinstance(found[-1], tuple) and found[-1][0] is type(event):
            found[-1] = (type(event), found[-1][1] + event.text)
        elif event.text:
            found.append((type(event), event.text))
    return found


@settings(max_examples=scaled(500), deadline=None)
@given(text=TEXTS, seed=st.integers(0, 2**32), inside=st.booleans())
def test_pieces_change_nothing_and_every_token_is_told_once(
    text: str, seed: int, inside: bool
) -> None:
    ending = Finished("j", "stop", Usage())
    draw = random.Random(seed)
    cuts = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = joined(heard([text], ending, inside))
    for cut in (pieces, list(text)):
        events = heard(cut, ending, inside)
        assert joined(events) == whole
        ids = [i for e in events if isinstance(e, TokenText | ReasoningText) for i in e.token_ids]
        assert ids == list(range(len(cut)))
    calls = any(isinstance(e, ToolCallEnded) for e in whole)
    assert whole[-1].stop_reason == ("tool_calls" if calls else "stop")


def test_what_the_reader_holds_is_what_it_told() -> None:
    one = reader()
    for piece in ("<think>Hm", ".</think>Ye", f"s.\n<tool_call>{BARE}"):
        one.read(TokenText("j", piece, ()))
    one.read(Finished("j", "length", Usage()))
    assert (one.reasoning, one.text) == ("Hm.", "Yes.")
    assert [(c.name, c.arguments) for c in one.calls] == [("read", '{"path": "a"}')]


def test_other_events_pass_and_without_parsers_all_is_text() -> None:
    plain = ReplyReader(None, None)
    for event in (Queued("j", 0), TokenText("j", f"<think>{BARE}", (1,))):
        assert plain.read(event) == [event]
    assert plain.text == f"<think>{BARE}"
    assert plain.read(TokenText("j", "", (2,))) == [TokenText("j", "", (2,))]


def test_a_call_that_breaks_off_is_taken_back_before_a_failure_ends_it() -> None:
    failure = Failed("j", EngineError("broken"))
    text = '<tool_call>{"name": "read", "arguments": {"pa'
    events = heard([text], failure)
    assert [type(e) for e in events if e != TokenText("j", "", (0,))] == [
        ToolCallBegun,
        ToolCallArguments,
        ToolCallRejected,
        TokenText,
        TokenText,
        Failed,
    ]
    assert "".join(e.text for e in events if isinstance(e, TokenText)) == text


def finished(text: str, reason: StopReason = "stop") -> list[Any]:
    ending = Finished("j", reason, Usage())
    whole = joined(heard(list(text), ending, inside=True))
    assert whole == joined(heard([text], ending, inside=True))
    return whole


def test_a_call_ends_reasoning_that_was_never_closed() -> None:
    call = f"<tool_call>\n{BARE}\n</tool_call>"
    *told, end = finished(f"I look.\n{call}\n")
    assert told[0] == (ReasoningText, f"I look.\n{call}")
    assert told[1:] == [
        ToolCallBegun("j", 0, "call_0", "read"),
        (ToolCallArguments, '{"path": "a"}'),
        ToolCallEnded("j", 0, "call_0", "read", '{"path": "a"}'),
    ]
    assert end.stop_reason == "tool_calls"


def test_calls_elsewhere_in_reasoning_are_thoughts() -> None:
    call = f"<tool_call>\n{BARE}\n</tool_call>"
    for text in (
        f"{call} is how I would call it.",
        f"I write `{call}`",
        BARE,
        f"Hm.\n{call}\n</think>\nNo.",
    ):
        told = finished(text)
        assert not any(isinstance(event, ToolCallBegun) for event in told)
        assert told[-1].stop_reason == "stop"
    assert finished(f"Hm.{call}", "length")[-1].stop_reason == "length"
