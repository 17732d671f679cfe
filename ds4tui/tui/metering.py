"""What shows the engine's stats: found once, told only what is new, at a pace that costs little."""

from typing import Any

from textual.screen import Screen

from ds4tui.tui.agents_view import AgentsView
from ds4tui.tui.awake import KeepAwake
from ds4tui.tui.decisions_view import DecisionsView
from ds4tui.tui.disk_view import DiskView
from ds4tui.tui.meters import KVPanel, StatusStrip
from ds4tui.tui.pace import Load
from ds4tui.tui.panels import PanelView

# The panels' pace while somebody works, and where drawing would take from the engine; they stand
# still otherwise.
POLL_S = 0.25
FRUGAL_POLL_S = 1.0

_Showing = KVPanel | StatusStrip | DecisionsView | DiskView | AgentsView
_KINDS: tuple[type[_Showing], ...] = (KVPanel, StatusStrip, DecisionsView, DiskView, AgentsView)


class Metering:
    """Belongs to the UI loop. Walking through all widgets takes longer than showing anything, so
    those of `screen` are looked for once."""

    def __init__(self, load: Load | None = None, awake: KeepAwake | None = None) -> None:
        self._load = load or Load()
        self._awake = awake or KeepAwake()
        self._skipped_s = 0.0
        self._widgets: list[_Showing] = []
        self._told: tuple[PanelView, tuple[bool, ...]] | None = None

    def is_due(self) -> bool:
        """Whether this tick of POLL_S is worth a look."""
        self._skipped_s += POLL_S
        if self._load.look().is_engine_hungry and self._skipped_s < FRUGAL_POLL_S:
            return False
        self._skipped_s = 0.0
        return True

    def show(self, screen: Screen[Any], view: PanelView) -> None:
        """Tell all that shows something, if that, or which of it is shown, is another now."""
        if not self._widgets or not all(widget.is_attached for widget in self._widgets):
            self._widgets = [w for kind in _KINDS for w in screen.query(kind)]
            self._told = None
        self._awake.follow(view.stats)
        told = (view, tuple(widget.display for widget in self._widgets))
        if told != self._told:
            self._told = told
            for widget in self._widgets:
                widget.show(view)
