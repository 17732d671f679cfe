"""Conversations with DeepSeek V4, whose files have no template: written as it was trained, grown
turn by turn, its calls read and replayed."""

import json
from pathlib import Path

import pytest

from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.own_templates import CHATML, DEEPSEEK_V4, own_template
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.toolcalls import SYNTAXES, CallEnded, CallParser
from tests.engine.vocabularies import CONTROL, USER_DEFINED, tokenizer_of

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SPECIALS = (
    *((text, CONTROL) for text in (BOS, EOS, "<｜User｜>", "<｜Assistant｜>")),
    *((text, USER_DEFINED) for text in ("<think>", "</think>", "｜DSML｜")),
)
READ = Tool(
    "read", "Read a file.", '{"type": "object", "properties": {"path": {"type": "string"}}}'
)
CALLS = (
    ToolCall("c1", "read", '{"path": "a.txt", "n": 1}'),
    ToolCall("c2", "read", '{"path": "b"}'),
)
USER = Message("user", "Read both.")
CALLING = Message("assistant", "I do.", reasoning="Hm.", tool_calls=CALLS)
RESULTS = [Message("tool", "A", tool_call_id="c1"), Message("tool", "B", tool_call_id="c2")]


@pytest.fixture(scope="module")
def v4(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    folder: Path = tmp_path_factory.mktemp("v4")
    tokenizer = tokenizer_of(folder, *SPECIALS, bos_token_id=257, eos_token_id=258)
    return ChatFormat(tokenizer, DEEPSEEK_V4)


def test_what_it_can_do(v4: ChatFormat) -> None:
    assert v4.tool_syntax == "dsml-v4"
    found = v4.abilities
    assert found.tools and found.thinking_switch and found.switch_in_opening and found.reasoning
    assert v4.begins_thinking() and not v4.begins_thinking(False)
    assert {258, 259} <= v4.stop_token_ids, "a reply ends, or somebody else's turn begins"


def test_turns_stand_without_line_ends(v4: ChatFormat) -> None:
    said = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes.")]
    text = v4.render_text([*said, Message("user", "And?")])
    assert text == (
        f"{BOS}Be brief.<｜User｜>Hi<｜Assistant｜></think>Yes.{EOS}"
        "<｜User｜>And?<｜Assistant｜><think>"
    )
    assert v4.render_text(said[:2], thinking=False).endswith("<｜User｜>Hi<｜Assistant｜></think>")


def test_a_round_of_calls(v4: ChatFormat) -> None:
    text = v4.render_text([USER, CALLING, *RESULTS], [READ])
    system, _, turns = text.partition("<｜User｜>")
    assert '{"name": "read", "description": "Read a file."' in system
    dsml = "｜DSML｜"
    assert turns == (
        f"Read both.<｜Assistant｜><think>Hm.</think>I do.\n\n<{dsml}tool_calls>\n"
        f'<{dsml}invoke name="read">\n<{dsml}parameter name="path" string="true">a.txt'
        f'</{dsml}parameter>\n<{dsml}parameter name="n" string="false">1</{dsml}parameter>\n'
        f'</{dsml}invoke>\n<{dsml}invoke name="read">\n'
        f'<{dsml}parameter name="path" string="true">b</{dsml}parameter>\n</{dsml}invoke>\n'
        f"</{dsml}tool_calls>{EOS}<｜User｜><tool_result>A</tool_result>"
        "<tool_result>B</tool_result><｜Assistant｜><think>"
    )
    parser = CallParser(offered={"read": READ.parameters}, syntax=SYNTAXES["dsml-v4"])
    said = turns.partition("</think>")[2].partition(EOS)[0]
    events = [*(event for c in said for event in parser.push(c)), *parser.finish()]
    read = [event.call for event in events if isinstance(event, CallEnded)]
    assert [json.loads(c.arguments) for c in read] == [json.loads(c.arguments) for c in CALLS]


def test_a_sampled_reply_with_calls_stays_as_it_was(v4: ChatFormat) -> None:
    before = v4.render([USER], [READ]).ids.tolist()
    sampled = list(b"Hm.</think> x")
    reply = Message("assistant", "x", sampled_ids=tuple(sampled), tool_calls=CALLS)
    after = v4.render([USER, reply, *RESULTS], [READ]).ids.tolist()
    assert after[: len(before) + len(sampled)] == [*before, *sampled]


def test_which_file_gets_which() -> None:
    names = [text for text, _ in SPECIALS]
    assert own_template("deepseek4", names) == (DEEPSEEK_V4, "DeepSeek V4's format")
    assert own_template("deepseek2", names) is None and own_template("deepseek4", ["<s>"]) is None
    found = own_template("llama", ["<|im_start|>", "<|im_end|>"])
    assert found is not None and found[0] == CHATML
