"""What a Turn of an outline says of a message, so that two outlines can be compared."""

from collections.abc import Iterable, Sequence

import xxhash

from ds4tui.cache.outline import Turn
from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.tools import order_free


def turn_of(
    message: Message, start: int, end: int, thinks: bool, tools: Sequence[Tool] = ()
) -> Turn:
    """`message` at positions [start, end). `thinks` says that it holds reasoning; `tools` are
    told of in it."""
    return Turn(
        start,
        end,
        message.role,
        _content_digest(message),
        has_reasoning=thinks,
        calls_digest=_calls_digest(message.tool_calls),
        tools_digest=tools_digest(tools),
    )


def opening_turn(start: int, end: int) -> Turn:
    """With which the template opens the next reply."""
    return Turn(start, end, "opening", text_digest(""))


def _content_digest(message: Message) -> bytes:
    """Of the text, and of which images stand in it."""
    text = text_digest(message.text)
    if not message.images:
        return text
    return xxhash.xxh3_128_digest(text + b"".join(image.digest for image in message.images))


def text_digest(text: str) -> bytes:
    """xxh3_128 of the text without blanks at its ends."""
    return xxhash.xxh3_128_digest(text.strip().encode("utf-8", "surrogatepass"))


def tools_digest(tools: Sequence[Tool]) -> bytes:
    """b"" for none."""
    return _digest(
        part for tool in tools for part in (tool.name, tool.description, tool.parameters)
    )


def _calls_digest(calls: Sequence[ToolCall]) -> bytes:
    return _digest(map(order_free, calls))


def _digest(parts: Iterable[str]) -> bytes:
    hasher, count = xxhash.xxh3_128(), 0
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hasher.update(f"{len(data)} ".encode() + data)
        count += 1
    return hasher.digest() if count else b""
