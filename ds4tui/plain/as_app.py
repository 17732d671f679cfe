"""The plain chat in the place of the app, for commands that need nothing of a screen but words."""

from typing import TYPE_CHECKING, Any, cast

from ds4tui.plain import telling
from ds4tui.tui.acts import Acts
from ds4tui.tui.cached import Cached

if TYPE_CHECKING:
    from ds4tui.plain.chat import PlainChat


class AsApp:
    """What Acts.think and Cached ask of the app; they belong to a chat, and so does this."""

    def __init__(self, host: "PlainChat") -> None:
        self.chat_view = host
        self.acts = Acts(cast(Any, self))
        self.cached = Cached(cast(Any, self))

    def notify(self, message: str) -> None:
        self.chat_view.lines.say(message)

    def switch_disk(self) -> None:
        self.chat_view.lines.say(*telling.disk(self.chat_view.stats))

    def switch_decisions(self) -> None:
        self.chat_view.lines.say(*telling.decisions(self.chat_view.stats))

    def keep_polling(self) -> None:
        """No panel shows anything."""
