"""Tail mismatch, as people met it in other systems: each kind of it, with what is right here.

Requests are in clients' own JSON, replies are sampled by a fake engine, everything between is
real. The numbers are those of the collection of public faults, section 5a. What a model saw and
said must begin the next prompt, so that nothing of it is computed again.
"""

import copy
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import pytest

from ds4tui.assistant import Assistant
from ds4tui.cache.timeline import Timeline
from ds4tui.chat.messages import Message
from ds4tui.chat.rendering import ChatFormat, ThinkingInHistory
from ds4tui.engine.requests import GenerateRequest, SamplingParams
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import RequestError
from ds4tui.events import Finished
from ds4tui.server.fields import Fields
from ds4tui.server.openai_messages import read_messages, read_tools
from tests.chat import formats
from tests.chat.formats import ID
from tests.fakes import EventLog, FakeEngine, fake_info

Json = dict[str, Any]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
SYSTEM = {"role": "system", "content": "You help with code. " * 20}
QUESTION = {"role": "user", "content": "Read a.txt."}
CALLING = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt", "n": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return formats.tokenizer(tmp_path_factory.mktemp("vocabulary"))


class Desk:
    """Where a client's requests arrive."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self.replies: list[str] = []
        self.engine = FakeEngine(self._reply, context_tokens=100_000)
        self.assistant = Assistant(fake_info(100_000), self.engine, chat_format)
        self.seen = Timeline.empty()  # what the model saw and said, up to its last reply

    def _reply(self, request: GenerateRequest) -> str:
        return self.replies.pop(0)

    def ask(
        self,
        messages: Sequence[Json],
        reply: str = "Well.",
        tools: Sequence[Json] = (),
        thinking: bool | None = None,
    ) -> Timeline:
        """The prompt that `messages` became."""
        fields = Fields({"messages": list(messages), "tools": list(tools)})
        self.replies.append(reply)
        log = EventLog()
        self.assistant.chat(
            read_messages(fields),
            SamplingParams(temperature=0.0),
            log,
            tools=read_tools(fields),
            thinking=thinking,
        ).wait(20)
        prompt = self.engine.requests[-1].timeline
        ended = log.wait_end()
        assert isinstance(ended, Finished)
        self.seen = prompt.extended(ended.token_ids)
        return prompt

    def goes_on(self, *request: Any, **more: Any) -> Timeline:
        """Ask, and see that all the model saw and said begins the prompt."""
        seen = self.seen
        prompt = self.ask(*request, **more)
        assert seen.common_prefix(prompt) == len(seen)
        return prompt


Desks = Callable[..., Desk]


@pytest.fixture
def desk_of(tokenizer: Tokenizer) -> Iterator[Desks]:
    desks: list[Desk] = []

    def made(name: str, wish: ThinkingInHistory = "keep") -> Desk:
        template = formats.CORPUS.get(name, name)
        desks.append(Desk(ChatFormat(tokenizer, template, thinking_in_history=wish)))
        return desks[-1]

    yield made
    for desk in desks:
        desk.assistant.close()


def calls(arguments: Any, call_id: str = "call_1", **more: Any) -> Json:
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": "read", "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


def result(text: str, call_id: str = "call_1") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def said(text: str) -> Json:
    return {"role": "assistant", "content": text}


def asked(text: str) -> Json:
    return {"role": "user", "content": text}


ARGUMENTS = '{"path": "a.txt", "n": 1}'


def test_t01_a_thinking_switch_that_is_turned_later_changes_no_history(desk_of: Desks) -> None:
    desk = desk_of("merged results")
    told = [SYSTEM, QUESTION]
    desk.ask(told, "<think>\nHm.\n</think>\n\nDone.")
    told += [said("Done."), asked("More.")]
    desk.goes_on(told, "<think>\nSo.\n</think>\n\nYes.", thinking=True)
    told += [said("Yes."), asked("And more.")]
    desk.goes_on(told, "No.", thinking=False)


def test_t02_a_marker_of_the_last_question_stays_when_the_next_comes(desk_of: Desks) -> None:
    desk = desk_of("unstable")
    told = [SYSTEM, QUESTION]
    desk.ask(told, CALLING, TOOLS)
    for number in range(5):
        told += [calls(ARGUMENTS), result(f"line {number}")]
        desk.goes_on(told, CALLING, TOOLS)
    told += [calls(ARGUMENTS), result("the end"), asked("Thanks. What now?")]
    desk.goes_on(told, "Rest.", TOOLS)


def test_t04_a_new_question_drops_no_reasoning_of_the_rounds_before(desk_of: Desks) -> None:
    desk = desk_of("merged results")
    told = [SYSTEM, QUESTION]
    desk.ask(told, f"<think>\nLook.\n</think>\n\n{CALLING}", TOOLS)
    for number in range(9):
        told += [calls(ARGUMENTS), result(f"line {number}")]
        desk.goes_on(told, f"<think>\nLook {number}.\n</think>\n\n{CALLING}", TOOLS)
    told += [calls(ARGUMENTS), result("the end")]
    desk.goes_on(told, "<think>\nDone.\n</think>\n\nThere.", TOOLS)
    told += [said("There."), asked("A new question.")]
    desk.goes_on(told, "Well.", TOOLS)


def test_t05_replies_without_reasoning_get_no_empty_thoughts(desk_of: Desks) -> None:
    desk = desk_of("merged results")
    told = [SYSTEM, QUESTION, said("Of another model."), asked("More.")]
    prompt = desk.ask(told, "Yes.")
    assert ID["<think>"] not in prompt.ids
    told += [said("Yes."), asked("And more.")]
    assert ID["<think>"] not in desk.goes_on(told).ids


def test_t07_thoughts_without_tools_are_resident_in_the_next_turn(desk_of: Desks) -> None:
    desk = desk_of("open thought")
    told = [SYSTEM, QUESTION]
    desk.ask(told, "Hm, hm.\n</think>\n\nIt is 4.")
    for number in range(3):
        told += [said("It is 4."), asked(f"Sure? {number}")]
        desk.goes_on(told, "Hm.\n</think>\n\nIt is 4.")


@pytest.mark.parametrize("name", ["merged results", "open thought", "thinking", "chatml"])
def test_t08_a_history_of_contents_only_is_what_was_sampled(desk_of: Desks, name: str) -> None:
    desk = desk_of(name)
    desk.ask([SYSTEM, QUESTION], "<think>\nHm.\n</think>\n\nDone.\n")
    content = "Done." if name != "chatml" else "<think>\nHm.\n</think>\n\nDone."
    desk.goes_on([SYSTEM, QUESTION, said(content), asked("More.")])


def test_t09_a_history_without_its_reasoning_is_another_timeline(tokenizer: Tokenizer) -> None:
    """What is stored of the one can never be found under the other's name."""
    reply = Message("assistant", "4", (ID["<think>"], *b"hm", ID["</think>"], ord("4")))
    told = [Message("user", "2 + 2?"), reply, Message("user", "Sure?")]
    template = formats.CORPUS["merged results"]
    kept = ChatFormat(tokenizer, template).laid_out(told)
    dropped = ChatFormat(tokenizer, template, thinking_in_history="drop").laid_out(told)
    assert kept.timeline.digest() != dropped.timeline.digest()
    assert kept.timeline.common_prefix(dropped.timeline) == len(
        ChatFormat(tokenizer, template).render(told[:1])
    )
    assert [turn.has_reasoning for turn in kept.outline] == [False, True, False, False]
    assert not any(turn.has_reasoning for turn in dropped.outline)
    assert kept.outline[1].digest == dropped.outline[1].digest
    assert "computed again" in dropped.notes[0]


def test_t11_arguments_as_text_cost_nothing_and_nothing_is_swallowed(
    desk_of: Desks, caplog: pytest.LogCaptureFixture
) -> None:
    desk = desk_of("hermes")
    desk.ask([SYSTEM, QUESTION], CALLING, TOOLS)
    with caplog.at_level(logging.DEBUG, "ds4tui.chat"):
        as_text = desk.goes_on([SYSTEM, QUESTION, calls(ARGUMENTS), result("x")], "a", TOOLS)
        as_object = desk.ask(
            [SYSTEM, QUESTION, calls(json.loads(ARGUMENTS)), result("x")], "a", TOOLS
        )
    assert as_text == as_object
    assert caplog.text == ""


ITEMS = formats.roles(
    "<|{{ m.role }}|>{{ m.content or '' }}",
    "{% for call in m.tool_calls or [] %}",
    "{% for key, value in call.function.arguments | items %}{{ key ~ '=' ~ value }}{% endfor %}",
    "{% endfor %}<|end|>",
) + ("{% if add_generation_prompt %}<|assistant|>{% endif %}")


def test_t12_arguments_as_text_go_to_templates_that_take_them_apart(desk_of: Desks) -> None:
    desk = desk_of(ITEMS)
    prompt = desk.ask([SYSTEM, QUESTION, calls(ARGUMENTS), result("x")])
    text = desk.assistant.format.tokenizer.decode(prompt.ids.tolist(), skip_special=False)
    assert "path=a.txtn=1<|end|>" in text


@pytest.mark.parametrize("name", ["hermes", "by text", "chatml", "merged results", ITEMS])
@pytest.mark.parametrize(
    "arguments", ["{'path': 'a.txt'}", '{"path": "a.t', "[1]", "None", '"text"', "path=a.txt"]
)
def test_t13_malformed_arguments_are_the_clients_fault(
    desk_of: Desks, name: str, arguments: str
) -> None:
    with pytest.raises(RequestError, match="arguments") as caught:
        desk_of(name).ask([SYSTEM, QUESTION, calls(arguments), result("x")], tools=TOOLS)
    assert caught.value.http_status == 400
    assert caught.value.param is not None and "tool_calls" in caught.value.param


@pytest.mark.parametrize("name", ["hermes", "by text", "chatml", "merged results", ITEMS])
@pytest.mark.parametrize("arguments", ["", "  ", "{}", {}, None])
def test_t13_no_arguments_are_none(desk_of: Desks, name: str, arguments: Any) -> None:
    desk = desk_of(name)
    prompt = desk.ask([SYSTEM, QUESTION, calls(arguments), result("x")], tools=TOOLS)
    assert prompt == desk.ask([SYSTEM, QUESTION, calls("{}"), result("x")], tools=TOOLS)


FOUND = {"lines": ["one", "two"], "size": {"bytes": 8, "unit": "B"}, "path": "a.txt"}


def shuffled(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: shuffled(value[key]) for key in reversed(value)}


@pytest.mark.parametrize("name", ["hermes", "merged results", "chatml", "by text"])
def test_t14_shuffled_keys_in_calls_and_results_change_nothing(desk_of: Desks, name: str) -> None:
    desk = desk_of(name)
    told = [SYSTEM, QUESTION]
    desk.ask(told, CALLING, TOOLS)
    told += [calls(ARGUMENTS), result(json.dumps(FOUND))]
    desk.goes_on(told, CALLING, TOOLS)
    again = [
        SYSTEM,
        QUESTION,
        calls('{"n":1,"path":"a.txt"}', "other"),
        result(json.dumps(shuffled(FOUND), indent=1), "other"),
        calls({"n": 1, "path": "a.txt"}, "another"),
        result("more", "another"),
    ]
    desk.goes_on(again, "Done.", TOOLS)


def billed(number: int) -> Json:
    header = f"x-anthropic-billing-header: cc_version=2.1.{36 + number}; cch={number:05x};"
    return {"role": "system", "content": f"{header}\n{SYSTEM['content']}"}


def test_t16_an_accounting_header_stays_as_it_was(desk_of: Desks) -> None:
    desk = desk_of("chatml")
    told = [QUESTION]
    prompt = desk.ask([billed(0), *told])
    for number in range(1, 4):
        told += [said("Well."), asked(f"More {number}")]
        desk.goes_on([billed(number), *told])
    # Other conversations with the same system text share it too.
    other = desk.ask([billed(9), asked("Something else.")])
    assert other.common_prefix(prompt) > len(SYSTEM["content"])


def test_t17_a_clock_in_the_system_text_stands_still(desk_of: Desks) -> None:
    def clocked(second: int) -> Json:
        now = datetime.now().replace(microsecond=0, second=second)
        return {"role": "system", "content": f"{SYSTEM['content']}\nCurrent time: {now}"}

    desk = desk_of("chatml")
    told = [QUESTION]
    desk.ask([clocked(0), *told])
    for number in range(1, 4):
        told += [said("Well."), asked(f"More {number}")]
        desk.goes_on([clocked(number), *told])


def test_t17_a_clock_of_the_template_stands_still(tokenizer: Tokenizer) -> None:
    days = iter(datetime(2030, 1, day) for day in range(1, 20))
    template = "{{ strftime_now('%F') }}" + formats.CORPUS["chatml"]
    chat_format = ChatFormat(tokenizer, template, lambda: next(days))
    told = [Message("user", "x")]
    seen = chat_format.render(told).extended(b"y")
    longer = [*told, Message("assistant", "y", tuple(b"y")), Message("user", "z")]
    assert seen.common_prefix(chat_format.render(longer)) == len(seen)


def test_t18_switching_thinking_costs_what_the_template_makes_of_it(desk_of: Desks) -> None:
    """Nothing where the switch is in the opening of the reply. Where it is the first thing that
    the model reads all must be read again, and `abilities` says so."""
    for name, in_opening in (("merged results", True), ("switch in system", False)):
        desk = desk_of(name)
        assert desk.assistant.format.abilities.switch_in_opening == in_opening
        desk.ask([SYSTEM, QUESTION], thinking=True)
        seen = desk.seen
        prompt = desk.ask([SYSTEM, QUESTION, said("Well."), asked("More.")], thinking=False)
        assert (seen.common_prefix(prompt) == len(seen)) == in_opening


def test_t21_what_is_rendered_ahead_is_what_is_sent(desk_of: Desks) -> None:
    desk = desk_of("merged results")
    desk.ask([SYSTEM, QUESTION], CALLING, TOOLS)
    told = [SYSTEM, QUESTION, calls(ARGUMENTS), result("x")]
    fields = Fields({"messages": told, "tools": TOOLS})
    ahead = desk.assistant.render(read_messages(fields), read_tools(fields))
    sent = desk.goes_on(told, "Done.", TOOLS)
    assert (ahead, ahead.digest()) == (sent, sent.digest())


def test_t22_counting_tokens_changes_nothing(desk_of: Desks) -> None:
    desk = desk_of("merged results")
    told = [SYSTEM, QUESTION, calls({"path": "a", "n": 1}), result("x"), said("So"), asked("?")]
    before = copy.deepcopy(told)
    messages = read_messages(Fields({"messages": told}))
    kept = list(messages)
    counts = {len(desk.assistant.render(messages)) for _ in range(3)}
    assert told == before and list(messages) == kept
    assert counts == {len(desk.ask(told))}


# --- what else clients do to what they send back ----------------------------

CHANGES: dict[str, Callable[[Json], list[Json]]] = {
    "as it was": lambda turn: [turn],
    "blanks behind it": lambda turn: [{**turn, "content": f"{turn['content']} \n\n"}],
    "blanks before it": lambda turn: [{**turn, "content": f"\n{turn['content']}"}],
    "parts": lambda turn: [{**turn, "content": [{"type": "text", "text": turn["content"]}]}],
    "its reasoning apart": lambda turn: [{**turn, "reasoning_content": "Hm."}],
    "null for no reasoning": lambda turn: [{**turn, "reasoning_content": None}],
    "cut in two": lambda turn: [
        {"role": "assistant", "content": turn["content"]},
        {**turn, "content": None},
    ],
    "cut in two, calls with no content": lambda turn: [
        {"role": "assistant", "content": turn["content"]},
        {"role": "assistant", "content": "", "tool_calls": turn["tool_calls"]},
    ],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["hermes", "merged results", "no system", "chatml"])
def test_a_reply_with_content_and_calls_is_known(desk_of: Desks, name: str, change: str) -> None:
    desk = desk_of(name)
    desk.ask([SYSTEM, QUESTION], f"I look.\n{CALLING}", TOOLS)
    turn = calls(ARGUMENTS, content="I look.")
    desk.goes_on([SYSTEM, QUESTION, *CHANGES[change](turn), result("x")], "Done.", TOOLS)


@pytest.mark.parametrize("name", ["chatml", "no system", "system first", "merged results"])
def test_developers_parts_and_late_system_texts(desk_of: Desks, name: str) -> None:
    desk = desk_of(name)
    late = {"role": "system", "content": "Be quick now."}
    desk.ask([SYSTEM, QUESTION])
    told = [
        {"role": "developer", "content": SYSTEM["content"]},
        {"role": "user", "content": [{"type": "text", "text": "Read a.txt."}]},
        said("Well."),
        late,
        asked("More."),
    ]
    desk.goes_on(told)
    told += [said("Well."), {"role": "user", "content": "And?"}]
    prompt = desk.goes_on(told)
    text = desk.assistant.format.tokenizer.decode(prompt.ids.tolist())
    assert text.count("Be quick now.") == 1


def test_results_in_parts_are_their_text(desk_of: Desks) -> None:
    desk = desk_of("hermes")
    desk.ask([SYSTEM, QUESTION], CALLING, TOOLS)
    told = [SYSTEM, QUESTION, calls(ARGUMENTS), result("x")]
    desk.goes_on(told, "Done.", TOOLS)
    told[-1] = {**result(""), "content": [{"type": "text", "text": "x"}]}
    desk.goes_on([*told, said("Done."), asked("More.")], "Well.", TOOLS)
