"""Rules of a grammar in llguidance's Lark form, named as they are added."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ds4tui.chat.schemas import Schema, ways_of

# Between two parts of JSON: nothing, or blanks and a line's end with its indentation.
_BLANKS = r"[ ]{0,2}|\n[ ]{0,24}"
JSON_OPTIONS: Mapping[str, Any] = {"whitespace_pattern": _BLANKS}
# Agents' schemas say more than can be held by grammar (`propertyNames`): of arguments the rest is
# held then, since a call is better than none. The form of an answer is held whole, or refused.
CALL_OPTIONS: Mapping[str, Any] = {**JSON_OPTIONS, "lenient": True}

ANYTHING = "(?s:.*)"
# What a schema may say of a text beside what it is for.
_OF_TEXTS = ("pattern", "minLength", "maxLength")


class NotWritable(ValueError):
    """Says in words what no grammar of the kind can say."""


class Rules:
    """Names are lower case for rules, upper case for terminals."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}
        self._names: dict[tuple[str, str, str], str] = {}

    def __str__(self) -> str:
        return "".join(f"{name}: {body}\n" for name, body in self._lines.items())

    def add(self, stem: str, body: str, options: str = "") -> str:
        """The name of a rule of that body."""
        key = stem, body, options
        if key not in self._names:
            self._names[key] = name = f"{stem}_{len(self._names)}"
            self._lines[name + options] = body
        return self._names[key]

    def is_new(self, name: str) -> bool:
        """Whether a rule of that very name is still to be written; then it is noted."""
        is_new = name not in self._lines
        self._lines.setdefault(name, "")
        return is_new

    def write(self, name: str, body: str) -> None:
        self._lines[name] = body

    def json(self, schema: Any, root: Schema) -> str:
        """A rule of JSON of that schema, the names in which are those of `root`."""
        known: dict[str, Any] = {}
        whole = placed(schema, root, "whole", known)
        told = {**whole, "$defs": known} if known else whole
        return self.add("value", f"%json {written(told, CALL_OPTIONS)}")


def placed(schema: Any, root: Schema, name: str, known: dict[str, Any]) -> dict[str, Any]:
    """A schema for within another, whose `$defs` are `known`: there `root` has that name, if
    anything in it is named."""
    if not isinstance(schema, dict):
        return {}
    moved = _moved(schema, name)
    if moved != schema:
        known[name] = _moved(root, name)
    return dict(moved)


def _moved(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, name) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(item, name) for key, item in value.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"#/$defs/{name}{reference[1:]}"
    return moved


def written(schema: Mapping[str, Any], options: Mapping[str, Any] = JSON_OPTIONS) -> str:
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=True)


def quoted(text: str) -> str:
    """A literal."""
    return json.dumps(text, ensure_ascii=False)


def beginning_with(mark: str, expression: str) -> str:
    """The rest of an expression whose first literal begins with `mark`."""
    literal, end = json.JSONDecoder().raw_decode(expression)
    rest = literal.removeprefix(mark)
    return " ".join(filter(None, [quoted(rest) if rest else "", expression[end:].strip()]))


def regex(text: str) -> str:
    """A regular expression that matches that text, for between slashes."""
    return "".join(f"\\{c}" if c in r"\.+*?()|[]{}^$/#&~-" else _plain(c) for c in text)


def _plain(character: str) -> str:
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character, character)


def text_ending(schema: Any, end: str, rules: Rules) -> str:
    """A rule of a text of that schema up to `end`, which is a part of it and stands in it nowhere
    else. Raises NotWritable."""
    marks = end.strip("\n")
    ways = list(dict.fromkeys(_texts(schema, marks)))
    if "" in ways:
        return rules.add("text", f"/{ANYTHING}{regex(marks)}/", "[lazy]")
    if all(way.startswith('"') for way in ways):
        told = [f"{way[:-1]}{quoted(end)[1:]}" for way in ways]
        return rules.add("text", " | ".join(told))
    return rules.add("TEXT", f"({' | '.join(f'({way})' for way in ways)}) {quoted(end)}")


def _texts(schema: Any, marks: str) -> Iterator[str]:
    """What texts a schema allows: literals and terminals, "" for any."""
    ways = [way for way in ways_of(schema) if _may_be_text(way)]
    for way in ways or [{}]:
        values = [way["const"]] if "const" in way else way.get("enum")
        if isinstance(values, list):
            yield from map(quoted, _fitting(values, marks))
        elif any(word in way for word in _OF_TEXTS):
            yield _held(way, marks)
        else:
            yield ""


def _may_be_text(schema: Any) -> bool:
    kinds = schema.get("type", "string") if isinstance(schema, dict) else ()
    return "string" in (kinds if isinstance(kinds, list) else [kinds])


def _fitting(values: list[Any], marks: str) -> list[str]:
    texts = [value for value in values if isinstance(value, str)]
    if any(marks in text for text in texts):
        raise NotWritable(f"an argument may be a text with {marks!r}")
    return texts


def _held(schema: Schema, marks: str) -> str:
    """A terminal of texts without `marks` that are as long and of the pattern as they must."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    parts = [f"/(?s:.{{{least},{most}}})/", f"~/{ANYTHING}{regex(marks)}{ANYTHING}/"]
    if "pattern" in schema:
        parts.append(f"/{_whole(schema['pattern'])}/")
    return " & ".join(parts)


def _whole(pattern: str) -> str:
    """A pattern that may match anywhere, as one that must match all."""
    bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "", pattern)
    if re.search(r"\(\?[=!<]|\\[bB]", pattern) or ("|" in bare and re.search(r"[\^$]", bare)):
        raise NotWritable(f"an argument has the pattern {pattern!r}")
    if re.search(r"[\^$]", bare[1:-1]):
        raise NotWritable(f"an argument has the pattern {pattern!r}")
    has_start, has_end = pattern.startswith("^"), bare.endswith("$")
    core = pattern[1:] if has_start else pattern
    core = core[:-1] if has_end else core
    core = re.sub(r"(?<!\\)/", r"\\/", core)
    before, behind = "" if has_start else ANYTHING, "" if has_end else ANYTHING
    return f"{before}(?:{core}){behind}"
