"""The grammar of values as Gemma 4 writes them: `{path:<|"|>a.txt<|"|>,lines:[1,2]}`.

Keys stand in the order of letters, as the model's template has them.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from ds4tui.chat.rules import NotWritable, Rules, quoted, text_ending
from ds4tui.chat.schemas import Schema, resolved, target

QUOTE = '<|"|>'

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What says more of an object or an array than a grammar of them can.
_TOO_MUCH = ("allOf", "not", "if", "patternProperties", "dependentRequired", "prefixItems")
_OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ANY_KEY = "/[A-Za-z_][A-Za-z0-9_]{0,63}/"
_DEEPEST = 8  # of objects within objects that no name stands for


def gemma_object(schema: Schema, root: Schema, rules: Rules, depth: int = 0) -> str:
    """A rule of an object of that schema. Raises NotWritable."""
    known, required = schema.get("properties") or {}, schema.get("required") or []
    if not known:
        return (
            rules.add("object", '"{" "}"') if depth == 0 else _mapping(schema, root, rules, depth)
        )
    missing = [key for key in required if key not in known]
    if missing:
        raise NotWritable(f"the required argument {missing[0]!r} is not described")
    pairs = [
        (_pair(key, _value(known[key], root, rules, depth + 1), rules), key in required)
        for key in sorted(known, key=str.lower)
    ]
    return rules.add("object", f'"{{" {_listed(pairs, rules)} "}}"')


def _pair(key: str, value: str, rules: Rules) -> str:
    if QUOTE in key:
        raise NotWritable(f"an argument is called {key!r}")
    told = key if _KEY.fullmatch(key) else f"{QUOTE}{key}{QUOTE}"
    return rules.add("pair", f"{quoted(f'{told}:')} {value}")


def _listed(pairs: Sequence[tuple[str, bool]], rules: Rules) -> str:
    """Pairs with commas between those that are there: told from the last one to the first, as
    what may come when none stands before (`first`), and when one does (`next`)."""
    first = following = rules.add("nothing", '""')
    for pair, is_required in reversed(pairs):
        ways = f"{pair} {following}", f'"," {pair} {following}'
        without = ("", "") if is_required else (f" | {first}", f" | {following}")
        first, following = (rules.add("pairs", a + b) for a, b in zip(ways, without, strict=True))
    return first


def _value(schema: Any, root: Schema, rules: Rules, depth: int) -> str:
    if isinstance(schema, dict) and "$ref" in schema:
        return _named(str(schema["$ref"]), root, rules)
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        return _anything(rules)
    for word in _TOO_MUCH:
        if schema.get(word):
            raise NotWritable(f"an argument has {word!r}")
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return rules.add("one_of", " | ".join(quoted(literal(value)) for value in values))
    ways = schema.get("anyOf") or schema.get("oneOf")
    if ways:
        return rules.add("any_of", " | ".join(_value(way, root, rules, depth) for way in ways))
    kinds = schema.get("type")
    if isinstance(kinds, list):
        told = [_value({**schema, "type": kind}, root, rules, depth) for kind in kinds]
        return rules.add("any_of", " | ".join(told))
    return _of_kind(kinds, schema, root, rules, depth)


def _of_kind(kind: Any, schema: Schema, root: Schema, rules: Rules, depth: int) -> str:
    if depth > _DEEPEST:
        raise NotWritable("an argument is nested too deeply")
    match kind:
        case "string":
            return rules.add("string", f"{quoted(QUOTE)} {text_ending(schema, QUOTE, rules)}")
        case "integer" | "number":
            told = {word: schema[word] for word in _OF_NUMBERS if word in schema}
            return rules.json({"type": kind, **told}, {})
        case "boolean":
            return rules.add("boolean", '"true" | "false"')
        case "null":
            return rules.add("null", '"null"')
        case "array":
            return _array(schema, root, rules, depth)
        case "object":
            return gemma_object(schema, root, rules, depth)
    return _anything(rules)


def _named(reference: str, root: Schema, rules: Rules) -> str:
    """What a name in the schema stands for, which may hold itself."""
    name = "ref_" + "".join(c if c.isascii() and c.isalnum() else f"_{ord(c)}_" for c in reference)
    if rules.is_new(name.lower()):
        rules.write(name.lower(), _value(target(reference, root), root, rules, 1))
    return name.lower()


def _array(schema: Schema, root: Schema, rules: Rules, depth: int) -> str:
    item = _value(schema.get("items", True), root, rules, depth + 1)
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return rules.add("array", '"[" "]"')
    more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
    told = f'"[" {item} {more} "]"'
    return rules.add("array", told if least else f'"[" "]" | {told}')


def _mapping(schema: Schema, root: Schema, rules: Rules, depth: int) -> str:
    """An object whose keys are not listed."""
    values = schema.get("additionalProperties", True)
    if values is False:
        return rules.add("object", '"{" "}"')
    value = _value(values, root, rules, depth + 1)
    pair = rules.add("pair", f'{_ANY_KEY} ":" {value}')
    return rules.add("object", f'"{{" "}}" | "{{" {pair} ("," {pair})* "}}"')


def _anything(rules: Rules) -> str:
    if rules.is_new("anything"):
        kinds = ({"type": kind} for kind in ("string", "number", "boolean", "null"))
        scalars = [_of_kind(each["type"], each, {}, rules, 1) for each in kinds]
        pair = rules.add("pair", f'{_ANY_KEY} ":" anything')
        objects = f'"{{" "}}" | "{{" {pair} ("," {pair})* "}}"'
        arrays = '"[" "]" | "[" anything ("," anything)* "]"'
        rules.write("anything", " | ".join([*scalars, objects, arrays]))
    return "anything"


def literal(value: Any) -> str:
    """A value as Gemma writes it."""
    if isinstance(value, str):
        if QUOTE in value:
            raise NotWritable(f"an argument may be {value!r}")
        return f"{QUOTE}{value}{QUOTE}"
    if isinstance(value, dict):
        pairs = (f"{_told(key)}:{literal(item)}" for key, item in sorted(value.items()))
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(literal, value))}]"
    return json.dumps(value)


def _told(key: str) -> str:
    return key if _KEY.fullmatch(key) else literal(key)
