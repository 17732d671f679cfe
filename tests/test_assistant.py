"""The assistant: exact replay from turn to turn, refusals before work, and its fakes' honesty."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from ds4tui.assistant import Assistant
from ds4tui.chat.grammars import ToolChoice
from ds4tui.chat.messages import Image, Message, Tool, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.worker import Engine
from ds4tui.errors import ContextOverflow, EngineClosed, EngineError, RequestError, UsageError
from ds4tui.events import (
    Decision,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    ReasoningText,
    TokenText,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
    ToolCallRejected,
)
from tests.chat import formats, sights
from tests.chat.sights import FakeVision
from tests.fake_model import END_OF_TURN, ROLE_IDS, ByteTokenizer, FakeModel, scripted
from tests.fakes import EventLog, FakeAssistant, FakeChatFormat, FakeEngine, fake_info

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
GREEDY_LONG = SamplingParams(temperature=0.0)
HELLO = (Message("user", "Hello"),)


@pytest.fixture
def fake() -> Iterator[FakeAssistant]:
    assistant = FakeAssistant("A reply.")
    yield assistant
    assistant.close()


def over_the_real_engine(model: FakeModel) -> Assistant:
    engine = Engine(lambda: LoadedModel("fake", model, ByteTokenizer()))  # type: ignore[arg-type]
    engine.start()
    engine.wait_ready(20)
    return Assistant(fake_info(model.context_tokens), engine, FakeChatFormat())  # type: ignore[arg-type]


def chat(
    assistant: Assistant, messages: Any = HELLO, sampling: SamplingParams = GREEDY
) -> EventLog:
    log = EventLog()
    job = assistant.chat(messages, sampling, log)
    assert job.wait(20)
    return log


def finished(log: EventLog) -> Finished:
    ending = log.wait_end()
    assert isinstance(ending, Finished), ending
    return ending


def decision(log: EventLog) -> Decision:
    found: Decision = log.of_type(Decision)[0]
    return found


def follow_up(reply: str) -> list[Message]:
    return [*HELLO, Message("assistant", reply), Message("user", "Go on")]


@pytest.fixture
def real() -> Iterator[Assistant]:
    """The real engine; the fake model babbles random bytes that are no text: only exact replay
    can find them again."""
    assistant = over_the_real_engine(FakeModel())
    yield assistant
    assistant.close()


@pytest.mark.parametrize("alter", [str, str.strip, lambda text: f" {text}\n"])
def test_a_reply_sent_back_renders_to_what_is_resident(real: Assistant, alter: Any) -> None:
    first = chat(real)
    assert len(finished(first).token_ids) > 1
    second = chat(real, follow_up(alter(first.text)))
    assert decision(second).kind == "extend"
    assert decision(second).kept == decision(first).prompt + len(finished(first).token_ids) - 1


def test_an_edited_reply_is_not_taken_for_the_sampled_one(real: Assistant) -> None:
    first = chat(real)
    edited = chat(real, follow_up("Something else"))
    assert decision(edited).kind == "rewind"
    assert decision(edited).kept == decision(first).prompt


def test_a_cancelled_reply_is_remembered_too(fake: FakeAssistant) -> None:
    fake.engine.hold()
    log = EventLog()
    job = fake.chat(HELLO, GREEDY, log)
    fake.engine.release(3)
    log.wait_for(lambda e: isinstance(e, PrefillProgress) and e.done == e.total)
    fake.engine.release(3)
    log.wait_for(lambda e: isinstance(e, TokenText) and log.text == "A r")
    job.cancel()
    assert finished(log).stop_reason == "cancelled"
    fake.engine.release()
    resumed = chat(fake, follow_up("A r"))
    assert decision(resumed).kept == decision(log).prompt + 2  # the last one was not fed


def test_after_a_stop_string_the_reply_is_rendered_from_its_text() -> None:
    assistant = FakeAssistant("one STOP two")
    first = chat(assistant, sampling=SamplingParams(stop=("STOP",)))
    assert (first.text, finished(first).stop_string) == ("one ", "STOP")
    expected = assistant.format.render(follow_up("one "))
    assert assistant.render(follow_up("one ")) == expected
    second = chat(assistant, follow_up("one "))
    assert decision(second).kept == decision(first).prompt + len("one ")
    assistant.close()


def test_a_reply_with_a_control_token_is_rendered_from_its_text() -> None:
    """The model forges a turn; what it says of it is not seen and not told to it again."""
    model = FakeModel()
    assistant = over_the_real_engine(model)
    prompt = len(assistant.render(HELLO))
    model.choose = scripted(prompt, [*b"He", ROLE_IDS["user"], *b"llo", END_OF_TURN])
    first = chat(assistant)
    assert (first.text, finished(first).stop_reason) == ("Hello", "stop")
    assert ROLE_IDS["user"] in finished(first).token_ids
    expected = assistant.format.render(follow_up("Hello"))
    assert assistant.render(follow_up("Hello")) == expected
    second = chat(assistant, follow_up("Hello"))
    assert decision(second).kept == prompt + len("He")
    assistant.close()


READ = '<tool_call>\n{"name":"read","arguments":{"path":"a.txt","from":1}}\n</tool_call>'
TOOLS = (Tool("read", "Reads a file.", '{"type": "object"}'),)


def told(log: EventLog) -> list[Any]:
    """Texts and calls, those of one kind that follow each other as one."""
    found: list[Any] = []
    for event in log.events:
        kind = type(event).__name__
        if isinstance(event, TokenText | ReasoningText | ToolCallArguments):
            if found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + event.text)
            elif event.text:
                found.append((kind, event.text))
        elif isinstance(event, ToolCallBegun | ToolCallEnded):
            found.append((kind, event.name))
        elif isinstance(event, Finished):
            found.append((kind, event.stop_reason))
    return found


def test_reasoning_text_and_calls_are_told_apart() -> None:
    assistant = FakeAssistant(f"<think>\nHm.\n</think>\n\nI look.\n{READ}")
    assistant.format.template = "fake <think>"
    log = EventLog()
    assert assistant.chat(HELLO, GREEDY_LONG, log, tools=TOOLS).wait(20)
    assert told(log) == [
        ("ReasoningText", "Hm."),
        ("TokenText", "I look."),
        ("ToolCallBegun", "read"),
        ("ToolCallArguments", '{"path":"a.txt","from":1}'),
        ("ToolCallEnded", "read"),
        ("Finished", "tool_calls"),
    ]
    ids = [i for e in log.of_type(TokenText) + log.of_type(ReasoningText) for i in e.token_ids]
    assert sorted(ids) == sorted(finished(log).token_ids)  # each once
    ended: ToolCallEnded = log.of_type(ToolCallEnded)[0]
    assert ended.arguments == '{"path": "a.txt", "from": 1}'
    assert ended.call_id == log.of_type(ToolCallBegun)[0].call_id
    assistant.close()


@pytest.mark.parametrize("tools", [(), TOOLS])
def test_calls_are_read_only_where_tools_were_offered(tools: Any) -> None:
    assistant = FakeAssistant(READ)
    log = EventLog()
    assert assistant.chat(HELLO, GREEDY_LONG, log, tools=tools).wait(20)
    assert log.text == ("" if tools else READ)
    assert bool(log.of_type(ToolCallEnded)) == bool(tools)
    assistant.close()


def test_who_may_not_call_gets_the_same_prompt_and_never_opens_a_call() -> None:
    assistant = FakeAssistant(READ)
    assistant.format.tokenizer.user_defined_texts = {"<tool_call>": 7}
    prompts = []
    for kind in ("auto", "none"):
        log = EventLog()
        choice = ToolChoice(kind)
        assert assistant.chat(HELLO, GREEDY_LONG, log, tools=TOOLS, choice=choice).wait(20)
        assert bool(log.of_type(ToolCallEnded)) == (kind == "auto")
        prompts.append(assistant.engine.requests[-1])
    free, kept = prompts
    assert free.timeline == kept.timeline and free.sampling == GREEDY_LONG
    assert kept.sampling == replace(GREEDY_LONG, logit_bias=((7, -1e4),))
    assistant.close()


def test_a_call_that_is_cut_off_is_text_and_the_reply_ends_by_length() -> None:
    assistant = FakeAssistant(READ)
    log = EventLog()
    sampling = SamplingParams(temperature=0.0, max_tokens=50)
    assert assistant.chat(HELLO, sampling, log, tools=TOOLS).wait(20)
    assert log.text == READ[:50] and finished(log).stop_reason == "length"
    assert [e.index for e in log.of_type(ToolCallRejected)] == [0]
    assistant.close()


@pytest.mark.parametrize("failure", [None, EngineError("broken")])
def test_what_was_held_back_is_told_before_the_end(failure: Exception | None) -> None:
    text = "a <tool"
    assistant = FakeAssistant(text, error=failure, fail_after=len(text))
    log = EventLog()
    assert assistant.chat(HELLO, GREEDY_LONG, log, tools=TOOLS).wait(20)
    assert log.text == text and isinstance(log.events[-1], Failed if failure else Finished)
    assistant.close()


SENT_BACK = [
    '{"path": "a.txt", "from": 1}',
    '{"from": 1, "path": "a.txt"}',
    '{\n  "path" : "a.txt",\n  "from" : 1\n}',
]


@pytest.mark.parametrize("arguments", SENT_BACK)
@pytest.mark.parametrize("text", ["I look.", " I look.\n"])
def test_a_call_sent_back_in_any_layout_is_the_sampled_tokens(arguments: str, text: str) -> None:
    """Nor does it matter which id it has and that its reasoning is gone."""
    assistant = FakeAssistant(f"<think>Hm.</think>I look.\n{READ}")
    assistant.format.template = "fake <think>"
    first = EventLog()
    assert assistant.chat(HELLO, GREEDY_LONG, first, tools=TOOLS).wait(20)
    call = ToolCall("call_x", "read", arguments)
    result = Message("tool", "contents", tool_call_id="call_x", name="read")
    messages = [*HELLO, Message("assistant", text, tool_calls=(call,)), result]
    second = EventLog()
    assert assistant.chat(messages, GREEDY_LONG, second, tools=TOOLS).wait(20)
    assert decision(second).kind == "extend"
    assert decision(second).kept == decision(first).prompt + len(finished(first).token_ids) - 1
    other = replace(call, arguments='{"path": "b.txt", "from": 1}')
    messages[1] = Message("assistant", text, tool_calls=(other,))
    third = EventLog()
    assert assistant.chat(messages, GREEDY_LONG, third, tools=TOOLS).wait(20)
    assert decision(third).kept < decision(first).prompt + len(finished(first).token_ids) - 1
    assistant.close()


def test_tools_count_for_what_cannot_fit(fake: FakeAssistant) -> None:
    tools = (Tool("read", "x" * 5000, '{"type": "object"}'),)
    with pytest.raises(ContextOverflow, match="at least"):
        fake.chat(HELLO, GREEDY, EventLog(), tools=tools)


def test_refusals_come_before_any_work(fake: FakeAssistant) -> None:
    with pytest.raises(RequestError):
        fake.chat((), GREEDY, EventLog())
    with pytest.raises(ContextOverflow):
        fake.chat((Message("user", "x" * 5000),), GREEDY, EventLog())
    assert fake.engine.requests == []


class NeverEncodes(FakeChatFormat):
    """Rendering or encoding what cannot fit may take minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer.encode = None

    def laid_out(self, *arguments: Any) -> Any:
        raise AssertionError("rendered")


def test_what_cannot_fit_is_refused_before_it_is_rendered(fake: FakeAssistant) -> None:
    fake.format = NeverEncodes()  # type: ignore[assignment]
    huge = [
        Message("system", "x" * 2000),
        Message("user", "y" * 2000),
        Message("assistant", "z" * 97),
    ]
    with pytest.raises(ContextOverflow, match="at least 4,097 tokens") as refusal:
        fake.chat(huge, GREEDY, EventLog())
    assert (refusal.value.prompt_tokens, refusal.value.context_tokens) == (4097, 4096)
    with pytest.raises(ContextOverflow, match="at least 5,000 tokens"):
        fake.complete("x" * 5000, GREEDY, EventLog())
    with pytest.raises(AssertionError, match="rendered"):  # blanks may be trimmed
        fake.chat([Message("user", " " * 9000 + "x")], GREEDY, EventLog())


def test_a_prompt_as_long_as_the_context_leaves_no_room(fake: FakeAssistant) -> None:
    with pytest.raises(ContextOverflow, match=r"4,096 tokens.* leaves no room for a reply"):
        fake.complete("x" * 4096, GREEDY, EventLog())


def test_complete_takes_the_text_as_it_is(fake: FakeAssistant) -> None:
    log = EventLog()
    assert fake.complete("a<end>", GREEDY, log).wait(20)
    assert fake.engine.requests[0].timeline.ids.tolist() == list(b"a<end>")
    assert log.text == "A reply."


def test_requests_carry_where_their_turns_lie(fake: FakeAssistant) -> None:
    fake.chat(HELLO, GREEDY, EventLog()).wait(20)
    request = fake.engine.requests[0]
    *turns, opening = request.outline
    assert [turn.role for turn in turns] == [message.role for message in HELLO]
    assert opening.role == "opening" and opening.end == len(request.timeline)


def test_a_conversation_is_known_by_the_person_s_first_words_and_not_the_template_s() -> None:
    assistant = over_the_real_engine(FakeModel())
    chat(assistant, [Message("system", "You are helpful."), *follow_up("Hi")])
    (session,) = assistant.stats.sessions
    assert (session.what, session.state) == ("person: Hello", "READY")
    assert assistant.stats.decisions[-1].what == "person: Hello"
    chat(assistant, [Message("system", "You only."), Message("assistant", "Hm")])
    assert assistant.stats.sessions[0].what == "person: (no words)"
    assistant.close()


def test_a_reply_that_is_not_remembered_is_spelt_as_it_is_resident(tmp_path: Path) -> None:
    """Its conversation began otherwise, and yet its text is what is resident."""
    chat_format = ChatFormat(formats.tokenizer(tmp_path), formats.CORPUS["chatml"])
    engine = FakeEngine(reply="th", context_tokens=4096)
    assistant = Assistant(fake_info(), engine, chat_format)
    assistant.chat(HELLO, GREEDY, EventLog()).wait(20)  # the fake samples byte by byte
    more = [*HELLO, Message("assistant", "th?"), Message("user", "And?")]
    known = [*HELLO, Message("assistant", "th?", (*b"th", ord("?"))), Message("user", "And?")]
    assert assistant.render(more) == chat_format.render(known) != chat_format.render(more)
    assistant.close()


def test_a_reply_that_was_stopped_is_spelt_as_it_is_resident(tmp_path: Path) -> None:
    chat_format = ChatFormat(formats.tokenizer(tmp_path), formats.CORPUS["chatml"])
    engine = FakeEngine(reply="thEND", context_tokens=4096)
    assistant = Assistant(fake_info(), engine, chat_format)
    log = EventLog()
    assistant.chat(HELLO, replace(GREEDY, stop=("END",)), log).wait(20)
    assert log.text == "th"
    known = [*HELLO, Message("assistant", "th", tuple(b"th")), Message("user", "And?")]
    more = [*HELLO, Message("assistant", "th"), Message("user", "And?")]
    assert assistant.render(more) == chat_format.render(known) != chat_format.render(more)
    assistant.close()


def test_requests_carry_origin_sampling_and_stop_tokens(fake: FakeAssistant) -> None:
    fake.chat(HELLO, GREEDY, EventLog(), "agent").wait(20)
    request = fake.engine.requests[0]
    assert (request.origin, request.sampling) == ("agent", GREEDY)
    assert request.stop_token_ids == {END_OF_TURN}


def test_stats_and_close_are_the_engines(fake: FakeAssistant) -> None:
    chat(fake)
    assert fake.stats is fake.engine.stats
    assert fake.stats.requests == 1
    fake.close()
    assert fake.stats.state == "closed"
    with pytest.raises(EngineClosed):
        fake.chat(HELLO, GREEDY, EventLog())


def summary(log: EventLog) -> list[Any]:
    """What front-ends see, without times: kinds of events in order, counts and text."""
    end = finished(log)
    usage = end.usage
    return [
        [kind.__name__ for kind, _ in groupby(log.events, type)],
        log.text,
        end.token_ids,
        (end.stop_reason, end.stop_string),
        (usage.prompt_tokens, usage.cached_tokens, usage.evaluated_tokens),
        (decision(log).kind, decision(log).kept, decision(log).evaluated),
    ]


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParams(temperature=0.0, max_tokens=3),
        SamplingParams(temperature=0.0, stop=("STOP",)),
    ],
)
def test_the_fake_engine_says_what_the_real_one_says(sampling: SamplingParams) -> None:
    reply = "Hé STOP you"
    fake = FakeAssistant(reply)
    model = FakeModel()
    model.choose = scripted(len(fake.render(HELLO)), [*reply.encode(), END_OF_TURN])
    real = over_the_real_engine(model)
    for _ in range(2):
        assert summary(chat(fake, sampling=sampling)) == summary(chat(real, sampling=sampling))
    fake.close()
    real.close()


def test_the_fake_engine_can_fail_and_close_in_the_middle() -> None:
    failing = FakeAssistant("A reply.", error=EngineError("broken"), fail_after=2)
    log = chat(failing)
    assert isinstance(log.events[-1], Failed)
    assert log.text == "A "
    failing.engine.error = None
    failing.engine.hold()
    held = EventLog()
    failing.chat(HELLO, GREEDY, held)
    failing.close()
    assert finished(held).stop_reason == "cancelled"


def test_a_listener_hears_every_event_once(fake: FakeAssistant) -> None:
    heard: list[Event] = []
    fake.chat(HELLO, GREEDY, heard.append).wait(20)
    assert [type(e).__name__ for e in heard[:2]] == ["Queued", "Decision"]
    assert sum(isinstance(e, Finished) for e in heard) == 1
    assert "".join(e.text for e in heard if isinstance(e, TokenText)) == "A reply."


# --- images -----------------------------------------------------------------------


def asked(*files: bytes, text: str = "What is it?") -> Message:
    return Message("user", text, images=tuple(Image(data, 0, data.decode()) for data in files))


def test_pictures_go_to_the_engine_once_each_and_are_decoded_once() -> None:
    vision = FakeVision(vectors=5)
    fake = FakeAssistant("A cat.", vision=vision)
    told = [asked(b"red", b"blue", b"red")]
    log = chat(fake, told)
    told += [Message("assistant", log.text), asked(b"green")]
    chat(fake, told)
    first, second = fake.engine.requests
    assert len(first.timeline.spans) == 3 and len(first.pictures) == 2
    assert {p.fingerprint for p in second.pictures} == {
        s.fingerprint for s in second.timeline.spans
    }
    assert vision.decoded == [b"red", b"blue", b"green"]
    assert second.timeline.common_prefix(first.timeline) == len(first.timeline)
    fake.close()


def test_a_picture_sent_in_another_file_costs_nothing() -> None:
    fake = FakeAssistant("A cat.", vision=FakeVision())
    log = chat(fake, [asked(b"red")])
    chat(fake, [asked(b"red!again"), Message("assistant", log.text + " "), asked(text="And?")])
    first, second = fake.engine.requests
    assert second.timeline.common_prefix(first.timeline) == len(first.timeline)
    fake.close()


def test_a_swapped_picture_is_another_prompt_from_there() -> None:
    fake = FakeAssistant("A cat.", vision=FakeVision())
    log = chat(fake, [asked(b"red")])
    chat(fake, [asked(b"blue"), Message("assistant", log.text), asked(text="And?")])
    first, second = fake.engine.requests
    start = first.timeline.spans[0].start
    assert second.timeline.common_prefix(first.timeline) == start
    fake.close()


def test_a_text_only_model_refuses_images_before_work_starts() -> None:
    fake = FakeAssistant("A cat.", vision_refusal="fake sees no pictures: load another.")
    with pytest.raises(RequestError, match="fake sees no pictures: load another") as raised:
        fake.chat([asked(b"red")], GREEDY, EventLog())
    assert raised.value.param == "messages" and fake.engine.requests == []
    fake.close()


def test_a_bad_picture_is_named_before_work_starts() -> None:
    fake = FakeAssistant("A cat.", vision=FakeVision())
    with pytest.raises(UsageError, match=r"^bad 2 is no picture"):
        fake.chat([asked(b"red", b"bad 2")], GREEDY, EventLog())
    assert fake.engine.requests == []
    fake.close()


def test_rows_beyond_the_context_are_told_with_both_numbers_and_what_to_do() -> None:
    vision = FakeVision(vectors=100)
    fake = FakeAssistant("A cat.", vision=vision, context_tokens=250)
    files = [b"%d" % number for number in range(9)]
    with pytest.raises(ContextOverflow) as raised:
        fake.chat([asked(*files)], GREEDY, EventLog())
    told = str(raised.value)
    assert "at least" in told and "320 tokens, the context holds 250" in told
    assert "Images take 309 or more" in told and "images_kept" in told
    assert len(vision.decoded) == 3  # no more than were needed to know
    assert len(fake.render([asked(*files)])) > 250  # whoever counts tokens is told
    fake.close()


def test_the_last_images_are_kept_where_that_is_set(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ds4tui")
    vision = FakeVision()
    fake = FakeAssistant("A cat.", vision=vision, images_kept=2)
    log = chat(fake, [asked(b"1")])
    assert decision(log).images_left_out == 0
    told = [asked(b"1"), Message("assistant", log.text), asked(b"2", b"3")]
    assert decision(chat(fake, told)).images_left_out == 1
    assert [span.fingerprint for span in fake.engine.requests[1].timeline.spans] == [
        vision(b"2").fingerprint,
        vision(b"3").fingerprint,
    ]
    assert len(fake.engine.requests[1].pictures) == 2
    assert "1 earlier images are left out (images_kept)" in caplog.text
    assert b"[earlier image left out]" in bytes(
        i for i in fake.engine.requests[1].timeline.ids.tolist() if 0 <= i < 256
    )
    fake.close()


def test_a_bad_picture_that_is_left_out_keeps_nobody_from_going_on() -> None:
    fake = FakeAssistant("A cat.", vision=FakeVision(), images_kept=1)
    chat(fake, [asked(b"bad"), Message("assistant", "Ok."), asked(b"red")])
    assert len(fake.engine.requests[0].timeline.spans) == 1
    fake.close()


def test_replies_stay_what_was_sampled_when_an_image_before_them_is_left_out(
    tmp_path: Path,
) -> None:
    chat_format = ChatFormat(sights.tokenizer(tmp_path), formats.CORPUS["chatml"])
    engine = FakeEngine(reply="th", context_tokens=4096)
    vision = FakeVision()
    assistant = Assistant(fake_info(), engine, chat_format, vision=vision, images_kept=1)
    assistant.chat([asked(b"red")], GREEDY, EventLog()).wait(20)  # the fake samples byte by byte
    more = [asked(b"red"), Message("assistant", "th"), asked(b"blue")]
    known = [
        Message("user", "[earlier image left out]What is it?"),
        Message("assistant", "th", tuple(b"th")),
        asked(b"blue"),
    ]
    assert assistant.render(more) == chat_format.render(known, picture_of=vision.of)
    assistant.close()
