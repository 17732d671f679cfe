"""`ds4tui cache`: the KV states on disk as conversations, for people who want their room back.

A conversation is the path from a record that nothing leans on to its root; what two of them share
(a system prompt, the turns before a fork) is stored once. Imports no mlx: no model is opened.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import xxhash

from ds4tui.cache.kventries import DiskEntry
from ds4tui.cache.kvpolicy import duration
from ds4tui.cache.kvstore import DiskTier
from ds4tui.config import Settings, size_bytes
from ds4tui.errors import StoreError, UsageError

# No model has this identity, so the tier takes nothing for its own.
_NOBODY = b"ds4tui cache"


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """`name` is the short name to call it by. `own_bytes` would be freed if it went alone,
    `nbytes` with what it shares with others. `spares_s` is what it took to compute."""

    name: str
    label: str
    what: str
    tokens: int
    nbytes: int
    own_bytes: int
    used_at: float
    created_at: float
    hits: int
    spares_s: float
    is_pinned: bool
    records: tuple[DiskEntry, ...]  # from its root on


def run(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """The exit code. Raises UsageError, StoreError or OSError."""
    what = getattr(args, "what", None) or "ls"
    if what == "prune":
        _kept_bytes(args)
    if not settings.kv_dir.is_dir():
        if hasattr(args, "name"):
            raise _unknown(args.name)
        print(f"Nothing is stored: there is no folder {settings.kv_dir}.", file=out)
        return 0
    tier = DiskTier(settings.kv_dir, settings.kv_budget_bytes, _NOBODY)
    try:
        if what not in ("ls", "show"):
            _require_writer(tier)
        return _COMMANDS[what](tier, args, out)
    finally:
        tier.close(1.0)


def stored_conversations(entries: tuple[DiskEntry, ...]) -> tuple[StoredConversation, ...]:
    """The last used first."""
    by_id = {entry.holder_id: entry for entry in entries}
    stems = {entry.stem_id for entry in entries if entry.kind == "page"}
    snapshots: dict[int | None, list[DiskEntry]] = {}
    for entry in entries:
        if entry.kind == "snapshot":
            snapshots.setdefault(entry.stem_id, []).append(entry)
    leaves = [e for e in entries if e.kind == "page" and e.holder_id not in stems]
    paths = [_path(leaf, by_id, snapshots) for leaf in leaves]
    shared: dict[int, int] = {}
    for path in paths:
        for entry in path:
            shared[entry.holder_id] = shared.get(entry.holder_id, 0) + 1
    found = [_conversation(leaf, path, shared) for leaf, path in zip(leaves, paths, strict=True)]
    return tuple(sorted(found, key=lambda c: -c.used_at))


def _path(
    leaf: DiskEntry,
    by_id: dict[int, DiskEntry],
    snapshots: dict[int | None, list[DiskEntry]],
) -> tuple[DiskEntry, ...]:
    found: list[DiskEntry] = []
    at: DiskEntry | None = leaf
    while at is not None:
        found += [*snapshots.get(at.holder_id, ()), at]
        at = by_id.get(at.stem_id) if at.stem_id is not None else None
    return tuple(reversed(found))


def _conversation(
    leaf: DiskEntry, path: tuple[DiskEntry, ...], shared: dict[int, int]
) -> StoredConversation:
    words = f"{leaf.identity.hex()} {leaf.start} {leaf.end} {leaf.created_at!r}"
    own = [entry for entry in path if shared[entry.holder_id] == 1]
    return StoredConversation(
        name=xxhash.xxh3_64_hexdigest(words.encode())[:8],
        label=leaf.label,
        what=leaf.what or next((e.what for e in reversed(path) if e.what), ""),
        tokens=leaf.end,
        nbytes=sum(entry.nbytes for entry in path),
        own_bytes=sum(entry.nbytes for entry in own),
        used_at=max(entry.used_at for entry in path),
        created_at=min(entry.created_at for entry in path),
        hits=sum(entry.hits for entry in path),
        spares_s=sum(entry.recompute_ms for entry in path if entry.kind == "page") / 1e3,
        is_pinned=leaf.is_pinned,
        records=path,
    )


# -- what there is to do -------------------------------------------------------------------------


def _ls(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    found, stats = stored_conversations(tier.entries()), tier.stats
    if getattr(args, "as_json", False):
        listed = [_as_json(each) for each in found]
        about = {"folder": stats.folder, "bytes": stats.used_bytes, "budget": stats.budget_bytes}
        print(json.dumps({**about, "conversations": listed}, indent=2), file=out)
        return 0
    print(f"{stats.folder}: {_size(stats.used_bytes)} of {_size(stats.budget_bytes)}", file=out)
    if not found:
        print("No conversation is stored.", file=out)
        return 0
    rows: list[tuple[str, ...]] = [
        ("ID", "TOKENS", "SIZE", "USED", "SPARES", "MODEL", "CONVERSATION")
    ]
    rows += [_row(each) for each in found]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (0, 5) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        print("  ".join([*cells, row[-1]]).rstrip(), file=out)
    return 0


def _row(found: StoredConversation) -> tuple[str, ...]:
    return (
        found.name,
        f"{found.tokens:,}",
        _size(found.own_bytes),
        f"{_ago(found.used_at)} ago",
        duration(found.spares_s),
        found.label or "?",
        ("pinned: " if found.is_pinned else "") + (found.what or "(unknown)"),
    )


def _show(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    found = _named(tier, args.name)
    if getattr(args, "as_json", False):
        print(json.dumps(_as_json(found), indent=2), file=out)
        return 0
    shared = found.nbytes - found.own_bytes
    pages = [entry for entry in found.records if entry.kind == "page"]
    snapshots = len(found.records) - len(pages)
    lines = [
        f"{found.name}: {found.what or '(unknown)'}",
        f"  model      {found.label or '?'}",
        f"  length     {found.tokens:,} tokens, in {len(pages)} pages"
        + (f" and {snapshots} snapshots" if snapshots else ""),
        f"  size       {_size(found.own_bytes)} of its own"
        + (f", {_size(shared)} shared with others" if shared else ""),
        f"  stored     {_ago(found.created_at)} ago, used {_ago(found.used_at)} ago",
        f"  worth      spares about {duration(found.spares_s)} of computing",
        f"  pinned     {'yes' if found.is_pinned else 'no'}",
    ]
    print("\n".join(lines), file=out)
    return 0


def _verify(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    entries = tier.entries()
    damaged = tier.verify()
    for damage in damaged:
        print(f"removed {damage.what}: {damage.message}", file=out)
    nbytes = _size(sum(entry.nbytes for entry in entries))
    print(f"{len(entries)} records, {nbytes}: {len(damaged)} damaged", file=out)
    return 1 if damaged else 0


def _prune(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    print(f"{_size(tier.prune(_kept_bytes(args)))} freed", file=out)
    return 0


def _kept_bytes(args: argparse.Namespace) -> int:
    to_bytes = size_bytes(args.to)
    if to_bytes is None:
        raise UsageError(f"--to must be a size as 5GB, not {args.to!r}.")
    return to_bytes


def _pin(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    found = _named(tier, args.name)
    tier.pin(_leaf(found))
    print(f"{found.name} is pinned: {found.what or '(unknown)'}", file=out)
    return 0


def _unpin(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    found = _named(tier, args.name)
    tier.unpin(_leaf(found))
    print(f"{found.name} is pinned no more", file=out)
    return 0


def _clear(tier: DiskTier, args: argparse.Namespace, out: TextIO) -> int:
    print(f"{_size(tier.clear(pinned=getattr(args, 'pinned', False)))} freed", file=out)
    return 0


_COMMANDS: dict[str, Callable[[DiskTier, argparse.Namespace, TextIO], int]] = {
    "ls": _ls,
    "show": _show,
    "verify": _verify,
    "prune": _prune,
    "pin": _pin,
    "unpin": _unpin,
    "clear": _clear,
}


def _leaf(found: StoredConversation) -> int:
    """The page that the conversation ends with; all before it is kept with it."""
    return next(e.holder_id for e in reversed(found.records) if e.kind == "page")


def _named(tier: DiskTier, name: str) -> StoredConversation:
    found = [c for c in stored_conversations(tier.entries()) if c.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise _unknown(name)
    raise UsageError(f"{len(found)} conversations begin with {name}.", "Give more of the ID.")


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"No stored conversation is called {name}.", "`ds4tui cache ls` shows them all."
    )


def _require_writer(tier: DiskTier) -> None:
    why_not = tier.stats.why_not
    if why_not:
        raise StoreError(
            f"Nothing can be changed in there: {why_not}.",
            "Stop the ds4tui that uses the folder, and try again.",
        )


def _as_json(found: StoredConversation) -> dict[str, Any]:
    names = (
        "name", "label", "what", "tokens", "nbytes", "own_bytes", "used_at", "created_at", "hits",
        "spares_s", "is_pinned",
    )  # fmt: skip
    return {name: getattr(found, name) for name in names} | {"records": len(found.records)}


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def _ago(then: float) -> str:
    return duration(max(0.0, time.time() - then))
