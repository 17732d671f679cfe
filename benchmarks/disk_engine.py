"""KV states on disk through the engine, with a real model, beside what they are to spare.

    python benchmarks/disk_engine.py [-m NAME] [--folder DIR] [--tokens N] [--rounds N]
                                     [--only start,rates,bytes,delay] [--json]

start   process start to first token: a long prompt that is stored, and the same one cold; each in
        a process of its own, in turns
rates   what a session takes to restore it (read, verified, copied into a state) and what the engine
        takes to store it while it rests, beside plain reads and synced writes of the same files
bytes   written for each turn of a conversation, beside the rows that are new
delay   of decoding while a long prompt is being stored: segments with and without, in turns; and
        what the engine's own part takes of the time, which other processes disturb least
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from disk import forget, plain_read

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.config import Settings, load_settings
from ds4tui.engine.disk_identity import model_identity
from ds4tui.engine.disk_store import Storing
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.session import Session
from ds4tui.library.resolve import resolve_model

TURNS, TURN_TOKENS, REPLY_TOKENS = 10, 120, 40
SEGMENT_TOKENS, SEGMENTS = 110, 5


class Desk:
    """A model with one session and, on demand, a disk, without the engine's thread."""

    def __init__(self, name: str, settings: Settings) -> None:
        with GGUFFile.open(resolve_model(name, settings.data_dir)) as gguf:
            self.model = load_model(gguf, settings)
            self.identity = model_identity(gguf, self.model)

    def opened(self, folder: Path) -> tuple[Session, DiskTier, Storing]:
        memory = MemoryTier(1 << 30)
        disk = DiskTier(folder, 1 << 40, self.identity, floor_bytes=0)
        session = Session(self.model, memory=memory, disk=disk)
        return session, disk, Storing(disk, memory, [session])

    def ids(self, count: int) -> list[int]:
        drawn = np.random.default_rng(1).integers(100, self.model.vocab_size - 100, count)
        return [int(i) for i in drawn]


def evaluated(session: Session, wanted: Timeline) -> int:
    """The token that greedy sampling takes behind it."""
    prefill = session.sync(wanted)
    while not prefill.finished:
        prefill.step(512)
    return int(np.argmax(prefill.logits))


def settle(disk: DiskTier, storing: Storing) -> None:
    while storing.is_pending:
        storing.idle()
    assert disk.flush(600.0) and not storing.failed, storing.failed


# -- process start to first token ------------------------------------------------------------------


def start_child(name: str, folder: str, tokens: int, began_s: float) -> None:
    """One question behind a long text; prints what it took since `began_s` (time.time)."""
    from ds4tui.chat.messages import Message
    from ds4tui.engine.requests import SamplingParams
    from ds4tui.events import Decision, TokenText
    from ds4tui.opening import open_assistant

    on = {"kv_disk_dir": Path(folder)} if folder else {"kv_disk": "off"}
    assistant = open_assistant(name, replace(load_settings({}), **on), lambda words: None)
    opened_s = time.time() - began_s
    first: list[float] = []
    decisions: list[Decision] = []
    said: list[int] = []

    def hear(event: Any) -> None:
        if isinstance(event, Decision):
            decisions.append(event)
        if isinstance(event, TokenText):
            first.append(time.time() - began_s)
            said.extend(event.token_ids)

    words = "In the year %d the people of the valley counted %d sheep. "
    text = "".join(words % (1000 + n, n * 37 % 911) for n in range(tokens // 16))
    messages = [Message("system", text), Message("user", "How many sheep in the year 1007?")]
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    assert assistant.chat(messages, sampling, hear).wait(600)
    told = assistant.stats.disk
    opened_ms = told.opened_ms if told is not None else 0.0
    assistant.close(60.0)
    found = {
        "kind": decisions[-1].kind, "prompt": decisions[-1].prompt, "kept": decisions[-1].kept,
        "open_s": opened_s, "first_token_s": first[0], "said": said, "folder_ms": opened_ms,
    }  # fmt: skip
    print(json.dumps(found))


def asked(name: str, folder: Path | None, tokens: int) -> dict[str, Any]:
    place = str(folder) if folder is not None else ""
    child = [sys.executable, __file__, "-m", name, "--tokens", str(tokens)]
    child += ["--child", place, "--began", str(time.time())]
    ran = subprocess.run(child, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measure_start(name: str, folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    # The end of a process has a deadline: what it cuts short the next one stores.
    while asked(name, folder, tokens)["kept"] < tokens // 2:
        pass
    cold, stored = [], []
    for number in range(rounds):
        kinds: list[tuple[list[Any], Path | None]] = [(cold, None), (stored, folder)]
        for results, place in kinds[:: 1 if number % 2 else -1]:
            results.append(asked(name, place, tokens))
    same = all(one["said"] == cold[0]["said"] for one in cold + stored)

    def median(results: list[Any], what: str) -> float:
        return statistics.median(one[what] for one in results)

    ratios = [a["first_token_s"] / b["first_token_s"] for a, b in zip(cold, stored, strict=True)]
    return {
        "prompt_tokens": cold[0]["prompt"],
        "kept": stored[0]["kept"],
        "cold_first_token_s": median(cold, "first_token_s"),
        "stored_first_token_s": median(stored, "first_token_s"),
        "cold_open_s": median(cold, "open_s"),
        "stored_open_s": median(stored, "open_s"),
        "folder_opened_ms": median(stored, "folder_ms"),
        "ratio": statistics.median(ratios),
        "same_tokens": same,
    }


# -- rates -----------------------------------------------------------------------------------------


def plain_write(folder: Path, contents: list[bytes]) -> int:
    for number, content in enumerate(contents):
        with open(folder / f"plain-{number}", "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
    return sum(map(len, contents))


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_rates(desk: Desk, folder: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """Bytes a second: medians, with ratios of the same round, and the best; and CPU time of all
    threads. The last two a busy machine disturbs least."""
    wanted = Timeline.of(desk.ids(tokens))
    found: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}

    def note(what: str, nbytes: int, work: Callable[[], Any]) -> None:
        began_cpu = time.process_time()
        found.setdefault(what, []).append(nbytes / timed(work))
        used_s = time.process_time() - began_cpu
        cpu.setdefault(what, []).append(used_s * 1e3 / (nbytes / 1e8))

    (folder / "plain").mkdir(parents=True)
    first, disk, storing = desk.opened(folder / "kv")
    evaluated(first, wanted)
    storing.stepped(first, 0.0, is_prefilled=True, is_over=True)
    settle(disk, storing)
    disk.close(60.0)
    paths = sorted((folder / "kv").glob("*.page"))
    nbytes = sum(path.stat().st_size for path in paths)
    contents = [path.read_bytes() for path in paths]
    for number in range(rounds):
        for state in ("cold", "warm"):
            session, disk, _ = desk.opened(folder / "kv")
            plan = session.plan(wanted)
            assert plan.kind == "load", plan.kind
            reads: list[tuple[str, Callable[[], Any]]] = [
                (f"restore {state}, file system", lambda: plain_read(paths)),
                (f"restore {state}", lambda s=session, p=plan: s.sync(wanted, p)),
            ]
            for what, work in reads[:: 1 if number % 2 else -1]:
                if state == "cold":
                    forget(paths)
                note(what, nbytes, work)
            disk.close(60.0)
        place = folder / f"again-{number}"
        again = DiskTier(place, 1 << 40, desk.identity, floor_bytes=0)
        storing = Storing(again, MemoryTier(0), [first])
        storing.stepped(first, 0.0, is_prefilled=True, is_over=True)
        writes: list[tuple[str, Callable[[], Any]]] = [
            ("store, file system", lambda: plain_write(folder / "plain", contents)),
            ("store", lambda a=again, s=storing: settle(a, s)),
        ]
        for what, work in writes[:: 1 if number % 2 else -1]:
            note(what, nbytes, work)
        again.close(60.0)
        for path in (*(folder / "plain").iterdir(), *place.iterdir()):
            path.unlink()
    ours = [what for what in found if "file system" not in what]
    return {
        "mb": nbytes / 1e6,
        "median_mb_per_s": {k: statistics.median(v) / 1e6 for k, v in found.items()},
        "cpu_ms_per_100_mb": {k: statistics.median(v) for k, v in cpu.items()},
        "best_mb_per_s": {k: max(v) / 1e6 for k, v in found.items()},
        "ratio_of_best": {
            what: max(found[what]) / max(found[f"{what}, file system"]) for what in ours
        },
        "ratio_to_file_system": {
            what: statistics.median(
                a / b for a, b in zip(found[what], found[f"{what}, file system"], strict=True)
            )
            for what in ours
        },
    }


# -- bytes -----------------------------------------------------------------------------------------


def measure_bytes(desk: Desk, folder: Path) -> dict[str, Any]:
    """Of each turn that follows the first: page bytes over bytes of new rows, and snapshots."""
    session, disk, storing = desk.opened(folder)
    ids = desk.ids(700)
    ratios, snapshots, merged = [], [], 0
    before, rows = disk.stats, 0
    for _ in range(TURNS + 1):
        ids.append(evaluated(session, Timeline.of(ids)))
        storing.stepped(session, 0.0, is_prefilled=True, is_over=False)
        for _ in range(REPLY_TOKENS):
            ids.append(int(np.argmax(session.append(ids[-1]))))
            storing.stepped(session, 0.01, is_prefilled=True, is_over=False)
        session.end_turn()
        storing.stepped(session, 0.0, is_prefilled=True, is_over=True)
        settle(disk, storing)
        now, held = disk.stats, len(session.timeline)
        assert session.state is not None
        new = session.state.rows_bytes(rows, held)
        pages = now.stored_bytes - now.stored_snapshot_bytes
        pages -= before.stored_bytes - before.stored_snapshot_bytes
        ratios.append(pages / new)
        snapshots.append(now.snapshots - before.snapshots)
        before, rows = now, held
        ids += desk.ids(TURN_TOKENS)
    merged = disk.stats.merged_bytes
    disk.close(60.0)
    return {
        "turns": TURNS,
        "worst_pages_over_new_rows": max(ratios[1:]),
        "most_snapshots_a_turn": max(snapshots[1:]),
        "snapshot_mb_a_turn": before.stored_snapshot_bytes / max(1, before.snapshots) / 1e6,
        "merged_over_stored": merged / max(1, before.stored_bytes - before.stored_snapshot_bytes),
    }


# -- delay -----------------------------------------------------------------------------------------


def measure_delay(desk: Desk, folder: Path, tokens: int) -> dict[str, Any]:
    """Decoding with and without storing, in segments by turns; each that stores has a folder of
    its own, so that there is always something to store."""
    memory = MemoryTier(1 << 30)
    session = Session(desk.model, memory=memory)
    token = evaluated(session, Timeline.of(desk.ids(tokens)))
    walls: dict[bool, list[float]] = {True: [], False: []}
    copying, stored = [], 0
    for number in range(2 * SEGMENTS):
        is_storing = number % 2 == (number // 2) % 2  # who goes first alternates
        disk = DiskTier(folder / f"{number}", 1 << 40, desk.identity, floor_bytes=0)
        storing = Storing(disk, memory, [session])
        own, began = 0.0, time.perf_counter()
        for _ in range(SEGMENT_TOKENS):
            step = time.perf_counter()
            token = int(np.argmax(session.append(token)))
            if is_storing:
                before = time.perf_counter()
                storing.stepped(session, before - step, is_prefilled=True, is_over=False)
                own += time.perf_counter() - before
        walls[is_storing].append(time.perf_counter() - began)
        if is_storing:
            copying.append(own / (walls[True][-1] - own))
        disk.close(60.0)
        stored += disk.stats.stored_bytes
        shutil.rmtree(folder / f"{number}")
    pairs = zip(walls[True], walls[False], strict=True)
    return {
        "tokens": tokens,
        "stored_mb_a_segment": stored / SEGMENTS / 1e6,
        "step_ms": statistics.median(walls[False]) / SEGMENT_TOKENS * 1e3,
        "delay_of_time": statistics.median(a / b - 1 for a, b in pairs),
        "delay_by_copying_alone": statistics.median(copying),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: temporary)")
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="start,rates,bytes,delay")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        start_child(given.model, given.child, given.tokens, given.began)
        return
    wanted, found = given.only.split(","), {}
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary)
        if "start" in wanted:
            found["start"] = measure_start(
                given.model, folder / "start", given.tokens, given.rounds
            )
        desk = Desk(given.model, load_settings({}))
        if "rates" in wanted:
            found["rates"] = measure_rates(desk, folder / "rates", given.tokens, given.rounds)
        if "bytes" in wanted:
            found["bytes"] = measure_bytes(desk, folder / "bytes")
        if "delay" in wanted:
            found["delay"] = measure_delay(desk, folder / "delay", given.tokens)
    if given.json:
        print(json.dumps(found))
        return
    for what, results in found.items():
        print(what)
        for name, value in results.items():
            values = value.items() if isinstance(value, dict) else [("", value)]
            for key, number in values:
                shown = f"{number:,.3f}" if isinstance(number, float) else number
                print(f"  {f'{name} {key}'.strip():48} {shown}")


if __name__ == "__main__":
    main()
