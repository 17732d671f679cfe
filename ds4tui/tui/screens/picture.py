"""The newest pictures of the screenshots folder, narrowed by typing. Dismissed with a path."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from ds4tui.pictures.folder import Listed, newest_screenshots
from ds4tui.tui.background import in_thread
from ds4tui.tui.screens.resume import age_words
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.wording import no_pictures
from ds4tui.tui.words import QUIET, size_words


async def choose_picture(app: App[Any]) -> Path | None:
    """Let a person choose one of the newest screenshots; None for none. Runs in a worker."""
    folder, found = await in_thread("ds4tui-folder", newest_screenshots)
    if not found:
        app.notify(no_pictures(folder))
        return None
    return await app.push_screen_wait(PictureScreen(folder, found))


class PictureScreen(ModalScreen[Path | None]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)", "Close")]

    def __init__(self, folder: Path, pictures: Sequence[Listed]) -> None:
        super().__init__()
        self._folder = folder
        self._all = pictures
        self._now_s = time.time()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide") as dialog:
            dialog.border_title = Content(f"Newest in {one_line(str(self._folder))}")
            dialog.border_subtitle = "Enter takes, Esc closes"
            yield Input(placeholder="Type to find a name")
            yield OptionList()

    def on_mount(self) -> None:
        self._list("")

    @on(Input.Changed)
    def narrow(self, event: Input.Changed) -> None:
        self._list(event.value)

    @on(Input.Submitted)
    def take_highlighted(self) -> None:
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def take_chosen(self, event: OptionList.OptionSelected) -> None:
        if event.option.id is not None:
            self.dismiss(self._all[int(event.option.id)].path)

    def on_key(self, event: events.Key) -> None:
        options = self.query_one(OptionList)
        if event.key in ("up", "down") and not options.has_focus:
            event.stop()
            options.action_cursor_up() if event.key == "up" else options.action_cursor_down()

    def _list(self, wanted: str) -> None:
        options = self.query_one(OptionList)
        options.clear_options()
        for number, each in enumerate(self._all):
            if wanted.lower() in each.path.name.lower():
                options.add_option(Option(_line(each, self._now_s), id=str(number)))
        options.highlighted = 0 if options.option_count else None


def _line(each: Listed, now_s: float) -> Content:
    about = f"  {age_words(now_s - each.changed_s)} · {size_words(each.bytes)}"
    return Content.assemble(one_line(each.path.name), (about, QUIET))
