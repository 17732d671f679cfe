"""Sampling and system prompt of a conversation, as a form. Dismissed with what was set, or None."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static, TextArea

from ds4tui.errors import ConfigError

# What another system prompt costs is asked when nobody has typed for so long.
TYPED_S = 0.2
KEYS = "Ctrl+S keeps it here · F2 also as the default · Esc leaves it"


@dataclass(frozen=True, slots=True)
class Row:
    """A number: what is set in this conversation ("" for nothing), what holds else, and what it
    must be, in words."""

    name: str
    value: str
    usual: str
    expected: str


@dataclass(frozen=True, slots=True)
class Tuned:
    """`values` by name hold what is set and nothing else."""

    values: Mapping[str, float]
    system: str
    is_default: bool = False


class TuningScreen(ModalScreen[Tuned | None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Close", priority=True),
        Binding("ctrl+s", "keep(False)", "Keep", priority=True),
        Binding("f2", "keep(True)", "Keep as default", priority=True),
    ]

    def __init__(
        self,
        rows: Sequence[Row],
        system: str,
        checked: Callable[[Mapping[str, str]], Mapping[str, float]],
        cost_of: Callable[[str], Awaitable[str]],
    ) -> None:
        """`checked` makes numbers of what was typed, or raises ConfigError; `cost_of` tells what a
        system prompt costs, in words."""
        super().__init__()
        self._rows, self._system = rows, system
        self._checked, self._cost_of = checked, cost_of
        self._told = system  # whose cost is on the screen

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide") as dialog:
            dialog.border_title = "Sampling and system prompt of this conversation"
            dialog.border_subtitle = KEYS
            with Grid():
                for row in self._rows:
                    with Horizontal():
                        yield Label(row.name, markup=False)
                        usual = row.usual or "not set"
                        yield Input(row.value, usual, id=row.name, compact=True)
            yield Static(id="asked", markup=False)
            yield Label("System prompt")
            yield TextArea(self._system, id="system", compact=True, tab_behavior="focus")
            yield Static(id="told", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._ask_cost()

    @on(Input.Changed)
    def check(self) -> None:
        """Say at once what is wrong with a number."""
        try:
            self._checked(self._texts())
        except ConfigError as exc:
            self._say(exc.message, is_wrong=True)
        else:
            self._say("")

    @on(Input.Submitted)
    def go_on(self) -> None:
        self.focus_next()

    def on_descendant_focus(self) -> None:
        row = next((r for r in self._rows if self.focused and r.name == self.focused.id), None)
        if row is not None and not self.query_one("#asked").has_class("error"):
            self._say(f"{row.name}: {row.expected}; empty: {row.usual or 'not set'}")

    @on(TextArea.Changed)
    def _ask_cost(self) -> None:
        self.run_worker(self._tell_cost(), group="cost", exclusive=True)

    async def _tell_cost(self) -> None:
        system = self._typed_system
        await asyncio.sleep(TYPED_S)
        words = await self._cost_of(system)
        self.query_one("#told", Static).update(words)
        self._told = system

    def action_keep(self, is_default: bool) -> None:
        try:
            values = self._checked(self._texts())
        except ConfigError as exc:
            self._say(exc.message, is_wrong=True)
            return
        if self._told != self._typed_system:  # what it costs is told before it is done
            self._say("What the system prompt costs is being told: press the key again then.")
            return
        self.dismiss(Tuned(values, self._typed_system, is_default))

    @property
    def _typed_system(self) -> str:
        return self.query_one(TextArea).text.strip()

    def _texts(self) -> dict[str, str]:
        return {row.name: self.query_one(f"#{row.name}", Input).value for row in self._rows}

    def _say(self, words: str, *, is_wrong: bool = False) -> None:
        asked = self.query_one("#asked", Static)
        asked.set_class(is_wrong, "error")
        asked.update(words)
