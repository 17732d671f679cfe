"""Random conversations with tools, each history sent back in another layout: nothing is computed
again, whatever the template."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.timeline import Timeline
from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.rendering import ChatFormat
from ds4tui.chat.replay import ReplayMemory
from ds4tui.chat.tools import canonical_arguments
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import TemplateError
from tests.chat import formats
from tests.chat.formats import ID
from tests.scale import scaled

READ = Tool("read", "Read a file.", '{"type": "object", "properties": {"path": {}}}')
NOW = datetime(2030, 5, 17, 12, 0, 0)
WORDS = ("Hi", "<think>", "a\n\nb", "{}", "[1, 2]", "it's", "<|im_end|>", "é", "x" * 30)
# Those that write each reply once.
TEMPLATES = [name for name in formats.CORPUS if name not in ("tempting", "cutting")]


@pytest.fixture(scope="module")
def format_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ChatFormat]:
    tokenizer: Tokenizer = formats.tokenizer(tmp_path_factory.mktemp("vocabulary"))
    made = {name: ChatFormat(tokenizer, formats.CORPUS[name]) for name in TEMPLATES}
    return made.__getitem__


class Client:
    """Keeps a conversation as texts and sends it back in a new layout each time."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.told: list[Message] = []

    def text(self) -> str:
        return " ".join(self.draw.choices(WORDS, k=self.draw.randint(1, 3)))

    def data(self) -> str:
        value = {self.text(): self.draw.randint(0, 9), "b": {"c": self.text(), "d": None}}
        return json.dumps(value)

    def begin(self) -> None:
        if self.draw.random() < 0.6:
            header = self.draw.choice(("", "x-anthropic-billing-header: cch=0;\n"))
            self.told.append(Message("system", f"{header}Be brief.\nNow: {NOW}"))
        self.told.append(Message("user", self.text()))

    def take(self, text: str, calls: tuple[ToolCall, ...]) -> None:
        """A reply; what comes next is a result for each call, or a question."""
        self.told.append(Message("assistant", text, tool_calls=calls))
        for call in calls:
            result = self.draw.choice((self.text, self.data))()
            self.told.append(Message("tool", result, tool_call_id=call.id, name=call.name))
        if not calls:
            self.told.append(Message("user", self.text()))

    def sent(self) -> list[Message]:
        return [part for message in self.told for part in self._changed(message)]

    def _changed(self, message: Message) -> list[Message]:
        draw, text = self.draw, message.text
        if message.role == "system":
            text = text.replace("cch=0", f"cch={draw.randint(0, 999)}")
            text = text.replace("12:00:00", f"12:00:{draw.randint(10, 59)}")
        elif message.role == "tool":
            text = reordered(text, draw)
        text += draw.choice(("", "\n", "  "))
        calls = tuple(
            replace(c, id=f"other{n}", arguments=reordered(c.arguments, draw))
            for n, c in enumerate(message.tool_calls)
        )
        changed = replace(message, text=text, tool_calls=calls)
        if message.role == "assistant":
            changed = replace(changed, reasoning=draw.choice(("", "Hm.")))
            if calls and text.strip() and draw.random() < 0.5:
                return [replace(changed, tool_calls=()), replace(changed, text="", reasoning="")]
        return [changed]


def reordered(text: str, draw: random.Random) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(shuffled(value, draw), separators=draw.choice(((",", ":"), (", ", ": "))))


def shuffled(value: Any, draw: random.Random) -> Any:
    if not isinstance(value, dict):
        return value
    keys = draw.sample(list(value), len(value))
    return {key: shuffled(value[key], draw) for key in keys}


def reply(client: Client, tokenizer: Tokenizer) -> tuple[tuple[int, ...], str, Any]:
    """The ids that are sampled, spelt as no text would be, and what is shown of them."""
    draw = client.draw
    text = client.text() if draw.random() < 0.7 else ""
    count = draw.choice((0, 0, 1, 1, 2))
    arguments = [canonical_arguments(client.data()) for _ in range(count)]
    calls = tuple(ToolCall(f"call00{n:03}", "read", a) for n, a in enumerate(arguments))
    thought = (ID["<think>"], *b"hm", ID["</think>"]) if draw.random() < 0.3 else ()
    called = "".join(f"<tool_call>{a}</tool_call>" for a in arguments)
    return (*thought, *f"{text}{called}".encode()), text, calls


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=scaled(12), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_histories_in_any_layout_extend_what_is_resident(
    format_of: Callable[[str], ChatFormat], name: str, seed: int
) -> None:
    chat_format, client = format_of(name), Client(random.Random(seed))
    memory = ReplayMemory(now=lambda: NOW)
    resident = Timeline.empty()
    client.begin()
    for _ in range(5):
        known = memory.recall(client.sent(), note=True)
        try:
            prompt = chat_format.render(known, [READ])
        except TemplateError:
            return  # two calls at once, say
        assert resident.common_prefix(prompt) == len(resident)
        if len(resident):  # a conversation that begins anew has the time of now
            assert chat_format.render(memory.recall(client.sent()), [READ]) == prompt
        ids, text, calls = reply(client, chat_format.tokenizer)
        memory.remember(client.sent(), text, ids, calls)
        resident = prompt.extended(ids)
        client.take(text, calls)
