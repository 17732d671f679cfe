"""The panels as JSON: EngineStats by GET /v1/cache, a decision in each reply. Pure functions."""

from dataclasses import asdict
from typing import Any

from ds4tui.advice import advice, disk_fault, eviction_words
from ds4tui.engine.stats import EngineStats
from ds4tui.events import Decision
from ds4tui.server.body import finite
from ds4tui.server.cache_changes import conversation_json

_POOLS = {
    "parked": ("parked_states", "parked_tokens", "parked_bytes"),
    "segments": ("segments", "segment_tokens", "segment_bytes"),
    "snapshots": ("snapshots", None, "snapshot_bytes"),
}
_TRIPWIRE = ("tripwire", "tripwire_cause")
_IN_DISK = ("is_storing", "conversations", "conversation_count")


# Pieces of conversations.
_DECISION_TEXTS = ("shared_window", "live_window", "wanted_window", "what")


def cache_json(stats: EngineStats, with_texts: bool) -> dict[str, Any]:
    """All of the stats by their own names, but for what is held beside the live states, which is
    in `pools`, all about the disk in `disk`, and `tripwire`: null, or what is wrong, why, and what
    helps. `decisions` and `notes` are oldest first. Pieces of conversations, and where the folder
    lies, are null unless `with_texts`."""
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
    values["disk"] = _disk_json(stats, with_texts)
    for name in _IN_DISK:
        del values[name]
    for name in _TRIPWIRE:
        del values[name]
    return {"object": "cache", **values, "pools": pools, "tripwire": _tripwire_json(stats)}


def _disk_json(stats: EngineStats, with_texts: bool) -> dict[str, Any] | None:
    """Null if nothing shall outlive the process. Counts under words come with what they mean."""
    disk = stats.disk
    if disk is None:
        return None
    faults = [(word, count, disk_fault(word)) for word, count in disk.faults]
    conversations = [conversation_json(each, with_texts) for each in stats.conversations]
    return {
        **finite(asdict(disk)),
        "folder": disk.folder if with_texts else None,
        "evictions": [
            {"why": why, "count": count, "meaning": eviction_words(why)}
            for why, count in disk.evictions
        ],
        "faults": [
            {"fault": word, "count": count, "meaning": told.meaning, "help": told.help}
            for word, count, told in faults
        ],
        "is_storing": stats.is_storing,
        "conversation_count": stats.conversation_count,
        "conversations": conversations,
    }


def _leave_texts_out(values: dict[str, Any]) -> None:
    for decision in filter(None, [values["decision"], *values["decisions"]]):
        decision.update(dict.fromkeys(_DECISION_TEXTS))
    for session in values["sessions"]:
        session["what"] = None
    if values["encoding"] is not None:
        values["encoding"]["name"] = None  # of a file


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
    "dropped", "evaluated", "replayed", "images", "images_left_out", "divergence", "session",
)  # fmt: skip


def kv_json(decision: Decision | None) -> dict[str, Any] | None:
    """Our extension field `kv` of a reply: what was kept of the KV state, what was computed, and
    why."""
    if decision is None:
        return None
    return {name: getattr(decision, name) for name in _TOLD}
