from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.config import config_path, load_settings, own_keys, print_config
from ds4tui.errors import ConfigError
from ds4tui.tui.commands import COMMANDS
from ds4tui.tui.keymap import RESERVED, keymap, normal, shortcuts
from ds4tui.tui.shortcuts import Shortcuts, default_keys, spelled
from tests.scale import scaled
from tests.tui.harness import running


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Ctrl+L", "ctrl+l"),
        (" f8 ", "f8"),
        ("shift+ctrl+a", "ctrl+shift+a"),
        ("alt+?", "alt+question_mark"),
        ("alt+left_square_bracket", "alt+left_square_bracket"),
        ("option+r", "alt+r"),
        ("ctrl++", "ctrl+plus"),
        ("nonsense", None),
        ("ctrl+nonsense", None),
        ("ctrl+ctrl+a", None),
        ("strg+a", None),
        ("", None),
    ],
)
def test_how_keys_are_written(text: str, key: str | None) -> None:
    assert normal(text) == key


def test_keys_can_be_changed_added_swapped_and_taken_away() -> None:
    keys = shortcuts(
        {"decisions": "f2", "panel": "f3", "regen": ["F8", "alt+r"], "quit": [], "theme": "f12"}
    )
    assert keys.problems == ()
    assert keys.of("decisions") == ("f2",) and keys.of("panel") == ("f3",)
    assert keys.of("regen") == ("f8", "alt+r") and keys.of("quit") == ()
    assert keys.hint("theme") == "F12" and keys.hint("quit") == "/quit"
    assert keymap(keys) == {
        "command.decisions": "f2",
        "command.panel": "f3",
        "command.regen": "f8,alt+r",
        "command.quit": "no_key_quit",
        "command.theme": "f12",
    }


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"decision": "f2"}, "keys.decision: there is no action of that name. Did you mean"),
        ({"panel": "hyperdrive"}, "keys.panel: 'hyperdrive' is no key."),
        ({"panel": 3}, "keys.panel: it must be a key, a list of keys"),
        ({"panel": "f3"}, "keys.panel: F3 is the key of decisions."),
        ({"palette": "ctrl+r"}, "keys.palette: Ctrl+R is the key of resume."),
        ({"panel": "f11", "disk": "f11"}, "keys.disk: F11 is the key of panel."),
        ({"panel": "p"}, "keys.panel: p is text that is typed."),
        ({"panel": "?"}, "keys.panel: question_mark is text that is typed."),
        ({"panel": "enter"}, "keys.panel: Enter is needed in the prompt."),
        ({"panel": "ctrl+j"}, "keys.panel: Ctrl+J is needed in the prompt."),
        ({"stop": "f12", "panel": "escape"}, "keys.panel: Esc is only for stop."),
        ("f3", "keys must be a table"),
    ],
)
def test_what_is_wrong_is_told_and_the_usual_keys_hold(wanted: object, problem: str) -> None:
    keys = shortcuts(wanted)
    assert len(keys.problems) == 1 and keys.problems[0].startswith(problem)
    assert keys.keys == default_keys() and keymap(keys) == {}


_NAMES = st.sampled_from([*default_keys(), "nobody"])
_KEYS = st.sampled_from([*sorted(RESERVED), "f2", "f3", "f11", "ctrl+l", "alt+r", "x", "escape"])


@settings(max_examples=scaled(60), deadline=None)
@given(st.dictionaries(_NAMES, st.one_of(_KEYS, st.lists(_KEYS, max_size=3), st.integers())))
def test_no_key_has_two_meanings_whatever_is_asked_for(wanted: dict[str, object]) -> None:
    keys = shortcuts(wanted)
    held = [key for each in keys.keys.values() for key in each]
    assert len(held) == len(set(held)) and not set(held) & RESERVED
    assert set(keys.keys) == set(default_keys())
    assert bool(keys.problems) == (keys.keys == default_keys() and _differs(wanted))


def _differs(wanted: dict[str, object]) -> bool:
    """Whether `wanted`, as it is written, is not just the usual keys."""
    usual = default_keys()
    for name, value in wanted.items():
        listed = tuple(dict.fromkeys(value)) if isinstance(value, list) else (value,)
        if usual.get(name) != listed:
            return True
    return False


async def test_remapped_keys_work_and_the_old_ones_do_not() -> None:
    keys = shortcuts({"decisions": ["f11", "ctrl+l"], "panel": "f3", "theme": "f12", "quit": []})
    async with running(shortcuts=keys) as on:
        view = on.app.query_one("#decisions")
        for key in ("f11", "ctrl+l"):
            await on.press(key)
            await on.until(lambda: view.display, f"{key} shows the decisions")
            await on.press(key)
            await on.until(lambda: not view.display, f"{key} hides the decisions")
        panel = on.app.query_one("#panel")
        was = panel.display
        await on.press("f3")
        await on.until(lambda: panel.display != was, "F3 is the panel's key now")
        assert not view.display
        await on.press("ctrl+q", "f2")  # nobody's any more
        await on.press("f12")
        await on.until(lambda: "atom-one-dark" in on.screen_text(), "F12 lists the themes")
        assert not view.display and panel.display != was


async def test_help_hints_footer_completion_and_palette_show_the_remapped_keys() -> None:
    keys = shortcuts({"decisions": "ctrl+l", "server": [], "agents": "f11", "palette": "f12"})
    async with running(shortcuts=keys, size=(120, 40)) as on:
        await on.until(lambda: "Ctrl+L  tells why" in on.screen_text(), "the welcome")
        assert "off, /server turns it on" in on.screen_text()
        assert "^l Why" in on.screen_text() and "f3" not in on.screen_text()
        await on.press("f11")
        await on.until(lambda: "F11 closes" in on.screen_text(), "the agents' border")
        assert "/server serves the open model" in on.screen_text()
        await on.press("f11")
        await on.type("/dec")
        await on.until(lambda: "Ctrl+L   show or hide" in on.screen_text(), "the completion")
        await on.press(*["backspace"] * 4, "f1")
        await on.until(lambda: "Ctrl+L" in on.screen_text(), "the help")
        await on.press("escape", "f12")
        await on.type("decis")
        await on.until(lambda: "(Ctrl+L)" in on.screen_text(), "the palette")


@pytest.mark.parametrize(("typed", "entered"), [("/theme", "/theme"), ("/the", "/theme")])
async def test_a_command_is_run_by_enter_in_the_list(typed: str, entered: str) -> None:
    async with running() as on:
        await on.type(typed)
        await on.press("enter")
        await on.until(lambda: "atom-one-dark" in on.screen_text(), f"{entered} runs")
        assert on.prompt.text == ""


async def test_wrong_keys_are_told_in_the_app_which_starts_all_the_same() -> None:
    keys = shortcuts({"panel": "f3"})
    async with running(shortcuts=keys) as on:
        await on.until(lambda: on.notices, "a warning")
        assert "keys.panel: F3 is the key of decisions." in on.notices[0]
        await on.press("f3")
        await on.until(lambda: on.app.query_one("#decisions").display)


def test_keys_stand_in_config_toml_beside_the_settings(tmp_path: Path) -> None:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text('theme = "nord"\n[keys]\nregen = ["f8", "alt+r"]\n')
    loaded = load_settings()
    assert loaded.theme == "nord" and own_keys() == {"regen": ["f8", "alt+r"]}
    printed = print_config(loaded)
    assert "[keys]" in printed and '"alt+r"' in printed
    config_path().write_text("[colours]\nblue = 1\n")
    with pytest.raises(ConfigError, match="there is no setting 'colours'"):
        load_settings()


def test_keys_are_spelled_as_people_read_them() -> None:
    spelt = ("ctrl+r", "f3", "escape", "ctrl+pagedown", "alt+question_mark")
    assert [*map(spelled, spelt)] == ["Ctrl+R", "F3", "Esc", "Ctrl+PageDown", "Alt+?"]


def test_every_command_has_a_place_in_the_keymap() -> None:
    assert {c.name for c in COMMANDS} <= set(Shortcuts().keys)
