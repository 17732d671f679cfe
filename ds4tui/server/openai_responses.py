"""POST /v1/responses: OpenAI's newer dialect in, a Call out.

What a model says in one go comes back as several items (reasoning, a message, calls); together
they are one turn of the assistant again. Tools that run at OpenAI are not offered to the model;
fields that change nothing here are ignored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ds4tui.chat.grammars import AnswerFormat, ToolChoice
from ds4tui.chat.messages import Message, Role
from ds4tui.errors import RequestError
from ds4tui.server.answer_format import any_object, of_schema
from ds4tui.server.body import parse_object
from ds4tui.server.call import Call
from ds4tui.server.content import Content
from ds4tui.server.fields import Fields, whole_characters
from ds4tui.server.images import SEND_DATA, require_few
from ds4tui.server.openai_messages import may_call_several
from ds4tui.server.responses_reply import Echo, ResponsesDialect
from ds4tui.server.responses_tools import joined_name, read_call, read_tools
from ds4tui.server.service import Service

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
# Of reasoning.effort; other values leave it to the model.
_THINKING = {"none": False, "minimal": False}
_TEXTS = ("input_text", "output_text", "text", "summary_text")
_CALLS_OF_OTHERS = ("web_search_call", "file_search_call", "item_reference")


def read_response_request(body: bytes, service: Service) -> tuple[Call, ResponsesDialect]:
    """An answering.Parse."""
    fields = Fields(parse_object(body))
    call = parse_responses(fields, service)
    name = service.assistant.info.name
    is_kept = fields.get("store") is None or fields.boolean("store")
    # Instructions are of one response: they are not carried over to the next.
    said = call.messages[1:] if fields.text("instructions") else call.messages
    keep = service.responses.keeping(said) if is_kept else None
    _, items = read_tools(fields)
    return call, ResponsesDialect(name, _echo(fields, call, is_kept), items, keep)


def parse_responses(fields: Fields, service: Service) -> Call:
    """Raises RequestError naming the field."""
    _refuse_unsupported(fields)
    alternatives = fields.integer("top_logprobs")
    given: dict[str, Any] = {
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "max_tokens": _max_tokens(fields),
        "logprobs": alternatives if _wants_logprobs(fields) else None,
    }
    return Call(
        model=fields.text("model"),
        sampling=service.defaults.params(**{k: v for k, v in given.items() if v is not None}),
        messages=_messages(fields, service),
        stream=fields.boolean("stream"),
        tools=read_tools(fields)[0],
        thinking=_thinking(fields),
        choice=_choice(fields),
        answer=_answer(fields),
    )


def _refuse_unsupported(fields: Fields) -> None:
    for name in ("background", "conversation", "prompt"):
        if fields.get(name):
            raise RequestError(f"{name} is not supported.", name, "Leave the field out.")


def _max_tokens(fields: Fields) -> int | None:
    value = fields.integer("max_output_tokens")
    if value is not None and value < 1:
        words = f"max_output_tokens must be at least 1, not {value}."
        raise RequestError(words, "max_output_tokens")
    return None if value is None else min(value, 2**31)


def _wants_logprobs(fields: Fields) -> bool:
    top = fields.integer("top_logprobs")
    if top is not None and not 0 <= top <= 20:
        raise RequestError(f"top_logprobs must be between 0 and 20, not {top}.", "top_logprobs")
    return bool(top) or "message.output_text.logprobs" in (fields.items("include") or [])


def _thinking(fields: Fields) -> bool | None:
    reasoning = fields.child("reasoning")
    return None if reasoning is None else _THINKING.get(reasoning.text("effort") or "")


def _choice(fields: Fields) -> ToolChoice:
    several = may_call_several(fields)
    choice = fields.get("tool_choice")
    if choice in (None, "auto", "none", "required"):
        return ToolChoice(choice or "auto", several=several)
    named = fields.child("tool_choice") if isinstance(choice, dict) else None
    kind = named.text("type") if named is not None else None
    if named is not None and kind in ("function", "custom") and named.text("name"):
        return ToolChoice("required", (_named(named),), several=False)
    if named is not None and kind == "allowed_tools":
        names = tuple(map(_named, named.objects("tools")))
        if named.text("mode") == "required":
            return ToolChoice("required", names, several)
    raise RequestError(
        "tool_choice must be 'auto', 'none', 'required' or name a function.",
        "tool_choice",
        'A function is named by {"type": "function", "name": "..."}.',
    )


def _named(fields: Fields) -> str:
    return joined_name(fields.text("namespace"), fields.text("name") or "")


def _answer(fields: Fields) -> AnswerFormat | None:
    text = fields.child("text")
    form = text.child("format") if text is not None else None
    kind = form.text("type") if form is not None else "text"
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return any_object("text.format")
    schema = form.child("schema")
    if kind != "json_schema" or schema is None:
        path = form.path("type")
        raise RequestError(f"{path} must be text, json_object or json_schema, with a schema.", path)
    return of_schema(form, schema)


def _messages(fields: Fields, service: Service) -> tuple[Message, ...]:
    instructions = fields.text("instructions")
    read = [Message("system", instructions)] if instructions else []
    earlier = fields.text("previous_response_id")
    if earlier:
        read += service.responses.messages(earlier)
    value = fields.get("input")
    if isinstance(value, str):
        read.append(Message("user", whole_characters(value)))
    elif isinstance(value, list):
        read += _joined(list(_items(fields.objects("input"))))
    else:
        raise fields.wrong("input", "a text or an array of items", value)
    require_few(sum(len(message.images) for message in read))
    return tuple(read)


def _items(items: Sequence[Fields]) -> Iterator[Message]:
    names: dict[str, str] = {}  # of tools, by call
    for item in items:
        kind = item.text("type") or "message"
        if kind == "message":
            yield _message(item)
        elif kind in ("function_call", "custom_tool_call"):
            call = read_call(item)
            names[call.id] = call.name
            yield Message("assistant", "", tool_calls=(call,))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield _output(item, names)
        elif kind == "reasoning":
            yield Message("assistant", "", reasoning=_reasoning(item))
        elif kind not in _CALLS_OF_OTHERS:
            path = item.path("type")
            raise RequestError(f"{path}: items of type {kind!r} are not supported.", path)


def _message(item: Fields) -> Message:
    role = _ROLES.get(item.text("role") or "")
    if role is None:
        path = item.path("role")
        raise RequestError(f"{path} must be one of {', '.join(_ROLES)}.", path)
    return _content(item, "content").message(role)


def _content(item: Fields, name: str) -> Content:
    said = Content()
    value = item.get(name)
    if isinstance(value, str):
        said.text(whole_characters(value))
        return said
    if not isinstance(value, list):
        raise item.wrong(name, "a text or an array of parts", value)
    for part in item.objects(name):
        _add(said, part)
    return said


def _add(said: Content, part: Fields) -> None:
    kind = part.text("type")
    if kind in _TEXTS:
        said.text(part.text("text") or "")
    elif kind == "refusal":
        said.text(part.text("refusal") or "")
    elif kind == "input_image":
        url, path = part.text("image_url"), part.path("image_url")
        if url is None and part.text("file_id") is not None:
            told = f"{part.path('file_id')}: no files are kept here, so none goes by an id."
            raise RequestError(told, part.path("file_id"), SEND_DATA)
        said.picture(url, path)
    else:
        path = part.path("type")
        raise RequestError(f"{path}: content of type {kind!r} is not supported.", path)


def _output(item: Fields, names: dict[str, str]) -> Message:
    call_id = item.text("call_id") or ""
    return _content(item, "output").message("tool", call_id, names.get(call_id, ""))


def _reasoning(item: Fields) -> str:
    parts = item.objects("content") or item.objects("summary")
    return "\n".join(part.text("text") or "" for part in parts)


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Items of the assistant that follow each other, as the one turn they were. Text or
    reasoning behind a call begins another turn: calls end one."""
    turns: list[Message] = []
    for each in messages:
        last = turns[-1] if turns else None
        is_more = last is not None and last.role == each.role == "assistant"
        if last is not None and is_more and (each.tool_calls or not last.tool_calls):
            turns[-1] = replace(
                last,
                text="\n".join(text for text in (last.text, each.text) if text),
                reasoning="\n".join(text for text in (last.reasoning, each.reasoning) if text),
                tool_calls=last.tool_calls + each.tool_calls,
            )
        else:
            turns.append(each)
    return turns


def _echo(fields: Fields, call: Call, is_kept: bool) -> Echo:
    """What a response repeats of its request; clients read it back as what was used."""
    text = fields.child("text")
    return Echo(
        {
            "instructions": fields.text("instructions"),
            "max_output_tokens": call.sampling.max_tokens,
            "metadata": _mapping(fields, "metadata"),
            "parallel_tool_calls": call.choice.several,
            "previous_response_id": fields.text("previous_response_id"),
            "reasoning": {"effort": None, "summary": None, **_mapping(fields, "reasoning")},
            "store": is_kept,
            "temperature": call.sampling.temperature,
            "text": dict(text.mapping()) if text is not None else {"format": {"type": "text"}},
            "tool_choice": fields.get("tool_choice") or "auto",
            "tools": fields.items("tools") or [],
            "top_p": call.sampling.top_p,
            "truncation": "disabled",
            "user": fields.text("user"),
        }
    )


def _mapping(fields: Fields, name: str) -> dict[str, Any]:
    child = fields.child(name)
    return dict(child.mapping()) if child is not None else {}
