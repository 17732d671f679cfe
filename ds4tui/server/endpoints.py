"""The endpoints: each reads its request, asks the assistant, and answers."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ds4tui.server.answering import answer
from ds4tui.server.anthropic_messages import read_message_request
from ds4tui.server.body import json_bytes
from ds4tui.server.cache_json import cache_json
from ds4tui.server.completions import read_completion
from ds4tui.server.openai_chat import read_chat
from ds4tui.server.openai_responses import read_response_request
from ds4tui.server.service import Service


def json_response(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json_bytes(value), status, media_type="application/json")


async def root(request: Request) -> Response:
    """For whoever looks whether anything is here; Claude Code does so before it asks."""
    service = Service.of(request)
    return json_response({"server": "ds4tui", "model": service.assistant.info.name})


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
        "input_modalities": ["text", "image"] if service.assistant.vision else ["text"],
    }


async def cache(request: Request) -> Response:
    """The panels: what is resident and held beside it, sessions, decisions with their reasons."""
    service = Service.of(request)
    return json_response(cache_json(service.assistant.stats, service.shows_texts))


async def chat_completions(request: Request) -> Response:
    return await answer(request, read_chat)


async def messages(request: Request) -> Response:
    return await answer(request, read_message_request)


async def responses(request: Request) -> Response:
    return await answer(request, read_response_request)


async def kept_response(request: Request) -> Response:
    name = request.path_params["response_id"]
    kept = Service.of(request).responses
    if request.method == "DELETE":
        kept.remove(name)
        return json_response({"id": name, "object": "response", "deleted": True})
    return json_response(kept.response(name))


async def completions(request: Request) -> Response:
    return await answer(request, read_completion)
