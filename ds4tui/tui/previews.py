"""The pictures of a question in the transcript: a caption each, and a small view of the newest.

Decoding and shrinking run on a thread; until they are done, where the terminal shows no pictures
and once a message is old, a picture is its caption.
"""

import logging
from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from ds4tui.chat.messages import Image
from ds4tui.errors import UsageError
from ds4tui.pictures.reading import preview, size_of
from ds4tui.tui.background import in_thread
from ds4tui.tui.graphics import Way, cell_pixels, cells_of, drawn
from ds4tui.tui.shelf import TokensOf, label_name, picture_facts
from ds4tui.tui.words import counted

log = logging.getLogger(__name__)

PREVIEWS_MAX = 4  # of one question; the captions of the others say that they are there
COLUMNS_MAX, COLUMNS_MIN = 48, 12
ROWS_MAX, ROWS_MIN = 12, 4
SCREEN_SHARE = 3  # a picture takes a third of the screen's rows at most


class Preview(Vertical):
    """One picture: its view, if there is one, over its caption."""

    def __init__(self, image: Image, caption: str) -> None:
        super().__init__(classes="preview")
        self.image = image
        self._caption = Static(caption, classes="caption", markup=False)
        self._view: Widget | None = None

    def compose(self) -> ComposeResult:
        yield self._caption

    @property
    def is_shown(self) -> bool:
        return self._view is not None

    async def show(self, most: tuple[int, int], way: Way) -> None:
        """Decode and draw within `most` (columns, rows)."""
        if self._view is not None or way is Way.TEXT:
            return
        data = self.image.data
        wide, high = cell_pixels(way)

        def draw() -> Callable[[], Widget]:
            picture = preview(data, (most[0] * wide, most[1] * high))
            return drawn(picture, cells_of(picture.size, most, way), way)

        try:
            make = await in_thread("ds4tui-preview", draw)
        except UsageError as exc:  # stored by another version, which could read it
            log.warning("no preview: %s", exc)
            return
        if self.is_attached and self._view is None:
            self._view = make()
            await self.mount(self._view, before=self._caption)

    async def hide(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            await view.remove()


class Previews(Horizontal):
    """The pictures of one question, side by side as far as there is room."""

    def __init__(self, images: Sequence[Image], tokens_of: TokensOf) -> None:
        super().__init__(classes="previews")
        self.captions = tuple(caption_of(image, tokens_of) for image in images)
        self._images = images

    def compose(self) -> ComposeResult:
        for image, caption in list(zip(self._images, self.captions, strict=True))[:PREVIEWS_MAX]:
            yield Preview(image, caption)
        if more := self.captions[PREVIEWS_MAX:]:
            words = "\n".join([f"and {counted(len(more), 'more picture')}:", *more])
            yield Static(words, classes="caption", markup=False)

    async def show(self, way: Way) -> None:
        views = list(self.query(Preview))
        width = max(0, self.app.size.width - 8) // max(1, len(views))
        columns = min(COLUMNS_MAX, max(COLUMNS_MIN, width))
        rows = min(ROWS_MAX, max(ROWS_MIN, self.app.size.height // SCREEN_SHARE))
        for view in views:
            if view.is_attached:
                await view.show((columns, rows), way)

    async def hide(self) -> None:
        for view in self.query(Preview):
            await view.hide()


def caption_of(image: Image, tokens_of: TokensOf) -> str:
    """`shot.png 1280x800 · 64 tokens`."""
    facts = picture_facts(size_of(image.data), "", tokens_of)
    return " ".join(filter(None, (label_name(image.name), facts)))
