"""POST /v1/messages: Anthropic's dialect in, a Call out.

One of its messages may hold results of tools and words of the person: results become messages
of their own, in their order. Fields that change nothing here (`cache_control`, `metadata`,
`service_tier`, betas) are ignored; those that would change the answer and cannot be obeyed are
refused. `context_management` asks that old parts of a long history be left out: none are, and the
reply says so (`applied_edits` is empty). Nothing is lost by that, and what is resident stays so.
"""

import json
from collections.abc import Iterator
from typing import Any

from ds4tui.chat.grammars import AnswerFormat, ToolChoice
from ds4tui.chat.messages import Message, Role, Tool, ToolCall
from ds4tui.chat.tools import canonical_arguments
from ds4tui.errors import RequestError
from ds4tui.server.answer_format import of_schema
from ds4tui.server.anthropic_reply import MessagesDialect
from ds4tui.server.body import parse_object
from ds4tui.server.call import Call
from ds4tui.server.content import Content
from ds4tui.server.fields import Fields, whole_characters
from ds4tui.server.images import require_few
from ds4tui.server.service import Service

# What one client puts first in its system text for somebody's accounts; it differs from request to
# request and says nothing to a model.
_ACCOUNTING = "x-anthropic-billing-header:"

# Newer clients put reminders into system messages of their own.
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_THINKING = {"enabled": True, "disabled": False, "adaptive": None}


def read_message_request(body: bytes, service: Service) -> tuple[Call, MessagesDialect]:
    """An answering.Parse."""
    fields = Fields(parse_object(body))
    call = parse_messages(fields, service)
    return call, MessagesDialect(
        service.assistant.info.name,
        counts_cache=b'"cache_control"' in body,
        edits_context=fields.child("context_management") is not None,
    )


def parse_messages(fields: Fields, service: Service, counting: bool = False) -> Call:
    """Raises RequestError naming the field. When `counting` there need be no max_tokens."""
    _refuse_unsupported(fields)
    given: dict[str, Any] = {
        "temperature": fields.number("temperature"),
        "top_p": fields.number("top_p"),
        "top_k": fields.integer("top_k"),
        "stop": _stop(fields),
        "max_tokens": None if counting else _max_tokens(fields),
    }
    return Call(
        model=fields.text("model"),
        sampling=service.defaults.params(**{k: v for k, v in given.items() if v is not None}),
        messages=_messages(fields),
        stream=fields.boolean("stream"),
        tools=tuple(_tool(each) for each in fields.objects("tools")),
        thinking=_thinking(fields),
        choice=_choice(fields),
        answer=_answer(fields),
    )


def _refuse_unsupported(fields: Fields) -> None:
    for name in ("mcp_servers", "container"):
        if fields.get(name):
            path = fields.path(name)
            raise RequestError(f"{path} is not supported.", path, "Leave the field out.")


def _max_tokens(fields: Fields) -> int:
    value = fields.integer("max_tokens")
    if value is None:
        raise RequestError("max_tokens must be given.", "max_tokens")
    if value < 1:
        raise RequestError(f"max_tokens must be at least 1, not {value}.", "max_tokens")
    return min(value, 2**31)


def _stop(fields: Fields) -> tuple[str, ...] | None:
    strings = fields.items("stop_sequences")
    if strings is None:
        return None
    if not all(isinstance(text, str) for text in strings) or len(strings) > 64:
        raise RequestError("stop_sequences must be at most 64 strings.", "stop_sequences")
    return tuple(whole_characters(text) for text in strings if text)


def _thinking(fields: Fields) -> bool | None:
    thinking = fields.child("thinking")
    if thinking is None:
        return None
    kind = thinking.text("type") or ""
    if kind not in _THINKING:
        path = thinking.path("type")
        raise RequestError(f"{path} must be one of {', '.join(_THINKING)}.", path)
    return _THINKING[kind]


def _choice(fields: Fields) -> ToolChoice:
    choice = fields.child("tool_choice")
    if choice is None:
        return ToolChoice()
    several = not choice.boolean("disable_parallel_tool_use")
    kind = choice.text("type")
    if kind in ("auto", "none"):
        return ToolChoice("none" if kind == "none" else "auto", several=several)
    if kind == "any":
        return ToolChoice("required", several=several)
    name = choice.text("name")
    if kind == "tool" and name:
        return ToolChoice("required", (name,), several=False, param="tool_choice.name")
    path = choice.path("type")
    raise RequestError(f"{path} must be auto, any, none, or tool with a name.", path)


def _answer(fields: Fields) -> AnswerFormat | None:
    holder = fields.child("output_config")
    form = holder.child("format") if holder is not None else fields.child("output_format")
    if form is None:
        return None
    schema = form.child("schema")
    if form.text("type") != "json_schema" or schema is None:
        path = form.path("type")
        raise RequestError(f"{path} must be json_schema, with a schema.", path)
    return of_schema(form, schema)


def _tool(fields: Fields) -> Tool:
    if fields.text("type") not in (None, "custom"):
        path = fields.path("type")
        raise RequestError(
            f"{path}: {fields.text('type')!r} runs at Anthropic; only tools of the client's own "
            "are offered here.",
            path,
            "Leave it out of tools.",
        )
    name, schema = fields.text("name"), fields.child("input_schema")
    if not name or schema is None:
        missing = fields.path("input_schema" if name else "name")
        raise RequestError(f"{missing} must be given.", missing)
    parameters = whole_characters(json.dumps(schema.mapping(), ensure_ascii=False))
    strict = fields.get("strict") is True
    return Tool(name, fields.text("description") or "", parameters, strict)


def _messages(fields: Fields) -> tuple[Message, ...]:
    system = _system(fields)
    read = [Message("system", system)] if system else []
    sent = fields.objects("messages")
    if not sent:
        raise RequestError("messages must hold at least one message.", "messages")
    names: dict[str, str] = {}  # of tools, by call
    for each in sent:
        read += _message(each, names)
    require_few(sum(len(message.images) for message in read))
    return tuple(read)


def _system(fields: Fields) -> str:
    value = fields.get("system")
    if value is None or isinstance(value, str):
        texts = [fields.text("system") or ""]
    else:
        texts = [_text(block) for block in fields.objects("system")]
    return "\n".join(text for text in texts if not text.startswith(_ACCOUNTING))


def _text(block: Fields) -> str:
    if block.text("type") != "text":
        path = block.path("type")
        raise RequestError(f"{path} must be text here.", path)
    text = block.text("text")
    if text is None:
        raise block.wrong("text", "a string", None)
    return text


def _message(fields: Fields, names: dict[str, str]) -> Iterator[Message]:
    role = _ROLES.get(fields.text("role") or "")
    if role is None:
        path = fields.path("role")
        raise RequestError(f"{path} must be user or assistant.", path)
    value = fields.get("content")
    if isinstance(value, str):
        yield Message(role, whole_characters(value))
        return
    if not isinstance(value, list):
        raise fields.wrong("content", "a string or an array of blocks", value)
    blocks = fields.objects("content")
    if role == "assistant":
        message = _assistant(blocks)
        names.update({call.id: call.name for call in message.tool_calls})
        yield message
    else:
        yield from _person(role, blocks, names)


def _assistant(blocks: list[Fields]) -> Message:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        kind = block.text("type")
        if kind == "text":
            texts.append(_text(block))
        elif kind == "thinking":
            reasoning.append(block.text("thinking") or "")
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind != "redacted_thinking":  # which nobody can read
            raise _unknown(block)
    return Message(
        "assistant", "\n".join(texts), reasoning="\n".join(reasoning), tool_calls=tuple(calls)
    )


def _call(block: Fields) -> ToolCall:
    name, path = block.text("name"), block.path("input")
    if not name:
        raise RequestError(f"{block.path('name')} must be given.", block.path("name"))
    given = block.get("input")
    if not isinstance(given, dict | None):
        raise block.wrong("input", "an object", given)
    return ToolCall(block.text("id") or "", name, canonical_arguments(given, path))


def _person(role: Role, blocks: list[Fields], names: dict[str, str]) -> Iterator[Message]:
    said = Content()
    for block in blocks:
        if block.text("type") != "tool_result":
            _add(said, block)
            continue
        if said:
            yield said.message(role)
            said = Content()
        yield _result(block, names)
    if said or not blocks:
        yield said.message(role)


def _result(block: Fields, names: dict[str, str]) -> Message:
    call_id = block.text("tool_use_id") or ""
    said = Content()
    value = block.get("content")
    if isinstance(value, str):
        said.text(whole_characters(value))
    else:
        for part in block.objects("content"):
            _add(said, part)
    if block.boolean("is_error"):
        said.put_first("Error: ")
    return said.message("tool", call_id, names.get(call_id, ""))


def _add(said: Content, block: Fields) -> None:
    kind = block.text("type")
    if kind == "text":
        said.text(_text(block))
    elif kind == "image":
        said.picture(*_source(block))
    else:
        raise _unknown(block)


def _source(block: Fields) -> tuple[str, str]:
    """The picture as a data URI, or its address, and the field it stood in."""
    source = block.child("source")
    kind = source.text("type") if source is not None else None
    if source is not None and kind == "base64":
        media, data = source.text("media_type") or "", source.text("data") or ""
        return f"data:{media};base64,{data}", source.path("data")
    if source is not None and kind == "url":
        return source.text("url") or "", source.path("url")
    path = block.path("source")
    raise RequestError(f"{path} must be of type base64 or url.", path)


def _unknown(block: Fields) -> RequestError:
    path = block.path("type")
    return RequestError(f"{path}: blocks of type {block.text('type')!r} are not supported.", path)
