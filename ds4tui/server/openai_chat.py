"""POST /v1/chat/completions: OpenAI's chat dialect in, a Call out.

Unknown fields are ignored. A field that would change the answer and cannot be obeyed yet is
refused, so that nobody takes a wrong answer for a right one.
"""

from typing import Any

from ds4tui.chat.grammars import AnswerFormat
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import RequestError
from ds4tui.server.answer_format import any_object, of_schema
from ds4tui.server.answering import wanted_count
from ds4tui.server.body import parse_object
from ds4tui.server.call import Call
from ds4tui.server.fields import Fields, whole_characters
from ds4tui.server.openai_messages import read_messages, read_tool_choice, read_tools
from ds4tui.server.openai_reply import ChatDialect
from ds4tui.server.service import Service

MAX_STOP_STRINGS = 64
MAX_REPLIES = 16


def read_chat(body: bytes, service: Service) -> tuple[Call, ChatDialect]:
    """An answering.Parse."""
    vocab_size = service.assistant.format.tokenizer.vocab_size
    fields = Fields(parse_object(body))
    call = parse_chat(fields, service.defaults, vocab_size)
    return call, ChatDialect(
        service.assistant.info.name,
        with_logprobs=call.sampling.logprobs is not None,
        with_progress=fields.boolean("return_progress"),
        include_usage=call.include_usage,
        choices=call.n,
    )


def parse_chat(fields: Fields, defaults: SamplingDefaults, vocab_size: int) -> Call:
    """Raises RequestError naming the field. `defaults` fill what the client left open."""
    _refuse_unsupported(fields)
    options = fields.child("stream_options")
    return Call(
        model=fields.text("model"),
        messages=read_messages(fields),
        sampling=read_sampling(
            fields,
            defaults,
            vocab_size,
            logprobs=_logprobs(fields),
            max_tokens=_max_tokens(fields),
        ),
        stream=fields.boolean("stream"),
        include_usage=options is not None and options.boolean("include_usage"),
        tools=read_tools(fields),
        thinking=_thinking(fields),
        choice=read_tool_choice(fields),
        answer=_answer_format(fields),
        n=wanted_count(fields.integer("n"), MAX_REPLIES, "n"),
    )


def _thinking(fields: Fields) -> bool | None:
    """vLLM's and llama.cpp's field for it, which clients of Qwen models send."""
    options = fields.child("chat_template_kwargs")
    if options is None or options.get("enable_thinking") is None:
        return None
    return options.boolean("enable_thinking")


def _answer_format(fields: Fields) -> AnswerFormat | None:
    form = fields.child("response_format")
    kind = form.text("type") if form is not None else "text"
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return any_object("response_format")
    if kind != "json_schema":
        path = form.path("type")
        raise RequestError(f"{path} must be text, json_object or json_schema.", path)
    described = form.child("json_schema")
    schema = described.child("schema") if described is not None else None
    if described is None or schema is None:
        path = form.path("json_schema.schema")
        raise RequestError(f"{path} must be given: it is what the reply must follow.", path)
    return of_schema(described, schema)


def _refuse_unsupported(fields: Fields) -> None:
    if fields.items("functions"):
        raise _unsupported(fields, "functions", "Use tools, which took the place of functions.")
    if fields.get("audio") is not None or "audio" in (fields.items("modalities") or []):
        raise _unsupported(fields, "audio", "Audio is not supported.")


def _unsupported(fields: Fields, name: str, sentence: str) -> RequestError:
    return RequestError(sentence, fields.path(name), "Leave the field out.")


def read_sampling(
    fields: Fields,
    defaults: SamplingDefaults,
    vocab_size: int,
    *,
    logprobs: int | None,
    max_tokens: int | None,
) -> SamplingParams:
    """What OpenAI's dialects name alike. Raises RequestError naming the field."""
    given: dict[str, Any] = {
        name: fields.number(name)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
        )
    }
    given["top_k"] = fields.integer("top_k")
    given["seed"] = _seed(fields)
    given["stop"] = _stop(fields)
    given["max_tokens"] = max_tokens
    given["logprobs"] = logprobs
    given["logit_bias"] = _logit_bias(fields, vocab_size)
    return defaults.params(**{k: v for k, v in given.items() if v is not None})


def _max_tokens(fields: Fields) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = fields.integer(name)
        if value is not None:
            if value < 1:
                raise RequestError(f"{name} must be at least 1, not {value}.", name)
            return min(value, 2**31)
    return None


def _seed(fields: Fields) -> int | None:
    seed = fields.integer("seed")
    # OpenAI's seeds are signed 64-bit numbers, random generators take unsigned ones.
    return None if seed is None else seed % 2**64


def _stop(fields: Fields) -> tuple[str, ...] | None:
    value = fields.get("stop")
    if value is None:
        return None
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise RequestError("stop must be a string or an array of strings.", "stop")
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop may hold {MAX_STOP_STRINGS} strings, not {len(strings)}.", "stop")
    return tuple(whole_characters(s) for s in strings)


def _logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs")
    if not fields.boolean("logprobs"):
        if top:
            raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
        return None
    if top is not None and not 0 <= top <= 20:
        raise RequestError(f"top_logprobs must be between 0 and 20, not {top}.", "top_logprobs")
    return top or 0


def _logit_bias(fields: Fields, vocab_size: int) -> tuple[tuple[int, float], ...] | None:
    biases = fields.child("logit_bias")
    if biases is None:
        return None
    found = []
    for key in biases.mapping():
        path = biases.path(key[:40])
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocab_size):
            raise RequestError(
                f"{path}: the keys are token ids from 0 to {vocab_size - 1}.", "logit_bias"
            )
        bias = biases.number(key)
        if bias is None or not -100 <= bias <= 100:
            raise RequestError(f"{path} must be between -100 and 100.", "logit_bias")
        found.append((int(key), bias))
    return tuple(found)
