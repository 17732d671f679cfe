"""The newest pictures of the screenshots folder, narrowed by typing. Dismissed with a path."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.app import App
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ds4tui.pictures.folder import Listed, newest_screenshots
from ds4tui.tui.background import in_thread
from ds4tui.tui.screens.narrowed import NarrowedScreen
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


class PictureScreen(NarrowedScreen[Path | None]):
    def __init__(self, folder: Path, pictures: Sequence[Listed]) -> None:
        title = Content(f"Newest in {one_line(str(folder))}")
        super().__init__(title, "Enter takes, Esc closes", "Type to find a name")
        self._all = pictures
        self._now_s = time.time()

    def chosen(self, number: int) -> Path:
        return self._all[number].path

    def list_options(self, options: OptionList, wanted: str) -> None:
        for number, each in enumerate(self._all):
            if wanted.lower() in each.path.name.lower():
                options.add_option(Option(_line(each, self._now_s), id=str(number)))
        options.highlighted = 0 if options.option_count else None


def _line(each: Listed, now_s: float) -> Content:
    about = f"  {age_words(now_s - each.changed_s)} · {size_words(each.bytes)}"
    return Content.assemble(one_line(each.path.name), (about, QUIET))
