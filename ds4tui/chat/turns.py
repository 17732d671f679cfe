"""Messages as the values that chat templates read.

Templates differ in what they take: content as text or as a list of parts, arguments as an object
or as text, no content beside tool calls as "" or none, system messages or not. `Forms` says what
one takes; probing.py tries it at load.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ds4tui.chat.messages import ROLES, Message, Tool, ToolCall
from ds4tui.chat.tools import canonical_arguments, json_text
from ds4tui.engine.tokenizer import well_formed
from ds4tui.errors import RequestError

Protect = Callable[[str], str]

# Words of the forms and of JSON Schema, which templates look up and compare with. Nobody can
# forge a turn with them, and marks inside would hide them from the template.
_OWN_WORDS = frozenset(
    "type function name description parameters properties required items enum default title "
    "anyOf object array string number integer boolean null text".split()
)


@dataclass(frozen=True, slots=True)
class Forms:
    """What a template takes. Without `system_role` a system text is written into a user turn, so
    are those behind the first message without `late_system`; without `calls` tool calls are
    written into the content, in Hermes' syntax, and their results into user turns. In turns of
    `image_roles` images are parts of a list, for each of which the template writes
    `image_marker`; in others they are marks in the text."""

    content_parts: bool = False
    system_role: bool = True
    late_system: bool = True
    calls: bool = True
    arguments_text: bool = False
    empty_content: str | None = ""
    image_marker: str = ""
    image_roles: frozenset[str] = frozenset()


# What a template is given as a message's content.
Content = str | list[dict[str, str]]
_WITH_IMAGES = ("user", "tool")


def checked(messages: Sequence[Message], first: int = 0) -> list[Message]:
    """The messages, their texts well-formed and their arguments canonical. `first` is the
    number of the first one in its conversation.

    Raises RequestError for messages that make no conversation.
    """
    if not messages:
        raise RequestError("There are no messages.", param="messages")
    return [_checked(message, number) for number, message in enumerate(messages, first)]


def _checked(message: Message, number: int) -> Message:
    where = f"messages.{number}"
    if message.role not in ROLES:
        raise RequestError(
            f"Message {number} has the role {message.role!r}; roles are {', '.join(ROLES)}.",
            param=f"{where}.role",
        )
    if message.tool_calls and message.role != "assistant":
        raise RequestError(
            f"Message {number} has tool calls, which only assistants make.",
            param=f"{where}.tool_calls",
        )
    if message.images:
        message = _with_checked_images(message, number)
    calls = [
        replace(call, arguments=canonical_arguments(call.arguments, f"{where}.tool_calls.{place}"))
        for place, call in enumerate(message.tool_calls)
    ]
    return replace(
        message,
        text=well_formed(message.text),
        reasoning=well_formed(message.reasoning),
        tool_calls=tuple(calls),
    )


def _with_checked_images(message: Message, number: int) -> Message:
    where = f"messages.{number}.content"
    if message.role not in _WITH_IMAGES:
        raise RequestError(
            f"Message {number} is of the {message.role} and holds an image; images stand in "
            "messages of the user and in results of tools.",
            param=where,
        )
    places = [0, *(image.at for image in message.images), len(message.text)]
    if places != sorted(places):
        raise RequestError(f"The images of message {number} are not in order.", param=where)
    images = tuple(i.moved(len(well_formed(message.text[: i.at]))) for i in message.images)
    return replace(message, images=images)


def texts_of(messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[str]:
    """Every text that somebody else wrote, as the template will see it."""
    for message in messages:
        yield from (message.text, message.reasoning, message.tool_call_id, message.name)
        for call in message.tool_calls:
            yield from (call.id, call.name, *_strings(json.loads(call.arguments)))
    for tool in tools:
        yield from (tool.name, tool.description, *_strings(json.loads(tool.parameters)))


def _strings(value: Any) -> Iterator[str]:
    """All strings in a JSON value, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def tool_values(tool: Tool, protect: Protect) -> dict[str, Any]:
    """A tool in the form that templates write out or take apart."""
    function: dict[str, Any] = {"name": protect(tool.name)}
    if tool.description:
        function["description"] = protect(tool.description)
    function["parameters"] = _protected(json.loads(tool.parameters), protect)
    return {"type": "function", "function": function}


def turn_values(
    message: Message, content: Content, forms: Forms, protect: Protect
) -> dict[str, Any]:
    """One message; `content` is protected already."""
    calls = message.tool_calls if forms.calls else ()
    values: dict[str, Any] = {"role": message.role}
    if calls and not content:
        values["content"] = forms.empty_content
    elif forms.content_parts and isinstance(content, str):
        values["content"] = [{"type": "text", "text": content}]
    else:
        values["content"] = content
    if message.reasoning:
        values["reasoning_content"] = protect(message.reasoning)
    if calls:
        values["tool_calls"] = [_call_values(call, forms, protect) for call in calls]
    if message.tool_call_id:
        values["tool_call_id"] = protect(message.tool_call_id)
    if message.name:
        values["name"] = protect(message.name)
    return values


def typed(elements: Iterable[str | None]) -> Content:
    """Content as a list of parts: texts, and images for None."""
    return [{"type": "image"} if e is None else {"type": "text", "text": e} for e in elements]


def _call_values(call: ToolCall, forms: Forms, protect: Protect) -> dict[str, Any]:
    arguments = _protected(json.loads(call.arguments), protect)
    if forms.arguments_text:
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": protect(call.name), "arguments": arguments}
    return {"id": protect(call.id), "type": "function", "function": function}


def _protected(value: Any, protect: Protect) -> Any:
    """A JSON value with all strings in it protected, keys too."""
    if isinstance(value, str):
        return value if value in _OWN_WORDS else protect(well_formed(value))
    if isinstance(value, dict):
        return {_protected(k, protect): _protected(v, protect) for k, v in value.items()}
    if isinstance(value, list):
        return [_protected(item, protect) for item in value]
    return value


def for_forms(messages: Sequence[Message], forms: Forms) -> list[Message]:
    """The messages with what the template has no place for written where it has one."""
    told = list(messages)
    if not forms.calls:
        told = _without_results([_calls_written_out(message) for message in told])
    if forms.system_role and forms.late_system:
        return told
    return _system_in_user_turns(told, first_stays=forms.system_role)


def with_tools_told(
    messages: Sequence[Message], tools: Sequence[Tool], syntax: str | None = None
) -> list[Message]:
    """The messages, with the tools described in a system turn, to be called as `syntax` has it if
    that is one of TOLD_AS, else as Hermes has it."""
    words = _told_for_deepseek(tools, TOLD_AS[syntax]) if syntax in TOLD_AS else _told(tools)
    first = messages[0]
    if first.role == "system":
        return [replace(first, text=f"{first.text}\n\n{words}"), *messages[1:]]
    return [Message("system", words), *messages]


def _told(tools: Sequence[Tool]) -> str:
    described = "\n".join(json_text(tool_values(tool, str)) for tool in tools)
    return _TOOLS_TOLD.format(tools=described)


# In the syntax of Hermes, which models know that were not trained with tools of their own.
_TOOLS_TOLD = """\
You may call functions. Each line between these tags describes one:
<tools>
{tools}
</tools>
To call one, write its name and arguments as JSON between these tags, then wait for the result:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def _told_for_deepseek(tools: Sequence[Tool], call: str) -> str:
    each = (
        f"### {t.name}\nDescription: {t.description}\n\nParameters: {t.parameters}" for t in tools
    )
    described = "\n\n".join(each)
    return (
        f"## Tools\nThese tools can be called:\n\n{described}\n\n"
        f"A call is written in exactly this form, its arguments as JSON:\n"
        f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>\n"
        "Several calls stand one behind the other. Then wait for the results."
    )


# Syntaxes whose templates write calls and results, but not what tools there are: these models'
# authors have it told in the system text. How a call is written.
TOLD_AS = {
    "deepseek-v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>tool name\n```json\n"
    "arguments\n```<｜tool▁call▁end｜>",
    "deepseek-v3.1": "<｜tool▁call▁begin｜>tool name<｜tool▁sep｜>arguments<｜tool▁call▁end｜>",
}


def _calls_written_out(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = [
        f'<tool_call>\n{{"name": {json_text(c.name)}, "arguments": {c.arguments}}}\n</tool_call>'
        for c in message.tool_calls
    ]
    text = "\n".join([*([message.text] if message.text else []), *calls])
    return replace(message, text=text, tool_calls=())


def _without_results(messages: Sequence[Message]) -> list[Message]:
    """Results of tools are a user's turn, those of one reply the same one."""
    told: list[Message] = []
    in_results = False
    for message in messages:
        if message.role != "tool":
            told.append(message)
        else:
            said = Message("user", message.text, images=message.images)
            result = said.within("<tool_response>\n", "\n</tool_response>")
            told.append(told.pop().followed_by(result, "\n") if in_results else result)
        in_results = message.role == "tool"
    return told


def _system_in_user_turns(messages: Sequence[Message], first_stays: bool) -> list[Message]:
    """A system text goes before the next user's; where a reply comes first it goes behind the
    last user's, since it must not move once it has been replied to."""
    told: list[Message] = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.role == "system" and (number or not first_stays):
            waiting.append(message.text)
        elif message.role == "user":
            told.append(message.within("".join(f"{text}\n\n" for text in waiting)))
            waiting = []
        else:
            told = [*_with_text_behind(told, waiting), message]
            waiting = []
    return _with_text_behind(told, waiting)


def _with_text_behind(told: list[Message], texts: Sequence[str]) -> list[Message]:
    if not texts:
        return told
    if told and told[-1].role == "user":
        return [*told[:-1], told[-1].within("", "".join(f"\n\n{text}" for text in texts))]
    return [*told, Message("user", "\n\n".join(texts))]
