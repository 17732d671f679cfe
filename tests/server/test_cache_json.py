"""GET /v1/cache and the field `kv`: the panels' facts as JSON."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from ds4tui.engine.stats import EngineStats, MemoryNote, SessionStats
from ds4tui.events import Decision, EncodingProgress
from ds4tui.server.app import create_app
from ds4tui.server.cache_json import cache_json, kv_json
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

FORK = Decision(
    "j7", kind="rewind", source="memory", grade="restore-exact", live=1950, prompt=1906,
    common=1902, kept=1902, dropped=48, evaluated=4, images="none", divergence=1902, held=1902,
    reason="fork at 1,902 (early message edited): 48 tokens of the old branch kept aside, 4 new",
    cause="early message edited", put_away="tail", shared_window="the sky ", live_window="is blue",
    wanted_window="was red", origin="agent", session=2, what="agent: Why is the sky blue?",
)  # fmt: skip
STATS = EngineStats(
    "idle", context_tokens=8192, resident_tokens=1906, decision=FORK, decisions=(FORK,),
    sessions=(SessionStats(1), SessionStats(2, "READY", 1906, 9000, 3, 64, FORK.what)),
    parked_states=1, parked_tokens=500, parked_bytes=1000, segments=2, segment_tokens=148,
    segment_bytes=300, snapshots=4, snapshot_bytes=80, cache_budget_bytes=10_000,
    notes=(MemoryNote(12.5, "evicted", "evicted 9 tokens", 9, 90),),
    encoding=EncodingProgress("j7", 1, 2, "salary.png", 5.0),
)  # fmt: skip


def test_pools_stand_together_with_what_they_may_take() -> None:
    said = cache_json(STATS, with_texts=True)
    assert said["pools"] == {
        "parked": {"count": 1, "tokens": 500, "bytes": 1000},
        "segments": {"count": 2, "tokens": 148, "bytes": 300},
        "snapshots": {"count": 4, "bytes": 80},
        "bytes": 1380,
        "budget_bytes": 10_000,
    }
    assert "parked_bytes" not in said and "cache_budget_bytes" not in said
    json.dumps(said, allow_nan=False)


def test_decisions_sessions_and_notes_are_told_in_full() -> None:
    said = cache_json(STATS, with_texts=True)
    (decision,) = said["decisions"]
    assert decision == said["decision"]
    assert (decision["cause"], decision["divergence"]) == ("early message edited", 1902)
    assert (decision["live_window"], decision["wanted_window"]) == ("is blue", "was red")
    assert [s["session"] for s in said["sessions"]] == [1, 2]
    assert said["sessions"][1]["worst_replay"] == 64
    assert said["notes"][0]["text"] == "evicted 9 tokens"


def test_pieces_of_conversations_can_be_left_out() -> None:
    text = json.dumps(cache_json(STATS, with_texts=False))
    assert not any(piece in text for piece in ("sky", "is blue", "was red", "salary"))
    assert FORK.reason in text
    assert cache_json(EngineStats(), with_texts=False)["decision"] is None


def test_the_tripwire_names_cause_and_help() -> None:
    assert cache_json(STATS, with_texts=True)["tripwire"] is None
    wired = replace(STATS, tripwire="4 of the last 4 ...", tripwire_cause="tools changed")
    said = cache_json(wired, with_texts=True)
    assert said["tripwire"]["message"] == "4 of the last 4 ..."
    assert said["tripwire"]["cause"] == "tools changed" and "same order" in said["tripwire"]["help"]
    assert "tripwire_cause" not in said


def test_a_reply_tells_counts_and_cause_but_no_text() -> None:
    told = kv_json(FORK)
    assert told is not None
    assert (told["held"], told["replayed"], told["cause"]) == (1902, 0, "early message edited")
    assert "live_window" not in told and "what" not in told
    assert kv_json(None) is None


@pytest.mark.parametrize(
    ("host", "api_key", "shows"),
    [("127.0.0.1", None, True), ("0.0.0.0", None, False), ("0.0.0.0", "k", True)],
)
def test_only_who_has_the_key_or_sits_here_sees_texts(
    host: str, api_key: str | None, shows: bool
) -> None:
    app = create_app(FakeAssistant(), api_key, host=host)
    assert app.state.service.shows_texts is shows


def test_the_endpoint_shows_them(serve: Callable[..., Running]) -> None:
    running = serve()
    stats = running.engine._stats
    running.engine._stats = replace(stats, decisions=(FORK,), sessions=STATS.sessions)
    said = running.get("/v1/cache").json
    assert said["object"] == "cache"
    assert said["decisions"][0]["wanted_window"] == "was red"
