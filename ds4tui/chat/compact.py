"""A conversation's history in its shape alone, for templates that look at it while they write a
later turn.

What a template writes for a turn depends on who spoke before, whether tools were called, who was
first; not on what was said. So each earlier message is replaced by a word of its kind, and
stretches after which the same kind of exchange comes again are left out, as a walk that returns
to where it was is no longer than one that never left. Then a turn is written in time that does
not grow with the conversation, however many thousands of turns it has.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ds4tui.chat.messages import Image, Message, Tool, ToolCall

# An exchange: what came in (system, user, tools), then the reply.
Exchange = tuple[Message, ...]

WORD = "Zqearlier"  # stands for what was said
# For all tools that are offered: their descriptions may be longer than any turn.
ANY_TOOL = Tool(
    WORD,
    WORD,
    json.dumps(
        {
            "type": "object",
            "properties": {WORD: {"type": "string", "description": WORD}},
            "required": [WORD],
        }
    ),
)
# Nine characters and digits: Mistral's templates refuse other ids.
_CALL_ID = "zqcall001"
# Templates tell one call or result from several, and the first from those after it.
_MOST_ALIKE = 2
# Exchanges before the newest that keep their order, for templates that look back that far.
_RECENT = 2


def stand_in(message: Message) -> Message:
    """A message of the same shape with nothing of what it says; all that are alike are equal."""
    text, images = _text_and_images(message)
    return Message(
        message.role,
        text,
        tool_calls=tuple(
            ToolCall(_CALL_ID, WORD, f'{{"{WORD}": "{WORD}"}}')
            for _ in message.tool_calls[:_MOST_ALIKE]
        ),
        tool_call_id=_CALL_ID if message.tool_call_id else "",
        name=WORD if message.name else "",
        images=images,
    )


def _text_and_images(message: Message) -> tuple[str, tuple[Image, ...]]:
    """Whether there is text, and whether images stand before it, behind it or within it."""
    if not message.images:
        return (WORD if message.text.strip() else ""), ()
    are_images = [isinstance(element, Image) for element in message.elements()]
    if all(are_images):
        return "", (Image(b""),)
    if not are_images[0] and not are_images[-1]:
        return WORD + WORD, (Image(b"", len(WORD)),)
    at = [*([0] if are_images[0] else []), *([len(WORD)] if are_images[-1] else [])]
    return WORD, tuple(Image(b"", place) for place in at)


def stand_ins(messages: Sequence[Message]) -> Exchange:
    """The shapes of `messages`; more than two equal ones in a row are two."""
    shapes: list[Message] = []
    for shape in map(stand_in, messages):
        if shapes[-_MOST_ALIKE:] != [shape] * _MOST_ALIKE:
            shapes.append(shape)
    return tuple(shapes)


@dataclass(frozen=True, slots=True)
class History:
    """The exchanges so far. Its length is bounded by how many kinds of exchange there are."""

    earlier: tuple[Exchange, ...] = ()
    recent: tuple[Exchange, ...] = ()

    def added(self, exchange: Exchange) -> "History":
        """This history and one more exchange, whose messages are stand-ins."""
        recent = (*self.recent, exchange)
        if len(recent) <= _RECENT:
            return History(self.earlier, recent)
        oldest, earlier = recent[0], self.earlier
        if oldest in earlier:
            return History(earlier[: earlier.index(oldest) + 1], recent[1:])
        return History((*earlier, oldest), recent[1:])

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(m for exchange in (*self.earlier, *self.recent) for m in exchange)
