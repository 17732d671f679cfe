"""Tools and their calls as JSON: read strictly, written in one way.

Clients send arguments as text or as an object, models write them in any layout. Inside ds4tui
they are JSON text in one layout (that of `json.dumps`, which templates were trained with); keys
keep their order, since it is what the model wrote.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from ds4tui.chat.messages import Tool, ToolCall
from ds4tui.engine.tokenizer import well_formed
from ds4tui.errors import RequestError

# Deeper JSON is nobody's arguments, and reading it recurses.
_MAX_DEPTH = 64


def canonical_arguments(arguments: str | Mapping[str, Any] | None, param: str | None = None) -> str:
    """JSON text of an object. None and blank text are no arguments, `{}`.

    Raises RequestError naming `param` for what is no JSON or no object.
    """
    value: Any = arguments
    if isinstance(arguments, str):
        value = parsed(arguments, param) if arguments.strip() else {}
    elif arguments is None:
        value = {}
    if not isinstance(value, Mapping):
        raise RequestError(
            f"The arguments of a tool call must be an object, not {str(value)[:80]!r}.", param
        )
    try:
        return json_text(value)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"The arguments of a tool call are no JSON: {exc}.", param) from exc


def parsed(text: str, param: str | None) -> Any:
    """The value of arguments' JSON text. Raises RequestError."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as exc:
        reason = "it is nested too deeply" if isinstance(exc, RecursionError) else str(exc)
        raise RequestError(
            f"The arguments of a tool call are not JSON: {text.strip()[:80]!r} ({reason}).", param
        ) from exc
    if _is_deep(value, _MAX_DEPTH):
        raise RequestError("The arguments of a tool call are nested too deeply.", param)
    return value


def json_text(value: Any) -> str:
    """One line, characters as they are; lone surrogates become U+FFFD. Raises ValueError for
    numbers that JSON does not have, TypeError for values."""
    return well_formed(json.dumps(value, ensure_ascii=False, allow_nan=False))


def tool_of(value: Mapping[str, Any], param: str | None = None) -> Tool:
    """A tool in OpenAI's form, `{"type": "function", "function": {...}}`. Raises RequestError
    naming `param` for another type and for a function without a name."""
    kind, function = value.get("type", "function"), value.get("function")
    if kind != "function":
        raise RequestError(f"A tool must be a function, not {str(kind)[:80]!r}.", param)
    if not isinstance(function, Mapping):
        raise RequestError(
            "A tool's function must be an object: name, description and parameters go inside it.",
            param,
        )
    name, description = function.get("name"), function.get("description") or ""
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not name:
        raise RequestError("A tool's function must have a name.", param)
    _require_form(name, description, parameters, param)
    try:
        return Tool(name, description, json_text(parameters), function.get("strict") is True)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"The parameters of {name!r} are no JSON: {exc}.", param) from exc


def _require_form(name: str, description: Any, parameters: Any, param: str | None) -> None:
    if not isinstance(description, str):
        raise RequestError(f"The description of {name!r} must be a string.", param)
    if not isinstance(parameters, Mapping):
        raise RequestError(f"The parameters of {name!r} must be a JSON Schema.", param)
    if _is_deep(parameters, _MAX_DEPTH):
        raise RequestError(f"The parameters of {name!r} are nested too deeply.", param)


def openai_call(call: ToolCall) -> dict[str, Any]:
    """In OpenAI's form, its arguments as text."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def order_free(call: ToolCall) -> str:
    """The same for calls that differ only in the order of keys, in layout and in their ids, and
    in arguments that are null or false: clients write such defaults into what they send back."""
    try:
        value = json.loads(call.arguments)
    except ValueError:
        return f"{call.name} {call.arguments.strip()}"
    if isinstance(value, dict):
        value = {key: said for key, said in value.items() if said is not None and said is not False}
    return f"{call.name} {json.dumps(value, sort_keys=True)}"


def _is_deep(value: Any, levels: int) -> bool:
    if isinstance(value, Mapping):
        return levels == 0 or any(_is_deep(v, levels - 1) for v in value.values())
    if isinstance(value, list):
        return levels == 0 or any(_is_deep(v, levels - 1) for v in value)
    return False


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")
