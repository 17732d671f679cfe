"""What of a reply's sampled ids was reasoning and what was said.

A reply that thinks begins with its reasoning (the opening mark may be the template's) and closes
it with a mark, which vocabularies of such models have as one token. What follows was said.
"""

from collections.abc import Sequence
from dataclasses import replace

from ds4tui.chat.messages import Message
from ds4tui.chat.thinking import CLOSING, OPENING
from ds4tui.engine.tokenizer import Tokenizer


def said_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> Sequence[int] | None:
    """`ids` from behind the reasoning and the blanks after it; all for a reply without any, None
    where what was said does not begin with a token."""
    closing = _closing_id(tokenizer)
    if closing is None or closing not in ids:
        return None if CLOSING in tokenizer.decode(ids, skip_special=False) else ids
    start = list(ids).index(closing) + 1
    while start < len(ids) and tokenizer.token_bytes(ids[start]).isspace():
        start += 1
    rest = ids[start:]
    blank = rest and tokenizer.token_bytes(rest[0])[:1].isspace()
    return None if blank else rest


def has_reasoning(tokenizer: Tokenizer, message: Message) -> bool:
    """Whether a reply holds reasoning, in its fields or in its sampled ids."""
    closing, ids = _closing_id(tokenizer), message.sampled_ids or ()
    if closing is None and ids:
        return bool(message.reasoning) or CLOSING in tokenizer.decode(ids)
    return bool(message.reasoning) or closing in ids


def without_reasoning(tokenizer: Tokenizer, message: Message) -> Message:
    """The reply with what was said only; its ids are given up where they cannot be cut."""
    if message.role != "assistant":
        return message
    ids = message.sampled_ids
    said = None if ids is None else said_ids(tokenizer, ids)
    return replace(message, reasoning="", sampled_ids=None if said is None else tuple(said))


def with_reasoning_as_text(tokenizer: Tokenizer, message: Message) -> Message:
    """The reply with its reasoning in its field and the ids of what was said; the message itself
    where that cannot be told apart."""
    if message.role != "assistant" or not has_reasoning(tokenizer, message):
        return message
    ids = message.sampled_ids
    if ids is None:
        return message
    said = said_ids(tokenizer, ids)
    thought = tokenizer.decode(ids).partition(CLOSING)[0].rpartition(OPENING)[2]
    told = replace(message, reasoning=message.reasoning or thought.strip())
    return replace(told, sampled_ids=None if said is None else tuple(said))


def _closing_id(tokenizer: Tokenizer) -> int | None:
    return tokenizer.user_defined_texts.get(CLOSING, tokenizer.control_texts.get(CLOSING))
