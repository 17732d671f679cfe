"""The pictures of a question in the transcript: a caption each, and small views of the newest.

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

log = logging.getLogger(__name__)

PREVIEWS_MAX = 4  # of one question; of all there are captions
COLUMNS_MAX, COLUMNS_MIN = 48, 12
ROWS_MAX, ROWS_MIN = 12, 4
GAP = 3
SCREEN_SHARE = 3  # a picture takes a third of the screen's rows at most


class Preview(Vertical):
    """The view of one picture; takes no room until it is drawn."""

    def __init__(self, image: Image) -> None:
        super().__init__(classes="preview")
        self.image = image
        self.display = False

    @property
    def is_shown(self) -> bool:
        return self.display

    async def show(self, most: tuple[int, int], way: Way) -> None:
        """Decode and draw within `most` (columns, rows)."""
        if self.is_shown or way is Way.TEXT:
            return
        data = self.image.data
        wide, high = cell_pixels(way)

        def draw() -> Callable[[], Widget]:
            picture = preview(data, (most[0] * wide, most[1] * high))
            return drawn(picture, cells_of(picture.size, most, way), way)

        try:
            make = await in_thread("ds4tui-preview", draw)
        except Exception as exc:  # stored by another version, which could read it; a task's root
            log.warning("no preview: %s", exc, exc_info=not isinstance(exc, UsageError))
            return
        if self.is_attached and not self.is_shown:
            self.display = True
            await self.mount(make())

    async def hide(self) -> None:
        self.display = False
        await self.remove_children()


class Previews(Vertical):
    """The pictures of one question, side by side as far as there is room, over their captions."""

    def __init__(self, images: Sequence[Image], tokens_of: TokensOf) -> None:
        super().__init__(classes="previews")
        self._views = [Preview(image) for image in images[:PREVIEWS_MAX]]
        self._images = images
        self._captions = Static(self._words(tokens_of), classes="caption", markup=False)

    def compose(self) -> ComposeResult:
        with Horizontal(classes="views"):
            yield from self._views
        yield self._captions

    def count_by(self, tokens_of: TokensOf) -> None:
        self._captions.update(self._words(tokens_of))

    def _words(self, tokens_of: TokensOf) -> str:
        return "\n".join(caption_of(image, tokens_of) for image in self._images)

    async def show(self, way: Way) -> None:
        width = (self.size.width or self.app.size.width) // len(self._views) - GAP
        columns = min(COLUMNS_MAX, max(COLUMNS_MIN, width))
        rows = min(ROWS_MAX, max(ROWS_MIN, self.app.size.height // SCREEN_SHARE))
        for view in self._views:
            if view.is_attached:
                await view.show((columns, rows), way)

    async def hide(self) -> None:
        for view in self._views:
            await view.hide()


def caption_of(image: Image, tokens_of: TokensOf) -> str:
    """`shot.png 1280x800 · 64 tokens`."""
    facts = picture_facts(size_of(image.data), "", tokens_of)
    return " ".join(filter(None, (label_name(image.name), facts)))
