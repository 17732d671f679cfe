"""What of a conversation can be copied: each message as it was written, each block of code as it
stands in it, without fences, prefixes and wraps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ds4tui.chat.store import StoredMessage
from ds4tui.tui.markdown import parser


@dataclass(frozen=True, slots=True)
class Copyable:
    """`what` names it in a sentence."""

    what: str
    text: str


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of the blocks in an answer, in order; "" for no language."""
    found = (t for t in parser().parse(text) if t.type in ("fence", "code_block"))
    return [(token.info.strip().split(" ")[0], token.content) for token in found]


def copyables(path: Sequence[StoredMessage]) -> list[Copyable]:
    """What can be copied of a conversation, the newest message first, each answer before the
    blocks of code in it."""
    return [each for stored in reversed(path) for each in _of(stored)]


def _of(stored: StoredMessage) -> Iterator[Copyable]:
    message = stored.message
    if not message.text.strip():
        return
    if message.role != "assistant":
        yield Copyable("The question" if message.role == "user" else "The result", message.text)
        return
    yield Copyable("The answer", message.text)
    for language, code in code_blocks(message.text):
        yield Copyable(f"The code ({language})" if language else "The code", code)
