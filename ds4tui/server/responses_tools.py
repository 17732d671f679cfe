"""The tools of a Responses request: how they are offered to the model, and how calls go back.

Functions are offered as they are; those of a namespace by both names. A custom tool takes free
text, which is offered as a function of one text. Tools that run at OpenAI are not offered.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ds4tui.chat.messages import Tool, ToolCall
from ds4tui.chat.tools import canonical_arguments, json_text
from ds4tui.errors import RequestError
from ds4tui.server.fields import Fields, whole_characters

_INPUT = "input"


@dataclass(frozen=True, slots=True)
class Called:
    """How a client names a tool."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    @property
    def offered_name(self) -> str:
        """How the model does."""
        return joined_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class CallItems:
    """Writes calls as the items of a response; `known` are the tools by their offered names."""

    known: Mapping[str, Called]

    def item(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        """Without its id; `arguments` of a custom call that is not complete are empty."""
        called = self._called(name)
        namespace = {"namespace": called.namespace} if called.namespace else {}
        told = {"call_id": call_id, "name": called.name, **namespace}
        if called.kind == "custom":
            return {"type": "custom_tool_call", **told, "input": free_text(arguments)}
        return {"type": "function_call", **told, "arguments": arguments}

    def _called(self, name: str) -> Called:
        return self.known.get(name) or Called("function", name)


def joined_name(namespace: str | None, name: str) -> str:
    if not namespace:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


def free_text(arguments: str) -> str:
    """What a call of a custom tool says, of its JSON text: a model that names its text otherwise
    means that; of anything else the client gets all."""
    values = json.loads(arguments) if arguments else {_INPUT: ""}
    text = values.get(_INPUT, next(iter(values.values()), None) if len(values) == 1 else None)
    return text if isinstance(text, str) else arguments


def read_tools(fields: Fields) -> tuple[tuple[Tool, ...], CallItems]:
    """Raises RequestError naming the field."""
    found = list(_tools(fields, None))
    return tuple(tool for tool, _ in found), CallItems({tool.name: each for tool, each in found})


def read_call(item: Fields) -> ToolCall:
    """An item `function_call` or `custom_tool_call`. Raises RequestError naming the field."""
    name = joined_name(item.text("namespace"), _name(item))
    call_id = item.text("call_id") or ""
    if item.text("type") == "custom_tool_call":
        return ToolCall(call_id, name, json_text({_INPUT: item.text("input") or ""}))
    given, path = item.get("arguments"), item.path("arguments")
    if not isinstance(given, str | dict | None):
        raise item.wrong("arguments", "JSON text or an object", given)
    return ToolCall(call_id, name, canonical_arguments(given, path))


def _tools(fields: Fields, namespace: str | None) -> Iterator[tuple[Tool, Called]]:
    for each in fields.objects("tools"):
        kind = each.text("type")
        if kind == "namespace" and namespace is None:
            yield from _tools(each, _name(each))
        elif kind in ("function", "custom"):
            called = Called("custom" if kind == "custom" else "function", _name(each), namespace)
            read = _custom if kind == "custom" else _function
            yield read(each, called.offered_name), called


def _name(fields: Fields) -> str:
    name = fields.text("name")
    if not name:
        raise RequestError(f"{fields.path('name')} must be given.", fields.path("name"))
    return name


def _function(fields: Fields, name: str) -> Tool:
    parameters = fields.child("parameters")
    schema = parameters.mapping() if parameters is not None else {"type": "object"}
    text = whole_characters(json.dumps(schema, ensure_ascii=False))
    return Tool(name, fields.text("description") or "", text, fields.get("strict") is True)


def _custom(fields: Fields, name: str) -> Tool:
    form = fields.child("format")
    grammar = form.text("definition") if form is not None else None
    described = fields.text("description") or ""
    if form is not None and grammar:
        syntax = form.text("syntax") or "grammar"
        described = f"{described}\nThe input must follow this grammar ({syntax}):\n{grammar}"
    text = {"type": "string", "description": "All that is said to the tool, as it stands."}
    schema = {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]}
    return Tool(name, described.strip(), json.dumps(schema))
