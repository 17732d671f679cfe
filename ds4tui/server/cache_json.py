"""The panels as JSON: EngineStats by GET /v1/cache, a decision in each reply. Pure functions."""

from dataclasses import asdict
from typing import Any

from ds4tui.advice import advice
from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision
from ds4tui.server.body import finite

_POOLS = {
    "parked": ("parked_states", "parked_tokens", "parked_bytes"),
    "segments": ("segments", "segment_tokens", "segment_bytes"),
    "snapshots": ("snapshots", None, "snapshot_bytes"),
}
_TRIPWIRE = ("tripwire", "tripwire_cause")


# Pieces of conversations.
_DECISION_TEXTS = ("shared_window", "live_window", "wanted_window", "what")


def cache_json(stats: EngineStats, with_texts: bool) -> dict[str, Any]:
    """All of the stats by their own names, but for what is held beside the live states, which is
    in `pools`, and `tripwire`: null, or what is wrong, why, and what helps. `decisions` and
    `notes` are oldest first. Pieces of conversations are null unless `with_texts`."""
    values: dict[str, Any] = finite(asdict(stats))
    if not with_texts:
        _leave_texts_out(values)
    pools: dict[str, Any] = {
        pool: {
            "count": values.pop(count),
            **({"tokens": values.pop(tokens)} if tokens else {}),
            "bytes": values.pop(nbytes),
        }
        for pool, (count, tokens, nbytes) in _POOLS.items()
    }
    pools["bytes"] = sum(pools[pool]["bytes"] for pool in _POOLS)
    pools["budget_bytes"] = values.pop("cache_budget_bytes")
    for name in _TRIPWIRE:
        del values[name]
    return {"object": "cache", **values, "pools": pools, "tripwire": _tripwire_json(stats)}


def _leave_texts_out(values: dict[str, Any]) -> None:
    for decision in filter(None, [values["decision"], *values["decisions"]]):
        decision.update(dict.fromkeys(_DECISION_TEXTS))
    for named in (*values["sessions"], *values["conversations"]):
        named["what"] = None


def _tripwire_json(stats: EngineStats) -> dict[str, str] | None:
    if not stats.tripwire:
        return None
    told = advice(stats.tripwire_cause)
    return {
        "message": stats.tripwire,
        "cause": stats.tripwire_cause,
        "help": told.help if told else "",
    }


# What of a decision a reply tells: no text of a conversation, which may be another client's.
_TOLD = (
    "kind", "reason", "cause", "source", "grade", "live", "prompt", "common", "held", "kept",
    "dropped", "evaluated", "replayed", "images", "divergence", "session",
)  # fmt: skip


def kv_json(decision: Decision | None) -> dict[str, Any] | None:
    """Our extension field `kv` of a reply: what was kept of the KV state, what was computed, and
    why."""
    if decision is None:
        return None
    return {name: getattr(decision, name) for name in _TOLD}
