"""How pictures come into the prompt: pasted, dropped, named, taken; read and checked on a thread.

Nothing is lost on the way: dropped paths and @paths stand in the prompt as text until they are
read, and stay there, with the reason, if they cannot be.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Image
from ds4tui.errors import Ds4Error, EngineError, UsageError
from ds4tui.library.screens import SAMPLE_QUESTION, sample_named
from ds4tui.pictures.capture import capture
from ds4tui.pictures.clipboard import clipboard_picture
from ds4tui.pictures.mentions import next_mention
from ds4tui.pictures.paths import dropped, named
from ds4tui.pictures.reading import PictureFile, checked, read_picture
from ds4tui.tui import wording
from ds4tui.tui.background import in_thread
from ds4tui.tui.prompt import Prompt
from ds4tui.tui.shelf import Shelf, Shelved

log = logging.getLogger(__name__)

# A file of a network that is gone is never read; the question goes back into the prompt then.
WAIT_S = 20.0
Tell = Callable[[Ds4Error], Awaitable[None]]
T = TypeVar("T")


@dataclass
class Held:
    """A question that was sent while a picture of it was on its way."""

    text: str

    def put_label(self, label: str) -> None:
        gap = "" if not self.text or self.text[-1].isspace() else " "
        self.text += f"{gap}{label} "

    def paste_copied(self, text: str) -> None:
        self.text += text

    def exchange(self, old: str, new: str) -> bool:
        before, found, after = self.text.rpartition(old)
        self.text = before + new + after if found else self.text
        return bool(found)


class Attaching:
    """Belongs to the UI loop. `say` shows a line for a moment, `tell` an error in the chat."""

    def __init__(self, prompt: Prompt, say: Callable[[str], None], tell: Tell) -> None:
        self.shelf = Shelf()
        self._prompt = prompt
        self._target: Prompt | Held = prompt
        self._has_failed = False
        self._say, self._tell = say, tell
        self._refusal = ""
        self._missed = ""  # the text whose @path was told to name no file
        self._at_work = 0
        self._settled = asyncio.Event()
        self._settled.set()
        prompt.find_labels = self.shelf.units
        prompt.folded, prompt.unfolded = self.shelf.folded, self.shelf.unfolded

    def use(self, assistant: Assistant | None) -> None:
        """Pictures go to `assistant` from now on: their costs are its, and so is a refusal."""
        vision = assistant.vision if assistant is not None else None
        self._refusal = assistant.vision_refusal if assistant and vision is None else ""

        def tokens_of(size: tuple[int, int]) -> int | None:
            try:
                return vision.tokens_of(size) if vision is not None else None
            except UsageError:  # told when the picture comes, or is sent
                return None

        self.shelf.tokens_of = tokens_of
        for old, new in list(self.shelf.relabelled(self._prompt.text)):
            # With the space behind it, which belongs to the label for every change.
            if not self._prompt.exchange(f"{old} ", f"{new} "):
                self._prompt.exchange(old, new)

    @property
    def refusal(self) -> str:
        """Why the open model takes no pictures, and what to load instead; "" if it does, or none
        is open."""
        return self._refusal

    @property
    def is_at_work(self) -> bool:
        return self._at_work > 0

    @property
    def held(self) -> str:
        """The question that waits for its pictures; "" if none does."""
        return self._target.text if isinstance(self._target, Held) else ""

    async def whole(self, text: str) -> tuple[str, bool]:
        """The question `text`, out of the prompt by now, with all pictures that were on their way
        into it or that it mentions; and whether none of them failed. One at a time."""
        held = Held(text)
        self._target, self._has_failed = held, False
        try:
            await asyncio.wait_for(self._settled.wait(), WAIT_S)
        except TimeoutError:
            self._say(wording.PICTURE_IS_SLOW)
            return held.text, False
        finally:
            self._target = self._prompt
        with_mentions = await self._surfaced(self.with_mentions(held.text))
        if with_mentions is None or self._has_failed:
            return held.text, False
        return with_mentions, True

    # Ways in

    def begun(self, way: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """`way`, whose picture is on its way from now on, not only when it is run: keys that come
        next (Enter) must find it so."""
        self._begin()

        async def run() -> None:
            try:
                await self._surfaced(way)
            finally:
                self._end()

        return run()

    async def paste(self, is_asked: bool) -> None:
        """The clipboard's picture, or else what was copied in this app."""
        found = await in_thread("ds4tui-clipboard", clipboard_picture)
        if not found.is_empty and self._is_refused():
            return
        if found.data:
            await self._take([lambda: checked(found.data, wording.PASTED_NAME)])
        elif found.paths:
            await self._take([_reader(path) for path in found.paths])
        elif is_asked and self._prompt.app.clipboard:
            self._target.paste_copied(self._prompt.app.clipboard)
        elif is_asked:
            self._say(f"{found.problem}.")

    async def drop(self, text: str, raw: str) -> None:
        """`text`, which was pasted as `raw`, stands in the prompt: picture files take its place."""
        paths = await in_thread("ds4tui-drop", lambda: dropped(raw))
        if not paths:  # it was a text
            self._target.exchange(text, self.shelf.folded(text))
            return
        if self._is_refused():
            return
        read = await self._read([_reader(path) for path in paths])
        if read is not None:
            self._target.exchange(text, "".join(f"{self._label(each)} " for each in read))

    async def add_named(self, text: str) -> bool:
        """The files that `text` names; whether they came in. Raises UsageError for none."""
        with _Work(self):
            if self._is_refused():
                return False
            sample = await in_thread("ds4tui-names", lambda: sample_named(text))
            if sample is not None:
                return await self._take_sample(sample)
            paths, missing = await in_thread("ds4tui-names", lambda: named(text))
            if not paths:
                raise UsageError(f"There is no file {missing}.", wording.NAME_HINT)
            return await self._take([_reader(path) for path in paths])

    async def add_screenshot(self) -> None:
        """Have the person choose a part of the screen."""
        if self._is_refused():
            return
        self._say(wording.CHOOSE_A_PART)
        taken = await in_thread("ds4tui-screenshot", capture)
        if taken.data:
            with _Work(self):
                await self._take([lambda: checked(taken.data, wording.TAKEN_NAME)])
        elif taken.was_left:
            self._say(wording.nothing_taken(taken))
        else:
            raise UsageError(f"{taken.problem}.", wording.NO_CAPTURE_HINT)

    async def with_mentions(self, text: str) -> str | None:
        """`text` with the labels of the pictures that it mentions as @path; None if one of them
        cannot be read or is refused. Raises UsageError for one that is not there, once: the same
        text again says that it is no picture, but words."""
        with _Work(self):
            parts, at = [], 0
            while mention := await in_thread("ds4tui-names", partial(next_mention, text, at)):
                label = f"@{mention.name}"
                if mention.path is not None:
                    read = await self._mentioned(mention.path)
                    if read is None:
                        return None
                    label = self._label(read)
                elif not self._refusal and self._missed != text:
                    self._missed = text
                    raise UsageError(f"There is no picture {mention.name}.", wording.MISSED_HINT)
                parts += [text[at : mention.start], label]
                at = mention.end
            return "".join([*parts, text[at:]])

    async def _mentioned(self, path: Path) -> PictureFile | None:
        read = None if self._is_refused() else await self._read([_reader(path)])
        return read[0] if read else None

    async def read_mention(self, mention: str) -> None:
        """Put a picture in the place of `mention`, an @path that was chosen for the prompt."""
        label = await self.with_mentions(mention)
        if label is not None and label != mention:
            self._target.exchange(mention, f"{label} ")

    # Inside

    def _is_refused(self) -> bool:
        if self._refusal:
            self._has_failed = True
            self._say(self._refusal)
        return bool(self._refusal)

    async def _take(self, readers: Sequence[Callable[[], PictureFile]]) -> bool:
        """Put what is read at the cursor; whether it could be."""
        read = await self._read(readers)
        for each in read or ():
            self._target.put_label(self._label(each))
        return read is not None

    async def _take_sample(self, sample: Path) -> bool:
        """The picture, and in an empty prompt a question that suits it."""
        is_empty = not self._prompt.text
        is_taken = await self._take([_reader(sample)])
        if is_taken and is_empty:
            self._target.paste_copied(SAMPLE_QUESTION)
        return is_taken

    async def _read(self, readers: Sequence[Callable[[], PictureFile]]) -> list[PictureFile] | None:
        """All, or None and the reason is told."""
        reading = in_thread("ds4tui-pictures", lambda: [read() for read in readers])
        return await self._surfaced(reading)

    async def _surfaced(self, work: Awaitable[T]) -> T | None:
        """What `work` gives, or None and the reason is told: a picture ends no app."""
        try:
            return await work
        except Ds4Error as exc:
            error = exc
        except Exception as exc:  # a task's root: told and logged
            log.exception("a picture could not be brought in")
            told = f"The picture cannot be read: {type(exc).__name__}: {exc}."
            error = EngineError(told, "The log file has the details.")
        self._has_failed = True
        await self._tell(error)
        return None

    def _label(self, read: PictureFile) -> str:
        return self.shelf.label(Shelved(Image(read.data, 0, read.name), read.size, read.note))

    def _begin(self) -> None:
        self._at_work += 1
        self._settled.clear()

    def _end(self) -> None:
        self._at_work -= 1
        if not self._at_work:
            self._settled.set()


class _Work:
    """While it lasts something is on its way into the prompt."""

    def __init__(self, attaching: Attaching) -> None:
        self._attaching = attaching

    def __enter__(self) -> None:
        self._attaching._begin()

    def __exit__(self, *details: object) -> None:
        self._attaching._end()


def _reader(path: Path) -> Callable[[], PictureFile]:
    return lambda: read_picture(path)
