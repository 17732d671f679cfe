"""The messages and tools of an OpenAI chat request, as values of chat/messages.py.

Tool calls come back in as many forms as there are clients: arguments as JSON text or as an
object, with or without content. What they mean is kept, in one layout.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ds4tui.chat.grammars import ToolChoice
from ds4tui.chat.messages import Message, Role, Tool, ToolCall
from ds4tui.chat.tools import canonical_arguments, tool_of
from ds4tui.errors import RequestError
from ds4tui.server.content import Content
from ds4tui.server.fields import Fields, whole_characters
from ds4tui.server.images import image_source, require_few

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",  # OpenAI's newer name for it
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """Raises RequestError naming the field. A tool's result gets the name of the call it is of."""
    read: list[Message] = []
    names: dict[str, str] = {}
    for each in fields.objects("messages"):
        message = _message(each)
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "tool" and not message.name:
            message = replace(message, name=names.get(message.tool_call_id, ""))
        read.append(message)
    if not read:
        raise RequestError("messages must hold at least one message.", "messages")
    require_few(sum(len(message.images) for message in read))
    return tuple(read)


def read_tools(fields: Fields) -> tuple[Tool, ...]:
    """The tools that are described to the model. Raises RequestError naming the field."""
    return tuple(_tool(each) for each in fields.objects("tools"))


def read_tool_choice(fields: Fields) -> ToolChoice:
    """Raises RequestError naming the field."""
    several = may_call_several(fields)
    choice = fields.get("tool_choice")
    if choice in (None, "auto", "none", "required"):
        return ToolChoice(choice or "auto", several=several)
    named = fields.child("tool_choice") if isinstance(choice, dict) else None
    if named is not None and named.text("type") == "function":
        function = named.child("function")
        name = function.text("name") if function is not None else None
        if name:
            return ToolChoice("required", (name,), several=False)
    elif named is not None and named.text("type") == "allowed_tools":
        return _allowed_tools(named, several)
    path = fields.path("tool_choice")
    raise RequestError(
        f"{path} must be 'auto', 'none', 'required' or name a function.",
        path,
        'A function is named by {"type": "function", "function": {"name": "..."}}.',
    )


def may_call_several(fields: Fields) -> bool:
    """Raises RequestError naming the field."""
    return fields.get("parallel_tool_calls") is None or fields.boolean("parallel_tool_calls")


def _allowed_tools(named: Fields, several: bool) -> ToolChoice:
    allowed = named.child("allowed_tools") or named
    names = []
    for each in allowed.objects("tools"):
        function = each.child("function") or each
        names.append(function.text("name") or "")
    if allowed.text("mode") == "required":
        return ToolChoice("required", tuple(names), several)
    path = named.path("mode")
    raise RequestError(
        f"{path}: a choice among some of the tools works with mode 'required' only.",
        path,
        "Send only the tools that may be called.",
    )


def _tool(fields: Fields) -> Tool:
    with _naming(fields.path("function")):
        tool = tool_of(fields.mapping())
    return replace(
        tool, name=whole_characters(tool.name), description=whole_characters(tool.description)
    )


def _message(fields: Fields) -> Message:
    name = fields.text("role")
    path = fields.path("role")
    role = _ROLES.get(name or "")
    if role is None:
        found = "not given" if name is None else f"not {name!r}"
        raise RequestError(f"{path} must be one of {', '.join(_ROLES)}; it is {found}.", path)
    if fields.get("function_call"):
        where = fields.path("function_call")
        raise RequestError(f"{where}: use tool_calls, which took its place.", where)
    if role == "tool":
        call_id, tool = fields.text("tool_call_id") or "", fields.text("name") or ""
        return _content(fields, role).message(role, call_id, tool)
    said = _content(fields, role).message(role)
    if role != "assistant":
        return said
    reasoning = fields.text("reasoning_content") or ""
    return replace(said, reasoning=reasoning, tool_calls=_tool_calls(fields))


def _tool_calls(fields: Fields) -> tuple[ToolCall, ...]:
    return tuple(_tool_call(each) for each in fields.objects("tool_calls"))


def _tool_call(fields: Fields) -> ToolCall:
    function = fields.child("function")
    if function is None or fields.text("type") not in (None, "function"):
        path = fields.path("function")
        raise RequestError(f"{path} must be there: calls of other types are not supported.", path)
    name = function.text("name")
    if not name:
        raise RequestError(f"{function.path('name')} must be given.", function.path("name"))
    path = function.path("arguments")
    given = function.get("arguments")
    if not isinstance(given, str | dict | None):
        raise function.wrong("arguments", "JSON text or an object", given)
    with _naming(path):
        arguments = canonical_arguments(given)
    return ToolCall(fields.text("id") or "", name, arguments)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except RequestError as exc:
        raise RequestError(f"{path}: {exc.message}", path, exc.hint) from exc


def _content(fields: Fields, role: Role) -> Content:
    said = Content()
    value = fields.get("content")
    if isinstance(value, str):
        said.text(whole_characters(value))
    elif isinstance(value, list):
        for part in fields.objects("content"):
            _add(said, part, role)
    elif value is not None or role not in ("assistant", "tool"):
        raise fields.wrong("content", "a string or an array of parts", value)
    return said


def _add(said: Content, part: Fields, role: Role) -> None:
    kind, path = part.text("type"), part.path("type")
    if kind == "text":
        said.text(_text(part))
    elif kind != "image_url":
        raise RequestError(
            f"{path}: Content of type {kind!r} is not supported, only text and image_url are.", path
        )
    elif role not in ("user", "tool"):
        raise RequestError(
            f"{path}: messages of the {role} hold no images.",
            path,
            "Send them in a user's message or a tool's result.",
        )
    else:
        said.picture(*image_source(part))


def _text(part: Fields) -> str:
    text = part.text("text")
    if text is None:
        raise part.wrong("text", "a string", None)
    return text
