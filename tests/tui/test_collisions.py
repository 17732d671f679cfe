"""Keys that never reach the app, because a program around it keeps them, have a way round."""

from dataclasses import dataclass

import pytest

from ds4tui.tui.commands import COMMANDS, OTHER_KEYS, parse
from ds4tui.tui.keymap import shortcuts
from ds4tui.tui.prompt import NEWLINE_KEYS, SCROLL_KEYS
from ds4tui.tui.shortcuts import default_keys


@dataclass(frozen=True)
class Around:
    """A program that the app runs in, what it keeps by its own defaults, and who says so."""

    name: str
    keeps: frozenset[str]
    source: str


PROGRAMS = (
    Around("tmux", frozenset({"ctrl+b"}), "tmux(1), DEFAULT KEY BINDINGS: the prefix"),
    Around("screen", frozenset({"ctrl+a"}), "screen(1): the command character"),
    Around(
        "VS Code",
        frozenset(
            "f1 f5 f6 f10 f11 ctrl+p ctrl+e ctrl+q ctrl+j ctrl+m ctrl+f ctrl+i ctrl+tab ctrl+up "
            "ctrl+down ctrl+pageup ctrl+pagedown shift+pageup shift+pagedown ctrl+home "
            "ctrl+end".split()
        ),
        "microsoft/vscode, terminal.ts: DEFAULT_COMMANDS_TO_SKIP_SHELL, with the default keys of "
        "these commands; ctrl+q as told in Textualize/textual#5385",
    ),
    Around(
        "GNOME Terminal",
        frozenset({"f1", "f10", "f11"}),
        "GNOME Terminal's help, Keyboard Shortcuts: Contents, the menu bar, Full Screen",
    ),
    Around("Konsole", frozenset({"f11"}), "Konsole's handbook, View: Full Screen Mode"),
    Around(
        "Windows Terminal",
        frozenset({"f11", "alt+enter", "ctrl+v", "ctrl+comma"}),
        "Microsoft's documentation of Windows Terminal, Actions: toggleFullscreen, paste",
    ),
    Around(
        "macOS",
        frozenset({"f11", "ctrl+up", "ctrl+down", "ctrl+left", "ctrl+right", "ctrl+space"}),
        "Apple's Mac keyboard shortcuts: Show Desktop, Mission Control, input sources",
    ),
    Around(
        "terminals without the kitty protocol",
        frozenset({"shift+enter", "ctrl+enter", "shift+up", "shift+down"}),
        "Terminal.app sends the same byte for Enter and Shift+Enter",
    ),
)

# Of keys that are no commands' own: other keys, or commands, that do the same.
WAYS_ROUND = {
    "palette": {"ctrl+p": ("/help",)},
    "new line": {key: (*NEWLINE_KEYS, "/editor") for key in NEWLINE_KEYS},
    "scrolling": {
        "ctrl+up": ("pageup",),
        "ctrl+down": ("pagedown",),
        "ctrl+home": ("pageup",),
        "ctrl+end": ("pagedown",),
    },
    "pasting a picture": {"ctrl+v": ("/image", "@")},
    "details of a decision": {"shift+up": ("pageup",), "shift+down": ("pagedown",)},
}
AROUND = {key: ways for each in WAYS_ROUND.values() for key, ways in each.items()}

IDS = [program.name for program in PROGRAMS]


def test_no_prefix_of_a_multiplexer_is_a_key_of_ours() -> None:
    ours = {key for keys in default_keys().values() for key in keys}
    ours |= {*NEWLINE_KEYS, *SCROLL_KEYS} | {
        key for keys, _ in OTHER_KEYS for key in keys.split(", ")
    }
    for program in PROGRAMS[:2]:
        assert not ours & program.keeps, program.name


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_every_command_runs_without_its_key(program: Around) -> None:
    for command in COMMANDS:
        if program.keeps & {*command.keys}:
            assert parse(f"/{command.name}") == (command, command.name, "")
    assert not program.keeps & {"slash", "enter", "tab", "escape", "backspace", "up", "down"}


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_every_other_key_has_a_way_round(program: Around) -> None:
    others = [key for keys, _ in OTHER_KEYS for key in keys.split(", ")] + [
        *default_keys()["palette"]
    ]
    for key in program.keeps & {*others}:
        ways = [way for way in AROUND.get(key, ()) if way not in program.keeps]
        assert ways, f"{program.name} keeps {key} ({program.source})"
        for way in ways:
            known = way in others or way in SCROLL_KEYS or parse(way) is not None
            assert known and (not way.startswith("/") or (parse(way) or [None])[0]), way


@pytest.mark.parametrize("program", PROGRAMS, ids=IDS)
def test_every_key_that_is_kept_can_be_remapped_to_one_that_is_not(program: Around) -> None:
    spare = [f"alt+{letter}" for letter in "acdeghijklmnopqrstuvwxyz"]
    wanted = {name: spare.pop() for name, keys in default_keys().items() if {*keys} & program.keeps}
    keys = shortcuts(wanted)
    assert keys.problems == ()
    assert not {key for each in keys.keys.values() for key in each} & program.keeps
