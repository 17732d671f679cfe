"""Which theme is in force, and keeping the one that a person chose."""

import logging
from collections.abc import Iterable

from ds4tui.config import save_state
from ds4tui.errors import ConfigError

log = logging.getLogger(__name__)

DEFAULT_THEME = "textual-dark"
# What people call the themes that use only the terminal's own colours.
ALIASES = {"ansi": "ansi-dark", "terminal": "ansi-dark", "dark": "textual-dark"} | {
    "light": "textual-light"
}


def known_theme(name: str, available: Iterable[str]) -> str:
    """The theme called `name`; the default one if there is none (releases rename themes)."""
    found = ALIASES.get(name, name)
    if found in available:
        return found
    log.warning("there is no theme %r; %s is used", name, DEFAULT_THEME)
    return DEFAULT_THEME


def keep_theme(name: str) -> None:
    """Use `name` from now on. A state file that cannot be written costs the choice, no more."""
    try:
        save_state(theme=name)
    except ConfigError as exc:
        log.warning("the theme could not be kept: %s", exc)
