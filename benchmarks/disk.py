"""How fast KV pages are restored and stored, beside the file system's own rates in the same run.

    python benchmarks/disk.py [--folder DIR] [--tokens N] [--layers N] [--rounds N] [--json]

Pages of a llama-like model are written by the disk tier's writer, then read back, with everything
verified; between them plain reads and writes of the same files, without a checksum, take turns,
so that a busy machine slows both alike. "cold" reads come after the system was asked to forget the
pages (which it may not do); "warm" ones from its memory. Ratios are medians over all rounds.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ds4tui.cache.kvarrays import HostPage, HostRows
from ds4tui.cache.kvfile import record_parts, write_record
from ds4tui.cache.kvformat import RecordHead, prefix_key
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline

IDENTITY = b"benchmark"
PAGE = 1024
HEADS, SIZE = 3, 64  # SmolLM2-135M's keys and values of one layer
PIECE_BYTES = 4 << 20


def pages(tokens: int, layers: int) -> list[HostPage]:
    draw = np.random.default_rng(0)
    found = []
    for start in range(0, tokens, PAGE):
        rows = [
            HostRows.of(
                draw.random((HEADS, PAGE, SIZE), dtype=np.float32).astype(np.float16),
                draw.random((HEADS, PAGE, SIZE), dtype=np.float32).astype(np.float16),
                axes=(1, 1),
            )
            for _ in range(layers)
        ]
        found.append(HostPage(start, start + PAGE, tuple(rows)))
    return found


def timed(work: Callable[[], int]) -> float:
    """Bytes a second."""
    began = time.perf_counter()
    nbytes = work()
    return nbytes / (time.perf_counter() - began)


def plain_read(paths: Sequence[Path]) -> int:
    """Every file into a new buffer."""
    total = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            buffer = np.empty(path.stat().st_size, np.uint8)
            at = 0
            while at < len(buffer):
                at += file.readinto(buffer[at : at + PIECE_BYTES].data)
        total += len(buffer)
    return total


def plain_write(folder: Path, held: Sequence[HostPage]) -> int:
    """Every page's bytes into a new file, synced."""
    total = 0
    for number, page in enumerate(held):
        with open(folder / f"plain-{number}", "wb", buffering=0) as file:
            for array in record_parts(page)[1]:
                total += file.write(array.data)
            os.fsync(file.fileno())
    return total


def tier_read(tier: DiskTier, wanted: Timeline) -> int:
    """As a session does it: what comes next is fetched while this is verified."""
    rows, _ = tier.offers(wanted)
    tier.read_ahead([row.holder_id for row in rows])
    return sum(tier.read_rows(r.holder_id, r.start, r.end).nbytes for r in rows)


def layers_read(tier: DiskTier, wanted: Timeline, layers: int) -> int:
    """A layer of all pages after the other, as a state is built."""
    rows, _ = tier.offers(wanted)
    opened = [tier.open_rows(row.holder_id) for row in rows]
    total = 0
    for layer in range(layers):
        for page in opened:
            found = page.rows(layer, page.start, page.end)
            total += found.nbytes if found is not None else 0
    for page in opened:
        page.close()
    return total


def page_write(folder: Path, held: Sequence[HostPage], wanted: Timeline) -> int:
    total = 0
    for page in held:
        places, arrays = record_parts(page)
        key = prefix_key(IDENTITY, wanted, page.start)
        own = wanted.ids[page.start : page.end]
        shape = (len(page.layers), tuple(places))
        head = RecordHead("page", IDENTITY, key, page.start, page.end, own, (), *shape)
        write_record(folder, head, arrays)
        total += page.nbytes
    return total


def forget(paths: Sequence[Path]) -> None:
    os.sync()
    for path in paths:
        with open(path, "rb") as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(folder: Path, tokens: int, layers: int, rounds: int) -> dict[str, list[float]]:
    """Bytes a second of each kind of work, one number a round."""
    held, wanted = pages(tokens, layers), Timeline.of(range(tokens))
    rates: dict[str, list[float]] = {}
    tier = DiskTier(folder / "kv", 1 << 40, IDENTITY, queue_bytes=1 << 40, floor_bytes=0)
    for page in held:
        tier.put_page(wanted.prefix(page.end), page.start, page.layers)
    tier.flush(600.0)
    paths = sorted((folder / "kv").glob("*.page"))
    for name in ("plain", "records"):
        (folder / name).mkdir()

    def note(name: str, work: Callable[[], int]) -> None:
        rates.setdefault(name, []).append(timed(work))

    for number in range(rounds):
        reads: list[tuple[str, Callable[[], int]]] = [
            ("file system", lambda: plain_read(paths)),
            ("pages", lambda: tier_read(tier, wanted)),
            ("layers", lambda: layers_read(tier, wanted, layers)),
        ]
        order = reads[number % 3 :] + reads[: number % 3]
        for state in ("cold", "warm"):
            for name, work in order:
                if state == "cold":
                    forget(paths)
                note(f"read {state}, {name}", work)
        writes: list[tuple[str, Callable[[], int]]] = [
            ("file system", lambda: plain_write(folder / "plain", held)),
            ("pages", lambda: page_write(folder / "records", held, wanted)),
        ]
        for name, work in writes[:: 1 if number % 2 else -1]:
            note(f"write, {name}", work)
            for path in (*(folder / "plain").iterdir(), *(folder / "records").iterdir()):
                path.unlink()
    tier.close(60.0)
    return rates


def ratios(rates: dict[str, list[float]]) -> dict[str, float]:
    """Medians of ours over the file system's, of the same round."""
    found = {}
    for name, measured in rates.items():
        kind, _, what = name.partition(", ")
        if what != "file system":
            beside = rates[f"{kind}, file system"]
            found[name] = statistics.median(a / b for a, b in zip(measured, beside, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: temporary)")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rates = measure(Path(folder), options.tokens, options.layers, options.rounds)
    result = {
        "median_mb_per_s": {k: round(statistics.median(v) / 1e6, 1) for k, v in rates.items()},
        "ratio_to_file_system": {k: round(v, 3) for k, v in ratios(rates).items()},
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, rate in result["median_mb_per_s"].items():
        ratio = result["ratio_to_file_system"].get(name)
        print(
            f"{name:24} {rate:9,.1f} MB/s"
            + (f"  {ratio:5.2f} of the file system's" if ratio else "")
        )


if __name__ == "__main__":
    main()
