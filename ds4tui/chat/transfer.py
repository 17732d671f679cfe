"""Conversations as files: Markdown for people, and the messages of an OpenAI chat request, which
come back in.

What is shown is what goes out: the path to the leaf, not the other branches. Ids that were sampled
stay here; an imported conversation renders from its texts.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from ds4tui.chat.attachments import is_picture, media_type
from ds4tui.chat.branching import Written, written
from ds4tui.chat.messages import Image, Message, Role, Tool, ToolCall
from ds4tui.chat.store import Conversation, ConversationStore, title_of
from ds4tui.chat.tools import canonical_arguments, openai_call, tool_of
from ds4tui.errors import RequestError, UsageError

_HINT = (
    'It must be {"messages": [..]} or a list of messages, as OpenAI\'s chat completions take them.'
)
_DATA_URI = re.compile(r"data:[\w/+.-]*;base64,(.*)", re.S)
_SUFFIXES = {"image/jpeg": ".jpg", "application/octet-stream": ".bin"}


@dataclass(frozen=True, slots=True)
class Transferred:
    """A conversation of a file. `system` stands before all messages."""

    title: str = ""
    model: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()


# Markdown


@dataclass(frozen=True, slots=True)
class MarkdownFiles:
    """`images` are the files beside it, by the names that the text links."""

    text: str
    images: Mapping[str, bytes] = field(default_factory=dict)


def as_markdown(chat: Conversation, folder: str) -> MarkdownFiles:
    """The path of `chat`, its pictures as files in `folder`, beside the text."""
    images: dict[str, bytes] = {}
    parts = [f"# {_line(chat.title) or 'Conversation'}"]
    if chat.model:
        parts.append(f"*{_line(chat.model)}*")
    if chat.system:
        parts.append(_quoted(chat.system))
    for stored in chat.path:
        parts += _section(stored.message, folder, images)
    return MarkdownFiles("\n\n".join(parts) + "\n", images)


def _section(message: Message, folder: str, images: dict[str, bytes]) -> Iterator[str]:
    named = f" of {_line(message.name)}" if message.name else ""
    heads = {"user": "You", "assistant": "Answer", "tool": f"Result{named}"}
    yield f"## {heads.get(message.role, 'Instructions')}"
    if message.reasoning.strip():
        thought = message.reasoning.strip()
        yield f"<details><summary>Thinking</summary>\n\n{_quoted(thought)}\n\n</details>"
    for element in message.elements():
        if isinstance(element, str):
            if element.strip():
                yield element.strip("\n")
        else:
            name = _file_name(element, len(images) + 1)
            images[name] = element.data
            yield f"![{_line(element.name) or 'picture'}]({folder}/{name})"
    for call in message.tool_calls:
        yield f"Calls `{_line(call.name)}`:\n\n```json\n{call.arguments}\n```"


def _file_name(image: Image, number: int) -> str:
    kind = media_type(image.data)
    stem = re.sub(r"[^\w.-]+", "-", image.name.rpartition(".")[0] or image.name)[:40].strip("-.")
    return f"{number}-{stem or 'picture'}{_SUFFIXES.get(kind) or '.' + kind.partition('/')[2]}"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("[", "(").replace("]", ")")


# OpenAI's messages


def as_openai(chat: Conversation) -> str:
    """The path of `chat` as JSON text: title, model, messages (pictures in them), tools."""
    said = [{"role": "system", "content": chat.system}] if chat.system else []
    value: dict[str, Any] = {
        "title": chat.title,
        "model": chat.model,
        "messages": [*said, *(_told(stored.message) for stored in chat.path)],
    }
    if chat.tools:
        value["tools"] = [_tool_told(tool) for tool in chat.tools]
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def _tool_told(tool: Tool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": json.loads(tool.parameters),
    }
    return {"type": "function", "function": function}


def _told(message: Message) -> dict[str, Any]:
    value: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.reasoning:
        value["reasoning_content"] = message.reasoning
    if message.tool_calls:
        value["tool_calls"] = list(map(openai_call, message.tool_calls))
    if message.role == "tool":
        value |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return value


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.text
    return [
        {"type": "text", "text": element} if isinstance(element, str) else _picture(element)
        for element in message.elements()
    ]


def _picture(image: Image) -> dict[str, Any]:
    data = base64.b64encode(image.data).decode("ascii")
    url = f"data:{media_type(image.data)};base64,{data}"
    return {"type": "image_url", "image_url": {"url": url}, "name": image.name}


def from_openai(text: str) -> Transferred:
    """Raises UsageError, which says what of it is none of such messages."""
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise UsageError(f"That is no JSON: {exc}.", _HINT) from exc
    told = value if isinstance(value, dict) else {"messages": value}
    listed = told.get("messages")
    if not isinstance(listed, list) or not listed:
        raise UsageError("There are no messages in it.", _HINT)
    messages = [_message(each, f"messages[{at}]") for at, each in enumerate(listed)]
    system = messages.pop(0).text if messages[0].role == "system" else ""
    first = next((m.text for m in messages if m.role == "user"), "")
    title = _text(told, "title", "the file") or title_of(first)
    model = _text(told, "model", "the file")
    return Transferred(title, model, system, tuple(messages), _tools(told.get("tools") or []))


def added(store: ConversationStore, chat: Transferred) -> int:
    """Keep a conversation of a file; its id. Raises StoreError."""
    head = Conversation(0, chat.title, chat.model, chat.system, None, tools=chat.tools)
    return written(store, head, [Written(message) for message in chat.messages])


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is no object.", _HINT)
    role = _role(value.get("role"), where)
    words, images = "", list[Image]()
    for element in _elements(value.get("content"), where):
        if isinstance(element, str):
            words += element
        else:
            images.append(element.moved(len(words)))
    return Message(
        role,
        words,
        reasoning=_text(value, "reasoning_content", where),
        tool_calls=_calls(value.get("tool_calls") or [], where),
        tool_call_id=_text(value, "tool_call_id", where),
        name=_text(value, "name", where) if role == "tool" else "",
        images=tuple(images),
    )


def _role(name: Any, where: str) -> Role:
    found = {role: role for role in get_args(Role)} | {"developer": "system"}
    if not isinstance(name, str) or name not in found:
        raise UsageError(f"{where} has the role {name!r}.", f"Roles are {', '.join(found)}.")
    role: Role = found[name]
    return role


def _elements(content: Any, where: str) -> Iterator[str | Image]:
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            yield _text(part, "text", where)
        elif kind == "image_url":
            yield _image(part, where)
        else:
            raise UsageError(f"{where} has content of the type {kind!r}.", _HINT)


def _image(part: Mapping[str, Any], where: str) -> Image:
    url = part.get("image_url")
    address = url.get("url") if isinstance(url, dict) else url
    found = _DATA_URI.fullmatch(address) if isinstance(address, str) else None
    try:
        data = base64.b64decode(found[1], validate=True) if found else b""
    except binascii.Error:
        data = b""
    if not is_picture(data):
        hint = "Pictures come as data URIs in base64; nothing is fetched."
        raise UsageError(f"{where} has a picture that cannot be read.", hint)
    return Image(data, name=_text(part, "name", where))


def _calls(value: Sequence[Any], where: str) -> tuple[ToolCall, ...]:
    try:
        return tuple(
            ToolCall(
                _text(call, "id", where),
                call["function"]["name"],
                canonical_arguments(call["function"].get("arguments")),
            )
            for call in value
        )
    except (TypeError, KeyError, AttributeError, RequestError) as exc:
        raise UsageError(f"{where} has tool calls that cannot be read.", _HINT) from exc


def _tools(value: Sequence[Any]) -> tuple[Tool, ...]:
    try:
        return tuple(map(tool_of, value))
    except (TypeError, AttributeError, RequestError) as exc:
        raise UsageError("Its tools cannot be read.", _HINT) from exc


def _text(value: Mapping[str, Any], key: str, where: str) -> str:
    found = value.get(key) or ""
    if not isinstance(found, str):
        raise UsageError(f"{where}: {key} is no text.", _HINT)
    return found
