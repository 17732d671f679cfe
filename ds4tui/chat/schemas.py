"""What the JSON Schema of a tool's parameters says of its arguments, as far as syntaxes need it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_MOST_STEPS = 16  # from one name of a schema to the next


def schema_of(text: str) -> Schema:
    """Nothing for what is no schema."""
    try:
        found = json.loads(text) if text else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def properties(text: str) -> dict[str, Any]:
    """The schemas of the arguments, by their names, as `resolved` has them, and so are those of
    which a value has one."""
    root = schema_of(text)
    found = resolved(root, root).get("properties")
    return {key: _opened(s, root) for key, s in found.items()} if isinstance(found, dict) else {}


def _opened(schema: Any, root: Schema) -> Any:
    schema = resolved(schema, root)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema, dict) and isinstance(schema.get(word), list):
            return {**schema, word: [resolved(way, root) for way in schema[word]]}
    return schema


def resolved(schema: Any, root: Schema) -> Any:
    """A schema in place of what only names it: a `$ref` within `root`, an `allOf` of one."""
    for _ in range(_MOST_STEPS):
        if not isinstance(schema, dict):
            break
        ways = schema.get("allOf")
        if "$ref" in schema:
            schema = target(schema["$ref"], root)
        elif isinstance(ways, list) and len(ways) == 1 and "type" not in schema:
            schema = ways[0]
        else:
            break
    return schema


def target(reference: Any, root: Schema) -> Any:
    """What a `$ref` names, {} for nothing in `root`."""
    found: Any = root
    for step in str(reference).removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) and str(reference).startswith("#") else {}


def ways_of(schema: Any) -> Sequence[Any]:
    """The schemas of which a value has one: those of `anyOf` and `oneOf`, else the schema."""
    ways = (schema.get("anyOf") or schema.get("oneOf")) if isinstance(schema, dict) else None
    return ways if isinstance(ways, list) else [schema]


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
    ways = ways_of(schema)
    return any(map(is_text, ways)) if ways != [schema] else "$ref" not in schema
