"""Counting tokens, and text to ids and back: nothing that the engine is asked for."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ds4tui.errors import RequestError
from ds4tui.server.anthropic_messages import parse_messages
from ds4tui.server.fields import Fields
from ds4tui.server.service import Service
from ds4tui.server.telling import told

MAX_IDS = 4_000_000


async def count_message_tokens(request: Request) -> Response:
    """Anthropic's: how many tokens a request would have."""
    return await told(request, _message_tokens)


async def tokenize(request: Request) -> Response:
    """llama.cpp's: `content` to `tokens`; `add_special` puts a BOS first, `parse_special`
    (true unless said) reads the texts of control tokens as those, `with_pieces` adds the texts."""
    return await told(request, _tokens)


async def detokenize(request: Request) -> Response:
    """llama.cpp's: `tokens` to `content`."""
    return await told(request, _content)


def _message_tokens(service: Service, fields: Fields) -> dict[str, Any]:
    call = parse_messages(fields, service, counting=True)
    service.require_model(call.model)
    timeline = service.assistant.render(call.messages, call.tools, call.thinking)
    return {"input_tokens": len(timeline)}


def _tokens(service: Service, fields: Fields) -> dict[str, Any]:
    text = fields.text("content")
    if text is None:
        raise fields.wrong("content", "a string", None)
    special = fields.get("parse_special") is None or fields.boolean("parse_special")
    tokenizer = service.assistant.format.tokenizer
    ids = tokenizer.encode(text, add_bos=fields.boolean("add_special"), special=special)
    if not fields.boolean("with_pieces"):
        return {"tokens": ids}
    return {"tokens": [{"id": i, "piece": _piece(tokenizer.token_bytes(i))} for i in ids]}


def _piece(spelt: bytes) -> str | list[int]:
    try:
        return spelt.decode()
    except UnicodeDecodeError:  # half a character
        return list(spelt)


def _content(service: Service, fields: Fields) -> dict[str, Any]:
    ids = fields.items("tokens")
    tokenizer = service.assistant.format.tokenizer
    is_ids = ids is not None and all(type(i) is int and 0 <= i < tokenizer.vocab_size for i in ids)
    if ids is None or not is_ids or len(ids) > MAX_IDS:
        raise RequestError(
            f"tokens must be an array of token ids from 0 to {tokenizer.vocab_size - 1}.", "tokens"
        )
    return {"content": tokenizer.decode(ids, skip_special=False)}
