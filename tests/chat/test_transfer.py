"""Conversations as files: what people read, and what comes back in unchanged."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.messages import Image, Message, Tool, ToolCall
from ds4tui.chat.store import Conversation, ConversationStore, StoredMessage
from ds4tui.chat.transfer import added, as_markdown, as_openai, from_openai
from ds4tui.errors import UsageError
from tests.scale import scaled

PNG = b"\x89PNG\r\n\x1a\n"
TOOL = Tool("look", "looks", '{"type": "object", "properties": {}}')


def chat(*messages: Message, system: str = "", tools: tuple[Tool, ...] = ()) -> Conversation:
    path = [StoredMessage(n, n - 1, m, "complete", None, 0.0) for n, m in enumerate(messages, 1)]
    return Conversation(1, "A title", "smollm2", system, len(path), tuple(path), tools=tools)


def test_markdown_tells_who_said_what_and_has_its_pictures_beside_it() -> None:
    image = Image(PNG + b"1", 5, "my shot [1].png")
    found = as_markdown(
        chat(
            Message("user", "look at\nthis", images=(image,)),
            Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("1", "look", "{}"),)),
            Message("tool", "a cat", tool_call_id="1", name="look"),
            Message("assistant", "```py\nx\n```"),
            system="Be brief.",
        ),
        "chat-images",
    )
    assert found.images == {"1-my-shot-1.png": PNG + b"1"}
    assert found.text == (
        "# A title\n\n*smollm2*\n\n> Be brief.\n\n## You\n\nlook \n\n"
        "![my shot (1).png](chat-images/1-my-shot-1.png)\n\nat\nthis\n\n## Answer\n\n"
        "<details><summary>Thinking</summary>\n\n> hm\n\n</details>\n\n"
        "Calls `look`:\n\n```json\n{}\n```\n\n## Result of look\n\na cat\n\n"
        "## Answer\n\n```py\nx\n```\n"
    )


def test_what_goes_out_as_json_is_what_openai_takes() -> None:
    image = Image(PNG, 3, "a.png")
    value = json.loads(as_openai(chat(Message("user", "see", images=(image,)), system="s")))
    assert value["messages"][0] == {"role": "system", "content": "s"}
    text, picture = value["messages"][1]["content"]
    assert text == {"type": "text", "text": "see"}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")


_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
_IMAGES = st.lists(st.tuples(st.binary(max_size=8), _TEXT), max_size=3)


@st.composite
def _messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(("user", "assistant", "tool")))
    text = draw(_TEXT)
    if role == "assistant":
        calls = draw(st.lists(st.tuples(_TEXT, _TEXT.filter(bool)), max_size=2))
        called = tuple(ToolCall(id_, name, '{"a": 1}') for id_, name in calls)
        return Message(role, text, reasoning=draw(_TEXT), tool_calls=called)
    at = sorted(draw(st.integers(0, len(text))) for _ in range(3))
    images = tuple(Image(PNG + data, at[n], name) for n, (data, name) in enumerate(draw(_IMAGES)))
    if role == "user":
        return Message(role, text, images=images)
    return Message(role, text, tool_call_id=draw(_TEXT), name=draw(_TEXT), images=images)


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(_messages(), min_size=1, max_size=6), _TEXT)
def test_what_went_out_as_json_comes_back_in_as_it_was(said: list[Message], system: str) -> None:
    before = chat(*said, system=system, tools=(TOOL,))
    store = ConversationStore.in_memory()
    after = store.load(added(store, from_openai(as_openai(before))))
    assert [m.message for m in after.path] == said
    assert (after.title, after.model, after.system) == ("A title", "smollm2", system)
    assert after.tools == (TOOL,) and after.leaf_id == after.path[-1].id
    store.close()


def test_a_bare_list_of_messages_is_a_conversation_named_by_its_first_question() -> None:
    found = from_openai('[{"role": "developer", "content": "s"}, {"role": "user", "content": "q"}]')
    assert (found.title, found.system, found.messages) == ("q", "s", (Message("user", "q"),))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "That is no JSON"),
        ('{"messages": []}', "There are no messages"),
        ("3", "There are no messages"),
        ("[3]", "messages[0] is no object"),
        ('[{"role": "robot", "content": ""}]', "has the role 'robot'"),
        ('[{"role": "user", "content": [{"type": "audio"}]}]', "of the type 'audio'"),
        ('[{"role": "user", "content": 7}]', "text is no text"),
        (
            '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x/a.png"}}]}]',
            "has a picture that cannot be read",
        ),
        (
            '[{"role":"user","content":[{"type":"image_url","image_url":"data:image/png;base64,@"}]}]',
            "has a picture that cannot be read",
        ),
        ('[{"role": "assistant", "tool_calls": [{"id": "1"}]}]', "tool calls that cannot be read"),
        ('{"messages": [{"role": "user", "content": "q"}], "tools": [1]}', "tools cannot be read"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_openai(text)
    assert words in refused.value.message and refused.value.hint
