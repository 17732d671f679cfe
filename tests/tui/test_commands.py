import pytest

from ds4tui.tui.commands import (
    COMMANDS,
    OTHER_KEYS,
    Completion,
    completions,
    entries,
    named,
    offered,
    parse,
)
from ds4tui.tui.keymap import bindings
from ds4tui.tui.prompt import NEWLINE_KEYS, SCROLL_KEYS
from ds4tui.tui.screens.help import help_content
from ds4tui.tui.shortcuts import OTHER_ACTIONS, Shortcuts, spelled


def test_names_aliases_and_keys_are_unique() -> None:
    names = [n for c in COMMANDS for n in (c.name, *c.aliases)]
    keys = [k for c in COMMANDS for k in c.keys] + [*NEWLINE_KEYS, *SCROLL_KEYS]
    assert len(names) == len(set(names)) and len(keys) == len(set(keys))


def test_help_and_bindings_come_from_the_table() -> None:
    text = help_content(Shortcuts(), 200).plain
    for command in COMMANDS:
        assert command.usage in text and command.help in text
        assert all(spelled(key) in text for key in command.keys)
    bound = {b.key for b in bindings() if not b.key.startswith("no_key")}
    usual = [c.keys for c in COMMANDS if c.keys] + [keys for keys, _ in OTHER_ACTIONS.values()]
    assert bound == set(map(",".join, usual))
    told = {key for keys, _ in OTHER_KEYS for key in keys.split(", ")}
    assert set(SCROLL_KEYS) <= told and set(NEWLINE_KEYS) <= told


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/new", ("new", "new", "")),
        ("/NEW  ", ("new", "NEW", "")),
        ("/continue", ("resume", "continue", "")),
        ("/system Be  brief. ", ("system", "system", "Be  brief.")),
        ("/nonsense at all", (None, "nonsense", "at all")),
        ("no command", None),
        ("/etc/hosts is a file", None),
        ("/", None),
        ("// a comment", None),
        (" /new", None),
        ("/new\nsecond line", None),
        ("/system Be brief.\n\nBe kind.\n", ("system", "system", "Be brief.\n\nBe kind.")),
        ("/system\nBe brief.", ("system", "system", "Be brief.")),
        ("/nonsense at\nall", None),
        ("/\n", None),
    ],
)
def test_what_is_a_command_line(text: str, found: tuple[str | None, str, str] | None) -> None:
    parsed = parse(text)
    if found is None:
        assert parsed is None
    else:
        assert parsed is not None
        command, name, argument = parsed
        assert (command.name if command else None, name, argument) == found


def test_completions_narrow_while_a_name_is_typed() -> None:
    assert completions("/") == COMMANDS
    found = [named(name) for name in ("stop", "screenshot", "server", "system", "sampling")]
    assert completions("/s") == tuple(found)
    assert completions("/CONT") == (named("resume"),)
    for text in ("", "x", "/new ", "/zzz", "a/new"):
        assert completions(text) == ()


@pytest.mark.parametrize("width", [40, 60, 72])
def test_help_fits_its_width_and_hangs_its_lines(width: int) -> None:
    lines = help_content(Shortcuts(), width).plain.split("\n")
    assert max(map(len, lines)) <= width
    (at,) = (n for n, line in enumerate(lines) if line.startswith("/decisions"))
    begin = lines[at].index("show or hide the decisions"[:4])
    assert lines[at + 1][:begin].strip() == "" and lines[at + 1][begin] != " "


def test_what_a_command_may_be_told_is_offered_behind_its_name() -> None:
    server = named("server")
    words = ["", "on", "off"]
    assert offered("/server ") == tuple(Completion(server, w, is_choice=True) for w in words)
    assert [each.text for each in offered("/SERVE o")] == ["/server on", "/server off"]
    assert [each.help for each in offered("/server of")] == ["stop the HTTP server"]
    assert offered("/ser") == (Completion(server),)
    for text in ("/server on ", "/model ", "/nonsense ", "server ", " /server "):
        assert offered(text) == ()


def test_every_command_can_be_chosen_in_a_list_with_each_thing_it_may_be_told() -> None:
    listed = [(each.command.name, each.argument) for each in entries()]
    assert {name for name, _ in listed} == {c.name for c in COMMANDS}
    assert len(listed) == len(set(listed)) and ("server", "off") in listed
