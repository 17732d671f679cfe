"""GET /metrics: the stats in Prometheus' text format 0.0.4."""

from collections.abc import Iterator, Sequence

from starlette.requests import Request
from starlette.responses import Response

from ds4tui.engine.stats import EngineStats
from ds4tui.server.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("loading", "idle", "prefilling", "decoding", "closed")

# (name, type, help, attribute of EngineStats)
_PLAIN = (
    ("requests_total", "counter", "Requests to the engine.", "requests"),
    ("prompt_tokens_total", "counter", "Prompt tokens, resident or not.", "total_prompt_tokens"),
    ("cached_tokens_total", "counter", "Prompt tokens that were kept.", "total_cached_tokens"),
    ("evaluated_tokens_total", "counter", "Prompt tokens computed.", "total_evaluated_tokens"),
    (
        "replayed_tokens_total",
        "counter",
        "Evaluated tokens that were held and were computed again.",
        "total_replayed_tokens",
    ),
    ("completion_tokens_total", "counter", "Sampled tokens.", "total_completion_tokens"),
    ("images_encoded_total", "counter", "Pictures encoded.", "images_encoded"),
    ("queued_jobs", "gauge", "Jobs that wait.", "queued_jobs"),
    ("context_tokens", "gauge", "The context's length.", "context_tokens"),
    ("resident_tokens", "gauge", "Tokens in the live KV state.", "resident_tokens"),
    ("kv_bytes", "gauge", "Bytes of live KV states.", "kv_bytes"),
    ("parked_tokens", "gauge", "Tokens of parked states.", "parked_tokens"),
    ("parked_bytes", "gauge", "Bytes of parked states.", "parked_bytes"),
    ("segment_bytes", "gauge", "Bytes of kept segments.", "segment_bytes"),
    ("snapshots", "gauge", "Snapshots held in memory.", "snapshots"),
    ("snapshot_bytes", "gauge", "Bytes of those snapshots.", "snapshot_bytes"),
    ("cache_budget_bytes", "gauge", "What the memory tier may take.", "cache_budget_bytes"),
    ("memory_active_bytes", "gauge", "Memory in use.", "memory_active_bytes"),
    ("memory_peak_bytes", "gauge", "The most there was.", "memory_peak_bytes"),
)

# (name, type, help, attribute of DiskStats)
_DISK = (
    ("disk_used_bytes", "gauge", "Bytes in the KV folder.", "used_bytes"),
    ("disk_budget_bytes", "gauge", "The KV folder's budget.", "budget_bytes"),
    ("disk_pages", "gauge", "Pages of this model.", "pages"),
    ("disk_snapshots", "gauge", "Snapshots of this model.", "snapshots"),
    ("disk_loads_total", "counter", "Records loaded.", "hits"),
    ("disk_misses_total", "counter", "Look-ups that found nothing.", "misses"),
    ("disk_stores_total", "counter", "Records written.", "stores"),
    ("disk_loaded_bytes_total", "counter", "Bytes loaded.", "loaded_bytes"),
    ("disk_stored_bytes_total", "counter", "Bytes written.", "stored_bytes"),
)


async def metrics(request: Request) -> Response:
    stats = Service.of(request).assistant.stats
    return Response("".join(lines(stats)), media_type=CONTENT_TYPE)


def lines(stats: EngineStats) -> Iterator[str]:
    for name, kind, text, attribute in _PLAIN:
        yield from _metric(name, kind, text, [("", getattr(stats, attribute))])
    states = [(_label("state", state), int(stats.state == state)) for state in _STATES]
    yield from _metric("engine_state", "gauge", "1 for what the engine is doing.", states)
    disk = stats.disk
    if disk is None:
        return
    for name, kind, text, attribute in _DISK:
        yield from _metric(name, kind, text, [("", getattr(disk, attribute))])
    for name, what in (("evictions", "Evictions"), ("faults", "Faults met")):
        counted = [(_label("reason", word), count) for word, count in getattr(disk, name)]
        yield from _metric(f"disk_{name}_total", "counter", f"{what} on disk.", counted)


def _metric(name: str, kind: str, text: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    if not samples:
        return
    yield f"# HELP ds4tui_{name} {text}\n# TYPE ds4tui_{name} {kind}\n"
    for labels, value in samples:
        yield f"ds4tui_{name}{labels} {value}\n"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{escaped}"}}'
