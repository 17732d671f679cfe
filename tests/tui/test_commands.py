import pytest

from ds4tui.tui.commands import (
    COMMANDS,
    OTHER_KEYS,
    bindings,
    completions,
    help_content,
    named,
    parse,
)
from ds4tui.tui.prompt import NEWLINE_KEYS, SCROLL_KEYS


def test_names_aliases_and_keys_are_unique() -> None:
    names = [n for c in COMMANDS for n in (c.name, *c.aliases)]
    keys = [k for c in COMMANDS for k in c.keys] + [*NEWLINE_KEYS, *SCROLL_KEYS]
    assert len(names) == len(set(names)) and len(keys) == len(set(keys))


def test_help_and_bindings_come_from_the_table() -> None:
    text = help_content().plain
    for command in COMMANDS:
        assert command.usage in text and command.help in text
        assert all(key in text for key in command.keys)
    assert {b.key for b in bindings()} == {",".join(c.keys) for c in COMMANDS if c.keys}
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
    found = [named(name) for name in ("stop", "screenshot", "serve", "system")]
    assert completions("/s") == tuple(found)
    assert completions("/CONT") == (named("resume"),)
    for text in ("", "x", "/new ", "/zzz", "a/new"):
        assert completions(text) == ()
