"""What every endpoint needs: the assistant, the jobs that clients wait for, the defaults."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from ds4tui.agents import Agents
from ds4tui.assistant import Assistant
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.events import Usage
from ds4tui.server.errors import ApiError
from ds4tui.server.jobs import ActiveJobs
from ds4tui.server.keep_alive import KeepAlives
from ds4tui.server.kept_responses import KeptResponses

# nginx's "client closed request": nobody receives it, but the log line says what happened.
CLIENT_GONE = 499

# Clients give up after 15 to 30 s of silence; proxies after 60.
KEEP_ALIVE_S = 10.0


@dataclass(frozen=True)
class Service:
    assistant: Assistant
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    keep_alive_s: float = KEEP_ALIVE_S
    shows_texts: bool = True  # whether /v1/cache shows pieces of conversations
    responses: KeptResponses = field(default_factory=KeptResponses)
    agents: Agents = field(default_factory=Agents)
    keep_alives: KeepAlives = field(default_factory=KeepAlives)
    jobs: ActiveJobs = field(default_factory=ActiveJobs)
    started_s: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, request: Request) -> "Service":
        service = request.app.state.service
        assert isinstance(service, cls)
        return service

    def require_model(self, name: str | None) -> None:
        """Raise ApiError (404) unless `name` is the loaded model; no name means that one."""
        known = self.assistant.info.name
        if name and name != known:
            raise ApiError(
                404,
                f"The model {name!r} is not loaded here.",
                code="model_not_found",
                param="model",
                hint=f"This server runs {known!r}; use that name or leave the field empty.",
            )


def usage_json(usages: Sequence[Usage]) -> dict[str, Any]:
    """OpenAI's usage object of a request's replies, which share their prompt."""
    first = usages[0]
    completion = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": first.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens},
    }
