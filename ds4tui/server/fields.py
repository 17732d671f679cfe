"""Typed reading of a request's JSON object; an error names the field by its path.

A field that is absent or null is "not given" (None). Fields nobody asks for are ignored:
clients send new ones all the time, and most of them change nothing.
"""

from collections.abc import Mapping
from typing import Any

from ds4tui.errors import RequestError
from ds4tui.server.body import kind_of


class Fields:
    """One JSON object and the path that leads to it (`messages[2]`; empty for the body)."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number", value)
        try:
            return float(value)
        except OverflowError as exc:
            raise RequestError(f"{self.path(name)} is too large.", self.path(name)) from exc

    def integer(self, name: str) -> int | None:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise self.wrong(name, "an integer", value)
        return value

    def boolean(self, name: str) -> bool:
        """False if not given."""
        value = self.get(name)
        if not isinstance(value, bool | None):
            raise self.wrong(name, "true or false", value)
        return bool(value)

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if not isinstance(value, str | None):
            raise self.wrong(name, "a string", value)
        return None if value is None else whole_characters(value)

    def items(self, name: str) -> list[Any] | None:
        value = self.get(name)
        if not isinstance(value, list | None):
            raise self.wrong(name, "an array", value)
        return value

    def child(self, name: str) -> "Fields | None":
        value = self.get(name)
        if not isinstance(value, dict | None):
            raise self.wrong(name, "an object", value)
        return None if value is None else Fields(value, self.path(name))

    def objects(self, name: str) -> "list[Fields]":
        """An array of objects; empty if not given."""
        found = []
        for index, value in enumerate(self.items(name) or []):
            path = f"{self.path(name)}[{index}]"
            if not isinstance(value, dict):
                raise RequestError(f"{path} must be an object, not {kind_of(value)}.", path)
            found.append(Fields(value, path))
        return found

    def mapping(self) -> Mapping[str, Any]:
        return self._values

    def wrong(self, name: str, wanted: str, value: object) -> RequestError:
        path = self.path(name)
        return RequestError(f"{path} must be {wanted}, not {kind_of(value)}.", path)


def whole_characters(text: str) -> str:
    """`text` with halves of surrogate pairs replaced by U+FFFD.

    JSON can hold one half (a client cut a string in the middle of an emoji); no tokenizer can
    encode it, and refusing would lock that conversation for good.
    """
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
