"""The content of one message, put together from the parts that a client sends."""

from ds4tui.chat.messages import Image, Message, Role
from ds4tui.server.images import image_of


class Content:
    """Texts and images in their order. Parts that are both text are separate (an instruction, a
    file): without a line end between them the last word of one and the first of the next would
    become one word. Nothing is put around images."""

    def __init__(self) -> None:
        self._text = ""
        self._images: list[Image] = []
        self._after_text = False

    def __bool__(self) -> bool:
        return bool(self._text or self._images)

    def text(self, text: str) -> None:
        self._text += "\n" * self._after_text + text
        self._after_text = True

    def picture(self, source: str | None, path: str) -> None:
        """`source` is a data URI. Raises RequestError naming the field `path`."""
        self._images.append(image_of(source, path, len(self._text)))
        self._after_text = False

    def put_first(self, words: str) -> None:
        self._text = words + self._text
        self._images = [image.moved(image.at + len(words)) for image in self._images]

    def message(self, role: Role, call_id: str = "", name: str = "") -> Message:
        images = tuple(self._images)
        return Message(role, self._text, tool_call_id=call_id, name=name, images=images)
