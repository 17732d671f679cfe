"""POST /v1/completions: text that is gone on with as it stands, without a chat template."""

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ds4tui.errors import Ds4Error, RequestError
from ds4tui.events import Event, ReasoningText, SampledToken, TokenText
from ds4tui.server.answering import wanted_count
from ds4tui.server.body import parse_object
from ds4tui.server.call import Call
from ds4tui.server.errors import error_object
from ds4tui.server.fields import Fields
from ds4tui.server.openai_chat import MAX_REPLIES, read_sampling
from ds4tui.server.openai_reply import told_logprob, totals_json
from ds4tui.server.reply import Ending, Reply
from ds4tui.server.service import Service
from ds4tui.server.sse import DONE, data_frame

# OpenAI's: a completion that asks for no length is short.
DEFAULT_MAX_TOKENS = 16
_UNSUPPORTED = ("suffix", "echo", "best_of")


def read_completion(body: bytes, service: Service) -> tuple[Call, "CompletionDialect"]:
    """An answering.Parse."""
    fields = Fields(parse_object(body))
    call = parse_completion(fields, service)
    return call, CompletionDialect(
        service.assistant.info.name,
        logprobs=call.sampling.logprobs,
        include_usage=call.include_usage,
    )


def parse_completion(fields: Fields, service: Service) -> Call:
    """Raises RequestError naming the field."""
    for name in _UNSUPPORTED:
        if fields.get(name) and not (name == "best_of" and fields.integer(name) == 1):
            raise RequestError(f"{name} is not supported.", name, "Leave the field out.")
    options = fields.child("stream_options")
    vocab_size = service.assistant.format.tokenizer.vocab_size
    alternatives = fields.integer("logprobs")
    if alternatives is not None and not 0 <= alternatives <= 20:
        raise RequestError(f"logprobs must be between 0 and 20, not {alternatives}.", "logprobs")
    sampling = read_sampling(
        fields,
        service.defaults,
        vocab_size,
        logprobs=alternatives,
        max_tokens=fields.integer("max_tokens") or DEFAULT_MAX_TOKENS,
    )
    return Call(
        model=fields.text("model"),
        sampling=sampling,
        prompt=_prompt(fields, service),
        stream=fields.boolean("stream"),
        include_usage=options is not None and options.boolean("include_usage"),
        n=wanted_count(fields.integer("n"), MAX_REPLIES, "n"),
    )


def _prompt(fields: Fields, service: Service) -> str | tuple[int, ...]:
    value = fields.get("prompt")
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        text = Fields({"prompt": value}).text("prompt") or ""
        if text or service.assistant.format.tokenizer.add_bos:
            return text
        raise RequestError("prompt is empty, and this model has no token to begin with.", "prompt")
    vocab_size = service.assistant.format.tokenizer.vocab_size
    if isinstance(value, list) and value:
        if all(type(i) is int and 0 <= i < vocab_size for i in value):
            return tuple(value)
    raise RequestError(
        f"prompt must be a text, or an array of token ids from 0 to {vocab_size - 1}.",
        "prompt",
        "Send several prompts as several requests.",
    )


@dataclass
class CompletionDialect:
    """A server.reply.Dialect for one request. `logprobs`: how many alternatives are told."""

    model: str
    logprobs: int | None = None
    include_usage: bool = False
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    has_ping: ClassVar[bool] = False
    _held: list[SampledToken] = field(default_factory=list)  # whose text is still held back
    _offset: int = 0  # characters of this choice so far

    def whole(self, replies: Sequence[Reply]) -> dict[str, Any]:
        choices = []
        for number, reply in enumerate(replies):
            self._offset = 0
            told = self._choice(number, reply.text, reply.tokens, reply.end)
            choices.append(told)
        return {**self._common(), "choices": choices, **totals_json([r.end for r in replies])}

    def opening(self) -> Iterable[bytes]:
        yield self._chunk(0, "", None)

    def keep_alive(self) -> bytes:
        held, self._held = self._held, []  # they wait for their text
        frame = self._chunk(0, "", None)
        self._held = held
        return frame

    def told(self, choice: int, event: Event) -> Iterable[bytes]:
        if isinstance(event, TokenText | ReasoningText):
            self._held.extend(event.tokens)
            if event.text:
                yield self._chunk(choice, event.text, None)

    def ended(self, choice: int, end: Ending) -> Iterable[bytes]:
        yield self._chunk(choice, "", end)
        self._offset = 0

    def closing(self, ends: Sequence[Ending]) -> Iterable[bytes]:
        if self.include_usage:
            yield data_frame({**self._common(), "choices": [], **totals_json(ends)})
        yield DONE

    def failed(self, error: Ds4Error) -> Iterable[bytes]:
        yield data_frame({"error": error_object(error)})

    def _chunk(self, number: int, text: str, end: Ending | None) -> bytes:
        held, self._held = self._held, []
        chunk = {**self._common(), "choices": [self._choice(number, text, held, end)]}
        return data_frame({**chunk, "usage": None} if self.include_usage else chunk)

    def _choice(
        self, number: int, text: str, tokens: Sequence[SampledToken], end: Ending | None
    ) -> dict[str, Any]:
        return {
            "index": number,
            "text": text,
            "logprobs": self._logprobs(tokens) if self.logprobs is not None and tokens else None,
            "finish_reason": end.finished.stop_reason if end is not None else None,
        }

    def _logprobs(self, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        spelt = [token.chosen.token_bytes.decode("utf-8", "replace") for token in tokens]
        offsets = []
        for text in spelt:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": spelt,
            "token_logprobs": [told_logprob(token.chosen) for token in tokens],
            "top_logprobs": [
                {t.token_bytes.decode("utf-8", "replace"): told_logprob(t) for t in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _common(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }
