"""The keys of the commands as they are in force, and how hints say them. Knows no terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ds4tui.tui.commands import COMMANDS

# The keys of what the app does beside its commands, by name, and what it is.
OTHER_ACTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "palette": (("ctrl+p",), "command palette"),
}
_SPELLINGS = {
    "escape": "Esc",
    "delete": "Del",
    "pageup": "PageUp",
    "pagedown": "PageDown",
    "question_mark": "?",
}


def default_keys() -> dict[str, tuple[str, ...]]:
    """By the names of commands and other actions, in the order in which they are shown."""
    commands = {command.name: command.keys for command in COMMANDS}
    return commands | {name: keys for name, (keys, _) in OTHER_ACTIONS.items()}


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """`problems` say what was wrong with the keys that a person asked for; then the usual ones
    are in force."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=default_keys)
    problems: tuple[str, ...] = ()

    def of(self, name: str) -> tuple[str, ...]:
        return self.keys.get(name, ())

    def hint(self, name: str) -> str:
        """`F3`, or what to type where it has no key: `/decisions`."""
        keys = self.of(name)
        return spelled(keys[0]) if keys else f"/{name}"


def shortcuts_of(app: object) -> Shortcuts:
    """Those of the app of a widget."""
    found = getattr(app, "shortcuts", None)
    return found if isinstance(found, Shortcuts) else Shortcuts()


def spelled(key: str) -> str:
    """A key as hints write it: `Ctrl+R`, `F3`, `Esc`."""
    return "+".join(_SPELLINGS.get(part, part.capitalize()) for part in key.split("+"))


def spelled_all(keys: tuple[str, ...]) -> str:
    return ", ".join(map(spelled, keys))
