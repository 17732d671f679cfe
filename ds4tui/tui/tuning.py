"""How tokens of this conversation are chosen, and its system prompt: seen and changed in the app.

What is chosen when a token is sampled stands in no row of a state: such a change drops nothing.
The system prompt stands before everything, so another one is computed with all that follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from textual.screen import Screen

from ds4tui.config import Settings, save_state, table
from ds4tui.config_values import checked_value, expected, from_text
from ds4tui.errors import Ds4Error
from ds4tui.tui import wording
from ds4tui.tui.chat_view import ChatView
from ds4tui.tui.screens.tuning import Row, Tuned, TuningScreen

NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
    "max_tokens",
)
_FIELDS = {f.name: f for f in table() if f.name in NAMES}


class TuningHost(Protocol):
    """What is needed of the app."""

    @property
    def chat_view(self) -> ChatView: ...
    async def push_screen_wait(self, screen: Screen[Any]) -> Any: ...
    def notify(self, message: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class SystemCost:
    """Tells what another system prompt of the conversation on the screen costs."""

    view: ChatView

    async def __call__(self, text: str) -> str:
        chat, branches = self.view.chat, self.view.branches
        if text == chat.system or not chat.path:
            return wording.DROPS_NOTHING
        try:
            before = await branches.foreseen(chat)
            after = await branches.foreseen(replace(chat, system=text))
        except Ds4Error:  # the next question will meet it, and tell
            return wording.system_cost(None, None)
        return wording.system_cost(before, after)


async def tune(host: TuningHost) -> None:
    """Show them, and keep what is changed. Raises StoreError and ConfigError."""
    view = host.chat_view
    screen = TuningScreen(_rows(view), view.chat.system, checked, SystemCost(view))
    tuned: Tuned | None = await host.push_screen_wait(screen)
    if tuned is None:
        return
    is_other_system = tuned.system != view.chat.system
    cost = await SystemCost(view)(tuned.system) if is_other_system else ""
    await view.set_sampling(tuned.values)
    if is_other_system:
        await view.branches.set_system(tuned.system)
    if tuned.is_default:
        keep_as_default(view, tuned)
    host.notify(wording.tuned(tuned.is_default, cost))


def checked(texts: Mapping[str, str]) -> dict[str, float]:
    """The numbers that were typed, by name; an empty text sets nothing. Raises ConfigError, which
    names what is wrong and what it must be."""
    return {
        name: checked_value(_FIELDS[name], from_text(_FIELDS[name], text.strip()))
        for name, text in texts.items()
        if text.strip()
    }


def keep_as_default(view: ChatView, tuned: Tuned) -> None:
    """Have all conversations that say nothing else go by it, also after a restart."""
    values: dict[str, Any] = {name: tuned.values.get(name) for name in NAMES}
    save_state(**values, system=tuned.system)
    sources = {**view.settings.sources, **dict.fromkeys((*values, "system"), "/sampling")}
    view.use_settings(replace(view.settings, **values, system=tuned.system, sources=sources))


def _rows(view: ChatView) -> list[Row]:
    set_here = view.chat.sampling
    return [
        Row(name, _spelled(set_here.get(name)), usual, expected(_FIELDS[name]))
        for name, usual in usual_values(view.settings, view).items()
    ]


def usual_values(settings: Settings, view: ChatView) -> dict[str, str]:
    """What holds where the conversation says nothing, by name; "" for nothing."""
    assistant = view.assistant
    params = settings.sampling(assistant.info.sampling if assistant else None).params()
    values = {name: getattr(params, name) for name in NAMES}
    return {name: _spelled(value) for name, value in values.items()}


def _spelled(value: float | None) -> str:
    """As a person would type it: `0.7`, `1`, `1000000`."""
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:g}"
