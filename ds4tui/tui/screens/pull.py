"""A model that is not on this machine is offered: at the first start, or out of the list.

Dismissed with True once the model is on disk, with False if the person does not want it. What
was fetched is kept by `pull`, so a cancelled or failed pull goes on where it stopped.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, ProgressBar, Static

from ds4tui.errors import Ds4Error
from ds4tui.library.offers import Offer
from ds4tui.library.progress import PullProgress
from ds4tui.tui.background import in_thread, on_this_loop
from ds4tui.tui.ports import PullModel
from ds4tui.tui.terminal_text import harmless
from ds4tui.tui.words import HEADING, QUIET, duration_words, size_words

NOTICE_S = 0.1  # in which a cancelled pull is noticed
GRACE_S = 0.5  # for its thread to end by itself; one that hangs in the network is left behind


class PullCancelled(Exception):
    """Raised into `pull_model` to stop it."""


class PullScreen(ModalScreen[bool]):
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "not_now", "Not now")]

    def __init__(self, offer: Offer, pull_model: PullModel, is_first: bool = True) -> None:
        """`is_first`: no model is here yet."""
        super().__init__()
        self._offer = offer
        self._is_first = is_first
        self._pull_model = pull_model
        self._cancelled = threading.Event()
        self._is_pulling = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "No model yet" if self._is_first else "Not on this machine"
            yield Static(offer_content(self._offer, is_first=self._is_first))
            yield ProgressBar(total=None, show_eta=False, id="pull-bar")
            yield Static("", id="pull-words", markup=False)
            with Horizontal(classes="buttons"):
                yield Button("Download", variant="primary", id="pull")
                yield Button("Not now", id="not-now")

    def on_mount(self) -> None:
        self.query_one("#pull-bar").display = False
        for button in self.query(Button):
            button.active_effect_duration = 0  # or a second press soon after is ignored
        self.query_one("#pull").focus()

    @on(Button.Pressed, "#pull")
    def start(self) -> None:
        if not self._is_pulling:
            self._pull()

    @on(Button.Pressed, "#not-now")
    def action_not_now(self) -> None:
        """Stop a running pull; else close the screen."""
        if self._is_pulling:
            self._cancelled.set()
            self._say("stopping…")
        else:
            self.dismiss(False)

    @work(exclusive=True)
    async def _pull(self) -> None:
        self._set_pulling(True)
        self._say("starting…")
        try:
            is_here = await self._is_fetched(on_this_loop(self._show), self._cancelled)
        except Ds4Error as exc:
            self._say(f"{exc.message} {exc.hint}".strip(), is_error=True)
            self.query_one("#pull", Button).label = "Try again"
        else:
            if is_here:
                self.dismiss(True)
                return
            self._say("Stopped. What was fetched is kept: Download goes on from there.")
        self._set_pulling(False)

    async def _is_fetched(
        self, report: Callable[[PullProgress], None], cancelled: threading.Event
    ) -> bool:
        """Whether the model is here now; False if that was cancelled before. Raises Ds4Error."""
        fetching = asyncio.ensure_future(
            in_thread("ds4tui-pull", lambda: self._fetch(report, cancelled))
        )
        try:
            while not fetching.done() and not cancelled.is_set():
                await asyncio.wait([fetching], timeout=NOTICE_S)
            await asyncio.wait([fetching], timeout=GRACE_S)
            if cancelled.is_set() and (not fetching.done() or fetching.exception()):
                return False
            await fetching
            return True
        finally:
            fetching.cancel()

    def _fetch(self, report: Callable[[PullProgress], None], cancelled: threading.Event) -> None:
        def on_progress(progress: PullProgress) -> None:
            if cancelled.is_set():
                raise PullCancelled
            report(progress)

        self._pull_model(self._offer.name, on_progress)

    def _show(self, progress: PullProgress) -> None:
        if not self.is_attached:  # the app is on its way out
            return
        bar = self.query_one("#pull-bar", ProgressBar)
        bar.update(total=progress.total_bytes or None, progress=progress.done_bytes)
        self._say(progress_words(progress))

    def _say(self, words: str, *, is_error: bool = False) -> None:
        line = self.query_one("#pull-words", Static)
        line.update(harmless(words))
        line.set_class(is_error, "error")

    def _set_pulling(self, is_pulling: bool) -> None:
        self._is_pulling = is_pulling
        self._cancelled = threading.Event()  # its own for each pull: one may be left behind
        self.query_one("#pull-bar").display = is_pulling
        self.query_one("#pull", Button).disabled = is_pulling
        self.query_one("#not-now", Button).label = "Cancel" if is_pulling else "Not now"
        self.query_one("#not-now" if is_pulling else "#pull").focus()


def offer_content(offer: Offer, *, is_first: bool = True) -> Content:
    """What is offered, how big it is, under which licence, and where it comes from."""
    size = f"{'about ' * offer.is_rounded}{size_words(offer.download_bytes)} to download"
    rows = (
        ("model", f"{offer.name} ({offer.title})"),
        ("size", f"{size}, {size_words(offer.disk_bytes)} on disk"),
        ("licence", offer.licence),
        ("from", offer.origin),
    )
    first = "ds4tui needs a model. It can fetch this small one now:" if is_first else ""
    lines = [Content(first), Content("")] if first else []
    lines += [Content.assemble((label.ljust(9), QUIET), (value, "bold")) for label, value in rows]
    lines.append(Content(""))
    if is_first:
        lines.append(
            Content.assemble("Without one: ", ("/model PATH", HEADING), " opens any GGUF file.")
        )
    else:
        lines.append(Content("A download that is stopped is kept, and gone on with the next time."))
    return Content("\n").join([*lines, Content("")])


def progress_words(progress: PullProgress) -> str:
    """`fetching: 12.0 MB of 92.9 MB, 8.1 MB/s, 10s left`."""
    if not progress.total_bytes:
        return progress.step
    words = (
        f"{progress.step}: {size_words(progress.done_bytes)} of {size_words(progress.total_bytes)}"
    )
    if progress.bytes_per_s and progress.done_bytes < progress.total_bytes:
        left = duration_words(progress.eta_s)
        words += f", {size_words(progress.bytes_per_s)}/s, {left} left"
    return words
