"""The HTTP application: which path is answered by what, behind which middleware.

Thin: endpoints hold no state, the assistant does the work. Errors of any layer have OpenAI's
shape. `app.state.service.jobs.stop()` (on the loop) ends every open reply.
"""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import Ds4Error
from ds4tui.server import cache_changes, endpoints, metrics, text_endpoints
from ds4tui.server.auth import BearerAuth
from ds4tui.server.callers import LocalCallers, is_loopback
from ds4tui.server.errors import handle_ds4_error, handle_http_exception, handle_internal_error
from ds4tui.server.keep_alive import KeepAlives
from ds4tui.server.requestlog import RequestLog
from ds4tui.server.service import KEEP_ALIVE_S, Service

ROUTES = (
    Route("/", endpoints.root, methods=["GET"]),
    Route("/health", endpoints.health, methods=["GET"]),
    Route("/v1/models", endpoints.list_models, methods=["GET"]),
    Route("/v1/models/{model_id:path}", endpoints.one_model, methods=["GET"]),
    Route("/v1/cache", endpoints.cache, methods=["GET"]),
    Route("/v1/cache/pin", cache_changes.pin, methods=["POST"]),
    Route("/v1/cache/clear", cache_changes.clear, methods=["POST"]),
    Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
    Route("/v1/completions", endpoints.completions, methods=["POST"]),
    Route("/v1/responses", endpoints.responses, methods=["POST"]),
    Route("/v1/responses/{response_id}", endpoints.kept_response, methods=["GET", "DELETE"]),
    Route("/v1/messages", endpoints.messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", text_endpoints.count_message_tokens, methods=["POST"]),
    Route("/tokenize", text_endpoints.tokenize, methods=["POST"]),
    Route("/detokenize", text_endpoints.detokenize, methods=["POST"]),
    Route("/metrics", metrics.metrics, methods=["GET"]),
)


def create_app(
    assistant: Assistant,
    api_key: str | None = None,
    *,
    host: str = "127.0.0.1",
    defaults: SamplingDefaults | None = None,
    keep_alive_s: float = KEEP_ALIVE_S,
    agents: Agents | None = None,
    keep_alives: KeepAlives | None = None,
) -> Starlette:
    """The application around one opened model, which it never closes.

    With an `api_key`, everything but /health needs it. `defaults` are the sampling parameters of
    requests that leave them open. A stream that is silent for `keep_alive_s` says that it lives, in
    the style of `keep_alives`.
    `host` is what the server listens on: see callers.py for who is refused. `agents` watches
    the requests.
    """
    callers = Middleware(LocalCallers, host=host, needs_key=bool(api_key))
    middleware = [Middleware(RequestLog), callers]
    if api_key:
        middleware.append(Middleware(BearerAuth, api_key=api_key))
    app = Starlette(
        routes=list(ROUTES),
        middleware=middleware,
        exception_handlers={
            Ds4Error: handle_ds4_error,
            HTTPException: handle_http_exception,
            Exception: handle_internal_error,
        },
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host header
    app.state.service = Service(
        assistant,
        defaults or SamplingDefaults(),
        keep_alive_s,
        # What others wrote is for those who have the key, or sit at this machine.
        shows_texts=bool(api_key) or is_loopback(host),
        agents=agents or Agents(),
        keep_alives=keep_alives or KeepAlives(),
    )
    app.state.endpoints = tuple(route.path for route in ROUTES)
    return app
