"""What the JSON Schema of a tool's parameters says of its arguments, as far as syntaxes need it."""

import json
from collections.abc import Mapping
from typing import Any


def properties(schema: str) -> Mapping[str, Any]:
    """The schemas of the arguments, by their names; nothing for what is no schema."""
    try:
        found = json.loads(schema).get("properties") if schema else None
    except (ValueError, AttributeError):
        found = None
    return found if isinstance(found, dict) else {}


def is_text(schema: Any) -> bool:
    """Whether a value of that schema may be a text; one that says nothing means a text."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else [kinds])
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return any(isinstance(value, str) for value in values)
    ways = schema.get("anyOf") or schema.get("oneOf")
    return any(map(is_text, ways)) if isinstance(ways, list) else "$ref" not in schema
