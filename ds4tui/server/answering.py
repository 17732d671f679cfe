"""From a request to its answer, the same for every dialect: read, start the jobs, write."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ds4tui.agents import Request as AgentRequest
from ds4tui.agents import client_name
from ds4tui.assistant import Job, Listener
from ds4tui.errors import RequestError
from ds4tui.events import Decision
from ds4tui.server.body import json_bytes, read_body, require_json
from ds4tui.server.call import Call
from ds4tui.server.hangup import ClientGone, until_hang_up
from ds4tui.server.jobs import JobEvents
from ds4tui.server.reply import Dialect, Reply, collected
from ds4tui.server.requestlog import log_note
from ds4tui.server.service import CLIENT_GONE, Service
from ds4tui.server.sse import EventStream
from ds4tui.server.streaming import ReplyStream

# A body to what it asks for, and how to write the answer; runs on a worker thread.
Parse = Callable[[bytes, Service], tuple[Call, Dialect]]


async def answer(request: Request, parse: Parse) -> Response:
    """Raises Ds4Error for what is refused; a client that leaves ends its jobs."""
    service = Service.of(request)
    try:
        require_json(request)
        body = await read_body(request)
    except ClientDisconnect:
        return _gone(request, "while it sent the request")
    call, dialect = await anyio.to_thread.run_sync(parse, body, service)
    service.require_model(call.model)
    client = client_name(request.headers.get("user-agent", ""))
    call = replace(call, client=client, endpoint=request.scope["path"])
    try:
        first = await until_hang_up(request.receive, _begin(service, call, 0))
    except ClientGone:
        return _gone(request, "while its prompt was rendered")
    if call.stream:
        return _stream(request, dialect, service, call, first)
    return await _whole(request, dialect, service, call, first)


async def _begin(service: Service, call: Call, choice: int) -> JobEvents:
    return await service.jobs.begin(partial(_submit, service, _nth(call, choice)))


def _nth(call: Call, choice: int) -> Call:
    """The same seed would give the same reply again."""
    seed = call.sampling.seed
    if not choice or seed is None:
        return call
    return replace(call, sampling=replace(call.sampling, seed=(seed + choice) % 2**64))


def _submit(
    service: Service, call: Call, listener: Listener, before_start: Callable[[], None]
) -> Job:
    assistant = service.assistant
    asked = AgentRequest(call.client, call.endpoint, call.messages, call.tools)
    watched = service.agents.watch(asked, assistant.info, listener, assistant.says_more)
    job = _job(service, call, watched, before_start)
    watched.started(job)
    return job


def _job(service: Service, call: Call, listener: Listener, before_start: Callable[[], None]) -> Job:
    if call.prompt is not None:
        before_start()
        return service.assistant.complete(call.prompt, call.sampling, listener, "agent")
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


async def _jobs(service: Service, call: Call, first: JobEvents) -> AsyncGenerator[JobEvents, None]:
    """One after the other: what the first evaluated is resident for the next."""
    for choice in range(call.n):
        events = first if choice == 0 else await _begin(service, call, choice)
        try:
            yield events
        finally:
            events.close()


async def _whole(
    request: Request, dialect: Dialect, service: Service, call: Call, first: JobEvents
) -> Response:
    phase = first.phase

    async def replies() -> list[Reply]:
        nonlocal phase
        found = []
        async with aclosing(_jobs(service, call, first)) as jobs:
            async for events in jobs:
                try:
                    found.append(await collected(events))
                finally:
                    phase = events.phase
        return found

    try:
        found = await until_hang_up(request.receive, replies())
    except ClientGone:
        first.close()
        return _gone(request, f"during {phase}")
    log_note(request, "; ".join(reply.end.note for reply in found))
    headers = cache_headers(found[0].end.decision)
    body = json_bytes(dialect.whole(found))
    return Response(body, headers=headers, media_type="application/json")


def _stream(
    request: Request, dialect: Dialect, service: Service, call: Call, first: JobEvents
) -> Response:
    style = service.keep_alives.style_for(request.headers.get("user-agent", ""))
    jobs = partial(_jobs, service, call, first)
    stream = ReplyStream(dialect, jobs, service.keep_alive_s, style)

    def finish(client_gone: bool) -> None:
        first.close()
        if client_gone:
            _gone(request, f"during {stream.phase}")
        else:
            log_note(request, stream.note)

    return EventStream(stream.write, finish)


def cache_headers(decision: Decision | None) -> dict[str, str]:
    """What was kept and why, for clients that look at headers."""
    if decision is None:
        return {}
    told = (
        f"{decision.kind}; kept={decision.kept}; evaluated={decision.evaluated}; "
        f"reason={decision.reason}"
    )
    return {"x-ds4tui-cache": "".join(c if " " <= c <= "~" else "?" for c in told)}


def wanted_count(n: int | None, most: int, param: str) -> int:
    """Raises RequestError for a number of replies that nobody can have."""
    if n is None:
        return 1
    if not 1 <= n <= most:
        raise RequestError(f"{param} must be between 1 and {most}, not {n}.", param)
    return n


def _gone(request: Request, when: str) -> Response:
    log_note(request, f"client left {when}; its job was cancelled")
    return Response(status_code=CLIENT_GONE)
