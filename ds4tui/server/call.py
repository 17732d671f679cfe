"""A request for a reply, whatever the dialect it came in."""

from dataclasses import dataclass, field

from ds4tui.chat.grammars import AnswerFormat, ToolChoice
from ds4tui.chat.messages import Message, Tool
from ds4tui.engine.requests import SamplingParams


@dataclass(frozen=True, slots=True)
class Call:
    """A validated request; `model` is as sent, None if it was not. `prompt` is text, or ids, to
    go on with, without a chat template; then there are no messages. `n` replies are wanted, which
    differ by their seeds. `include_usage`: a stream is to end with its usage."""

    model: str | None
    sampling: SamplingParams
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    stream: bool = False
    include_usage: bool = False
    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
    choice: ToolChoice = field(default_factory=ToolChoice)
    answer: AnswerFormat | None = None
    n: int = 1
    client: str = ""  # the program that asks, by its user agent
    endpoint: str = ""
