"""The endpoints: each reads its request, asks the assistant, and answers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ds4tui.assistant import Job, Listener
from ds4tui.server.body import json_bytes, read_body, require_json
from ds4tui.server.cache_json import cache_json
from ds4tui.server.hangup import ClientGone, until_hang_up
from ds4tui.server.jobs import JobEvents
from ds4tui.server.openai_chat import ChatCall, parse_chat
from ds4tui.server.openai_reply import Ending, ReplyHead, ReplyStream, whole_reply
from ds4tui.server.requestlog import log_note
from ds4tui.server.service import Service
from ds4tui.server.sse import EventStream

# nginx's "client closed request": nobody receives it, but the log line says what happened.
CLIENT_GONE = 499


def json_response(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")


async def health(request: Request) -> Response:
    """200 while requests can be answered, 503 before and after."""
    state = Service.of(request).assistant.stats.state
    ready = state not in ("loading", "closed")
    return json_response({"status": "ok" if ready else state}, 200 if ready else 503)


async def list_models(request: Request) -> Response:
    return json_response({"object": "list", "data": [_model(Service.of(request))]})


async def one_model(request: Request) -> Response:
    service = Service.of(request)
    service.require_model(request.path_params["model_id"])
    return json_response(_model(service))


def _model(service: Service) -> dict[str, Any]:
    info = service.assistant.info
    return {
        "id": info.name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "ds4tui",
        "architecture": info.architecture,
        "quantisation": info.quantisation,
        "parameters": info.parameters,
        "context_tokens": info.context_tokens,
    }


async def cache(request: Request) -> Response:
    """The panels: what is resident and held beside it, sessions, decisions with their reasons."""
    service = Service.of(request)
    return json_response(cache_json(service.assistant.stats, service.shows_texts))


async def chat_completions(request: Request) -> Response:
    service = Service.of(request)
    try:
        call = await _read_call(request, service)
    except ClientDisconnect:
        return _gone(request, "while it sent the request")
    begin = service.jobs.begin(partial(_submit, service, call))
    try:
        events = await until_hang_up(request.receive, begin)
    except ClientGone:
        return _gone(request, "while its prompt was rendered")
    head = ReplyHead(
        service.assistant.info.name, call.sampling.logprobs is not None, call.include_usage
    )
    if call.stream:
        return _stream(request, service, head, events)
    return await _whole(request, head, events)


async def _read_call(request: Request, service: Service) -> ChatCall:
    require_json(request)
    body = await read_body(request)
    vocab_size = service.assistant.format.tokenizer.vocab_size
    call = await anyio.to_thread.run_sync(parse_chat, body, service.defaults, vocab_size)
    service.require_model(call.model)
    return call


def _submit(
    service: Service, call: ChatCall, listener: Listener, before_start: Callable[[], None]
) -> Job:
    return service.assistant.chat(
        call.messages,
        call.sampling,
        listener,
        "agent",
        before_start,
        call.tools,
        call.thinking,
        call.choice,
        call.answer,
    )


async def _whole(request: Request, head: ReplyHead, events: JobEvents) -> Response:
    try:
        body, end = await until_hang_up(request.receive, whole_reply(head, events))
    except ClientGone:
        return _gone(request, f"during {events.phase}")
    finally:
        events.close()
    log_note(request, end.note)
    return json_response(body)


def _stream(request: Request, service: Service, head: ReplyHead, events: JobEvents) -> Response:
    stream = ReplyStream(head, events, service.keep_alive_s)

    def finish(client_gone: bool) -> None:
        events.close()
        if client_gone:
            _gone(request, f"during {events.phase}")
        else:
            log_note(request, _stream_note(stream.ending, stream.error))

    return EventStream(stream.write, finish)


def _stream_note(ending: Ending | None, error: Exception | None) -> str:
    return f"stream {ending.note}" if ending else f"stream error: {error}"


def _gone(request: Request, when: str) -> Response:
    log_note(request, f"client left {when}; its job was cancelled")
    return Response(status_code=CLIENT_GONE)
