"""The keys of the commands: as Textual's bindings, and as a person remaps them.

`[keys]` in config.toml maps the name of a command (or of another action) to a key, a list of keys
or nothing:

    [keys]
    decisions = "ctrl+l"
    regen = ["f8", "alt+r"]
    quit = []

What is wrong with it is told in words, and then all keys are the usual ones: half a keymap would
surprise more. A key that two actions would have is wrong, so is one that the prompt needs.
"""

import re
import unicodedata
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from textual.binding import Binding
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, _character_to_key

from ds4tui.tui.commands import COMMANDS
from ds4tui.tui.prompt import NEWLINE_KEYS, SCROLL_KEYS
from ds4tui.tui.shortcuts import Shortcuts, default_keys, spelled

_MODIFIERS = ("ctrl", "alt", "shift", "super", "meta", "hyper")
_NAMED = frozenset(key.value for key in Keys if "+" not in key.value and "<" not in key.value)
# What the prompt, its lists and the dialogs cannot do without.
RESERVED = frozenset(
    {"enter", "tab", "shift+tab", "backspace", "delete", "space", "left", "right", "up", "down"}
    | {"home", "end", "ctrl+c", "super+c", "ctrl+v", "ctrl+o", "ctrl+m", "ctrl+i", "ctrl+h"}
    | {*NEWLINE_KEYS, *SCROLL_KEYS}
)
# Escape means several things by where one is, and only /stop knows to stay out of its way.
_ONLY_FOR = {"escape": "stop"}
_ID = "command."
_NO_KEY = "no_key_"


def bindings() -> list[Binding]:
    """The usual keys of all commands, for the app. The prompt has the focus nearly always and uses
    some of these keys itself, hence priority."""
    return [
        Binding(
            ",".join(command.keys) or _no_key(command.name),
            f"command('{command.name}')",
            command.footer or command.name,
            show=bool(command.footer),
            priority=True,
            tooltip=command.help,
            id=_ID + command.name,
        )
        for command in COMMANDS
    ] + [
        Binding(
            "ctrl+p", "command_palette", "palette", show=False, priority=True, id=_ID + "palette"
        )
    ]


def keymap(shortcuts: Shortcuts) -> dict[str, str]:
    """What differs from the usual keys, as Textual's `set_keymap` takes it."""
    return {
        _ID + name: ",".join(keys) or _no_key(name)
        for name, keys in shortcuts.keys.items()
        if keys != default_keys()[name]
    }


def _no_key(name: str) -> str:
    """Stands where Textual wants a key: no terminal sends it."""
    return f"{_NO_KEY}{name}"


def is_no_key(key: str) -> bool:
    return key.startswith(_NO_KEY)


def shortcuts(wanted: Any) -> Shortcuts:
    """The keys in force, if a person asks for `wanted`, which is what stands under `keys`."""
    usual = default_keys()
    if not isinstance(wanted, dict):
        return Shortcuts(usual, ("keys must be a table: [keys], then a line for each action.",))
    keys, problems = dict(usual), list[str]()
    for name, value in wanted.items():
        if name not in usual:
            problems.append(f"keys.{name}: there is no action of that name. {_near(name)}")
            continue
        found, problem = _keys_of(name, value)
        keys[name] = found
        problems += [f"keys.{name}: {problem}"] if problem else []
    problems += _collisions(keys, wanted)
    return Shortcuts(usual if problems else keys, tuple(problems))


def _near(name: str) -> str:
    found = get_close_matches(name, default_keys(), 1)
    return f"Did you mean {found[0]}?" if found else "/help lists them."


def _keys_of(name: str, value: Any) -> tuple[tuple[str, ...], str]:
    """The keys that `value` names, and what is wrong with them ("" if nothing)."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        return (), "it must be a key, a list of keys, or [] for none."
    keys = []
    for text in (part for each in listed for part in each.split(",") if part.strip()):
        key = normal(text)
        if key is None:
            return (), f"{text.strip()[:40]!r} is no key. Write it as ctrl+l, f8 or alt+shift+r."
        if problem := _why_not(name, key):
            return (), problem
        keys.append(key)
    return tuple(dict.fromkeys(keys)), ""


def normal(text: str) -> str | None:
    """The key as Textual calls it: `Ctrl+L` is `ctrl+l`, `alt+?` `alt+question_mark`; None for
    what is none."""
    spelled_out = re.sub(r"(^|\+)\+$", r"\1plus", text.strip().lower())
    *modifiers, base = spelled_out.split("+")
    modifiers = [{"option": "alt", "cmd": "super", "control": "ctrl"}.get(m, m) for m in modifiers]
    if len(base) == 1 and base.isprintable():
        base = _character_to_key(base)
    elif base not in _NAMED and not _is_character_name(base):
        return None
    if len(set(modifiers)) != len(modifiers) or not set(modifiers) <= set(_MODIFIERS):
        return None
    # Textual names a key's modifiers in the order of the alphabet.
    return "+".join([*sorted(modifiers), base])


def _is_character_name(base: str) -> bool:
    """`question_mark`, `left_square_bracket`."""
    try:
        if base in KEY_NAME_REPLACEMENTS.values():
            return True
        return " " not in base and bool(unicodedata.lookup(base.replace("_", " ")))
    except KeyError:
        return False


def _why_not(name: str, key: str) -> str:
    """Why `key` cannot be that of `name`; "" if it can."""
    modifiers, _, base = key.rpartition("+")
    is_typed = modifiers in ("", "shift") and base not in _NAMED
    if is_typed:
        return f"{key} is text that is typed. Add ctrl or alt to it."
    if key in RESERVED:
        return f"{spelled(key)} is needed in the prompt. Choose another key."
    if _ONLY_FOR.get(key, name) != name:
        return f"{spelled(key)} is only for {_ONLY_FOR[key]}. Choose another key."
    return ""


def _collisions(keys: Mapping[str, tuple[str, ...]], wanted: Mapping[str, Any]) -> list[str]:
    owners: dict[str, str] = {}
    problems = []
    for name in sorted(keys, key=lambda name: name in wanted):  # the usual ones were there first
        for key in keys[name]:
            other = owners.setdefault(key, name)
            if other != name:
                problems.append(
                    f"keys.{name}: {spelled(key)} is the key of {other}. "
                    f"Choose another, or give {other} one in [keys], too."
                )
    return problems
