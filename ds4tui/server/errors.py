"""Errors as API clients see them: the shape of the dialect whose path was asked, one status each.

    {"error": {"message", "type", "param", "code"}}             OpenAI's
    {"type": "error", "error": {"type", "message"}, "param"}    Anthropic's, below /v1/messages

The message is a `Ds4Error` in full (what was wrong and what to do); clients switch on `code`.
"""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ds4tui.errors import (
    ContextOverflow,
    Ds4Error,
    EngineClosed,
    EngineError,
    ModelNotFound,
    OutOfMemory,
    PictureError,
    RequestError,
    TemplateError,
)
from ds4tui.server.body import json_bytes
from ds4tui.server.requestlog import log_note

_CODES: tuple[tuple[type[Ds4Error], str], ...] = (
    (ContextOverflow, "context_length_exceeded"),
    (OutOfMemory, "out_of_memory"),
    (EngineClosed, "engine_closed"),
    (ModelNotFound, "model_not_found"),
    (TemplateError, "template_error"),
)

_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(RequestError):
    """An error that only HTTP knows, with its own status, code and headers."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, param, hint)
        self.http_status = status
        self.code = code
        self.headers = dict(headers or {})


def as_ds4_error(error: Exception) -> Ds4Error:
    """`error` itself, or an EngineError that names what went wrong inside."""
    if isinstance(error, Ds4Error):
        return error
    return EngineError(f"Internal error: {type(error).__name__}: {error}", "See the log.")


def error_object(error: Ds4Error) -> dict[str, object]:
    """The value of a response's `error` key; a context overflow gives both numbers too."""
    body: dict[str, object] = {
        "message": str(error),
        "type": _type_of(error.http_status),
        "param": _param_of(error),
        "code": _code_of(error),
    }
    if isinstance(error, ContextOverflow):
        body["param"] = "messages"
        body["prompt_tokens"] = error.prompt_tokens
        body["context_tokens"] = error.context_tokens
    return body


def anthropic_error(error: Ds4Error) -> dict[str, object]:
    """The whole body, or the data of a stream's error event."""
    status = error.http_status
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    told = {"type": _ANTHROPIC_TYPES.get(status, fallback), "message": str(error)}
    return {"type": "error", "error": told, "param": _param_of(error)}


def error_response(error: Ds4Error, path: str) -> Response:
    """In the dialect of `path`."""
    headers = dict(error.headers) if isinstance(error, ApiError) else {}
    if isinstance(error, OutOfMemory):
        # The official clients try every 5xx twice more; asking again frees no memory.
        headers["x-should-retry"] = "false"
    is_anthropic = path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")
    content = json_bytes(anthropic_error(error) if is_anthropic else _openai_error(error))
    return Response(content, error.http_status, headers, media_type="application/json")


def _openai_error(error: Ds4Error) -> dict[str, object]:
    return {"error": error_object(error)}


def _param_of(error: Ds4Error) -> str | None:
    """The field that is wrong; pictures of requests go by the name of theirs."""
    if isinstance(error, PictureError):
        return error.name
    return error.param if isinstance(error, RequestError) else None


def _type_of(status: int) -> str:
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _code_of(error: Ds4Error) -> str | None:
    if isinstance(error, ApiError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)


async def handle_ds4_error(request: Request, error: Exception) -> Response:
    problem = as_ds4_error(error)
    log_note(request, str(problem))
    return error_response(problem, request.scope["path"])


async def handle_internal_error(request: Request, error: Exception) -> Response:
    """A bug. The server logs its traceback; the client gets no more than the fact."""
    problem = EngineError("Internal error.", "See the server's log.")
    return error_response(problem, request.scope["path"])


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, reworded."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"]  # request.url also reads the Host header, which may be anything
    if error.status_code == 404:
        known = "The endpoints are " + ", ".join(request.app.state.endpoints) + "."
        problem = ApiError(404, f"There is no {path} here.", code="unknown_endpoint", hint=known)
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        problem = ApiError(
            405,
            f"{path} does not take {request.method}.",
            code="method_not_allowed",
            hint=f"Use {allowed}." if allowed else "",
            headers=error.headers,
        )
    else:
        problem = ApiError(error.status_code, error.detail, headers=error.headers)
    return error_response(problem, request.scope["path"])
