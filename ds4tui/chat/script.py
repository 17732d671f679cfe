"""A conversation written by the template: messages to its text, what people wrote marked.

Each image becomes a private mark, numbered in their order, with the plain text around it that its
model wants. A template that takes images as parts of content writes words of its own for them,
which are then replaced by the marks; others find the marks in the text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING

from ds4tui.chat.messages import Image, Message, Tool
from ds4tui.chat.probing import Abilities
from ds4tui.chat.rows import Rows
from ds4tui.chat.template import ChatTemplate
from ds4tui.chat.turns import (
    Content,
    Forms,
    for_forms,
    texts_of,
    tool_values,
    turn_values,
    typed,
    with_tools_told,
)
from ds4tui.chat.untrusted import Guard, Marks
from ds4tui.errors import TemplateError

if TYPE_CHECKING:
    from ds4tui.engine.vision.recognition import Picture


@dataclass(frozen=True, slots=True)
class Options:
    """What a rendering is asked for beside its messages. `thinking` None leaves it to the
    template; `now` is the time it may show; `pictures` are those of the messages, by the digest
    of their images."""

    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
    now: Callable[[], datetime] = datetime.now
    pictures: "Mapping[bytes, Picture]" = field(default_factory=dict)

    def around(self, image: Image) -> str:
        """The plain text on either side of an image; "" for one that is not known."""
        picture = self.pictures.get(image.digest)
        return picture.block.around if picture else ""

    def rows_of(self, messages: Sequence[Message]) -> list[Rows]:
        """Of the images, in their order; none for one that is not known."""
        pictures = (self.pictures.get(image.digest) for m in messages for image in m.images)
        return [Rows.of_picture(picture) if picture else Rows() for picture in pictures]


class LostImage(TemplateError):
    """A template does not write each image once and in order."""


@dataclass(frozen=True, slots=True)
class Script:
    """May be shared by threads."""

    template: ChatTemplate
    abilities: Abilities
    guard: Guard

    def choose_marks(self, messages: Sequence[Message], options: Options) -> Marks:
        """Marks that occur in nothing that is written."""
        return self.guard.choose_marks([self.template.source, *texts_of(messages, options.tools)])

    def write(
        self,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        opened: bool = True,
        stands: Collection[str] = (),
        edged: bool = False,
    ) -> str:
        """The text of `messages`; `opened` up to where the assistant's reply begins. `stands`
        are texts of messages that are marks themselves; `edged` puts a mark at either end of
        what each message holds. Raises TemplateError."""
        forms = self.abilities.forms
        writing = _Writing(self, options, marks, stands, edged)
        try:
            return writing.written(messages, forms, opened)
        except LostImage:
            if not forms.image_roles:
                raise
            in_text = _Writing(self, options, marks, stands, edged)
            return in_text.written(messages, replace(forms, image_roles=frozenset()), opened)

    def has_place_for_calls(self, options: Options) -> bool:
        """Whether calls are written by the template itself."""
        told_itself = self.abilities.tools or self.abilities.calls_without_tools
        return self.abilities.forms.calls and (told_itself or not options.tools)


class _Writing:
    """One use of the template."""

    def __init__(
        self, script: Script, options: Options, marks: Marks, stands: Collection[str], edged: bool
    ) -> None:
        self._script = script
        self._options = options
        self._marks = marks
        self._stands = stands
        self._edged = edged
        self._numbers = count()
        self._typed: list[int] = []  # images that are parts of content
        self._first: set[int] = set()  # images with which a message begins
        self._last: set[int] = set()  # and ends

    def written(self, messages: Sequence[Message], forms: Forms, opened: bool) -> str:
        options, told, tools = self._options, messages, self._options.tools
        abilities = self._script.abilities
        if tools and not abilities.tools:
            told, tools = with_tools_told(told, tools, abilities.tool_syntax), ()
            forms = replace(forms, calls=forms.calls and abilities.calls_without_tools)
        turns = [
            turn_values(m, self._content(m, forms), forms, self._protect)
            for m in for_forms(told, forms)
        ]
        offered = [tool_values(tool, self._protect) for tool in tools] or None
        text = self._script.template.render(turns, options.now, opened, offered, options.thinking)
        images = [image for message in messages for image in message.images]
        return self._with_marks(text, forms.image_marker, images) if images else text

    def _protect(self, text: str) -> str:
        return self._script.guard.protect(text, self._marks)

    def _content(self, message: Message, forms: Forms) -> Content:
        if not message.images:
            text = message.text
            harmless = text if text in self._stands else self._protect(text)
            return self._marks.edged(harmless) if self._edged else harmless
        elements = list(message.elements())
        said = [n for n, e in enumerate(elements) if isinstance(e, Image) or e.strip()]
        is_typed = message.role in forms.image_roles
        told: list[str | None] = []
        for place, element in enumerate(elements):
            at_ends = place == said[0], place == said[-1]
            if isinstance(element, Image):
                told.append(self._image(is_typed, *at_ends))
            else:
                harmless = self._protect(element)
                told.append(self._marks.edged(harmless, *at_ends) if self._edged else harmless)
        return typed(told) if is_typed else "".join(filter(None, told))

    def _image(self, is_typed: bool, is_first: bool, is_last: bool) -> str | None:
        number = next(self._numbers)
        if is_first:
            self._first.add(number)
        if is_last:
            self._last.add(number)
        if is_typed:
            self._typed.append(number)
            return None
        return self._marks.image_mark(number)

    def _with_marks(self, text: str, marker: str, images: Sequence[Image]) -> str:
        """`text` with a mark for each image, in its surroundings."""
        if self._typed:
            pieces = text.split(marker)
            if len(pieces) != len(self._typed) + 1:
                raise LostImage("The chat template does not write one marker for each image.")
            marks = [*map(self._marks.image_mark, self._typed), ""]
            text = "".join(part for pair in zip(pieces, marks, strict=True) for part in pair)
        apart = self._marks.image_pattern().split(text)
        if apart[1::2] != [str(number) for number in range(len(images))]:
            raise LostImage("The chat template does not write each image once.")
        edge = self._marks.edge if self._edged else ""
        for number, image in enumerate(images):
            around, mark = self._options.around(image), self._marks.image_mark(number)
            first, last = edge * (number in self._first), edge * (number in self._last)
            apart[2 * number + 1] = f"{first}{around}{mark}{around}{last}"
        return "".join(apart)
