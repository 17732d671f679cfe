"""POST /v1/cache/pin and clear: by name, by any thread, refused in words."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.kvtally import DiskStats
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.stats import EngineStats
from ds4tui.server.cache_json import cache_json
from tests.cache.kv_samples import IDENTITY, true_page
from tests.fakes import FakeAssistant
from tests.server.conftest import Answer, Running
from tests.tui.test_disk import DISK, conversation

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DiskTier]:
    """Two conversations that share nothing."""
    tier = DiskTier(tmp_path / "kv", 10**8, IDENTITY, label="mine", floor_bytes=0)
    for number in (1, 2):
        timeline = Timeline.of([number] * 300)
        layers = true_page(timeline, 0, 300).layers
        assert tier.put_page(timeline, 0, layers, what=f"person: number {number}")
    assert tier.flush(30.0)
    yield tier
    tier.close(30.0)


@pytest.fixture
def running(serve: Callable[..., Running], disk: DiskTier) -> Running:
    assistant = FakeAssistant()
    assistant.engine.disk_tier = disk
    return serve(assistant)


def asked(running: Running, path: str, **fields: Any) -> Answer:
    return running.post(f"/v1/cache/{path}", json.dumps(fields).encode(), headers=JSON)


def names(disk: DiskTier) -> dict[str, str]:
    from ds4tui.cache.kvconversations import stored_conversations

    return {each.what: each.name for each in stored_conversations(disk.entries())}


def test_what_is_pinned_outlives_a_clearing(running: Running, disk: DiskTier) -> None:
    name = names(disk)["person: number 2"]
    told = asked(running, "pin", conversation=name).json
    assert (told["name"], told["is_pinned"], told["what"]) == (name, True, "person: number 2")
    assert disk.stats.pinned == 1
    told = asked(running, "clear").json
    assert told["freed_bytes"] > 0 and [c["name"] for c in told["conversations"]] == [name]
    assert asked(running, "pin", conversation=name, pinned=False).json["is_pinned"] is False
    assert running.post("/v1/cache/clear", b"").json["conversations"] == []
    assert not disk.entries()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 400),
        ({"conversation": ""}, 400),
        ({"conversation": 7}, 400),
        ({"conversation": "nothing"}, 404),
        ({"conversation": "x", "pinned": "yes"}, 400),
    ],
)
def test_what_cannot_be_pinned_is_refused(
    running: Running, fields: dict[str, Any], status: int
) -> None:
    answer = asked(running, "pin", **fields)
    assert answer.status == status and answer.json["error"]["message"]


def test_a_form_of_a_web_page_changes_nothing(running: Running, disk: DiskTier) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert running.post("/v1/cache/clear", b"a=1", headers=form).status == 415
    origin = {"Origin": "http://evil.example", **JSON}
    assert running.post("/v1/cache/clear", b"{}", headers=origin).status == 403
    assert running.get("/v1/cache/clear").status == 405
    assert len(disk.entries()) == 2


def test_the_key_is_needed(serve: Callable[..., Running], disk: DiskTier) -> None:
    assistant = FakeAssistant()
    assistant.engine.disk_tier = disk
    assert asked(serve(assistant, api_key="k"), "clear").status == 401
    assert len(disk.entries()) == 2


def test_without_a_disk_or_its_lock_the_reason_is_told(
    serve: Callable[..., Running], disk: DiskTier, tmp_path: Path
) -> None:
    none = asked(serve(FakeAssistant()), "clear")
    assert none.status == 409 and "kv_disk is off" in none.json["error"]["message"]
    assistant = FakeAssistant()
    reader = DiskTier(tmp_path / "kv", 10**8, IDENTITY)
    assistant.engine.disk_tier = reader
    refused = asked(serve(assistant), "clear")
    assert refused.status == 409 and "another ds4tui" in refused.json["error"]["message"]
    reader.close(1.0)


def test_many_at_once_while_records_are_written(running: Running, disk: DiskTier) -> None:
    statuses: list[int] = []

    def change(number: int) -> None:
        for name in names(disk).values():
            statuses.append(asked(running, "pin", conversation=name).status)
        statuses.append(asked(running, "clear", pinned=bool(number % 2)).status)

    threads = [threading.Thread(target=change, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for number in range(10, 20):
        timeline = Timeline.of([number] * 300)
        assert disk.put_page(timeline, 0, true_page(timeline, 0, 300).layers, wait_s=30.0)
    for thread in threads:
        thread.join(30.0)
    assert set(statuses) <= {200, 404} and 200 in statuses
    assert disk.flush(30.0) and not disk.verify()


def test_the_disk_is_told_in_one_place_with_meanings() -> None:
    stats = EngineStats(
        "idle", disk=DISK, conversations=(conversation(),), conversation_count=3, is_storing=True
    )
    told = cache_json(stats, with_texts=True)["disk"]
    assert (told["used_bytes"], told["budget_bytes"]) == (3_234_000_000, 20 * 10**9)
    assert told["evictions"][1] == {
        "why": "room", "count": 10, "meaning": "room was needed, and they were worth least",
    }  # fmt: skip
    assert told["faults"][0]["fault"] == "flipped" and "checksum" in told["faults"][0]["meaning"]
    assert (told["conversation_count"], told["is_storing"]) == (3, True)
    assert told["conversations"][0]["what"] == "person: Why is the sky blue?"
    assert "leaf_id" not in told["conversations"][0]
    assert "conversations" not in cache_json(stats, with_texts=True)
    hidden = json.dumps(cache_json(stats, with_texts=False))
    assert "sky" not in hidden and DISK.folder not in hidden
    assert cache_json(EngineStats(), with_texts=True)["disk"] is None
    json.dumps(cache_json(EngineStats(disk=DiskStats()), with_texts=True), allow_nan=False)
