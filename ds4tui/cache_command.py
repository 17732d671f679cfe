"""`ds4tui cache`: the KV states on disk as conversations, for people who want their room back.

`ls` and `show` only look, whoever uses the folder; the others need it for themselves. Imports no
mlx: no model is opened.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from ds4tui.cache.kvconversations import StoredConversation, as_json, named, stored_conversations
from ds4tui.cache.kvpolicy import duration
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.kvtally import DiskStats
from ds4tui.chat.saved_replies import SavedReplies
from ds4tui.config import Settings
from ds4tui.config_values import size_bytes
from ds4tui.errors import StoreError, UsageError
from ds4tui.tui.terminal_text import one_line

# No model has this identity, so the tier takes nothing for its own.
_NOBODY = b"ds4tui cache"

_LOOKS_ONLY = ("ls", "show")
# Of what happened: the rest is in the log of who uses the folder.
_LINES_SHOWN = 20
_TOLD = ("evicted", "damaged", "removed", "gone", "over budget", "index", "folder")


class _Folder:
    """The folder, open, and how to answer."""

    def __init__(
        self, tier: DiskTier, replies: Path, args: argparse.Namespace, out: TextIO
    ) -> None:
        self.tier, self.replies, self.args, self._out = tier, replies, args, out
        self.is_json: bool = getattr(args, "as_json", False)

    @property
    def conversations(self) -> tuple[StoredConversation, ...]:
        return stored_conversations(self.tier.entries())

    def tell(self, value: dict[str, Any], *lines: str) -> None:
        """As lines, or with --json as `value`."""
        for line in [json.dumps(value, indent=2)] if self.is_json else lines:
            print(line, file=self._out)

    def tell_notes(self) -> None:
        """What the folder has lost meanwhile is never left unsaid."""
        notes = self.tier.drain_notes()
        told = [f"{note.kind}: {note.reason}" for note in notes if note.kind in _TOLD]
        out = sys.stderr if self.is_json else self._out
        for line in _shortened(told):
            print(line, file=out)


def run(settings: Settings, args: argparse.Namespace, out: TextIO) -> int:
    """The exit code. Raises UsageError, StoreError or OSError."""
    what = getattr(args, "what", None) or "ls"
    if what == "prune":
        _kept_bytes(args)
    path = settings.kv_dir
    if not path.is_dir():
        if path.exists():
            raise StoreError(f"{path} is no folder.", "Choose one with --kv-disk-dir.")
        if hasattr(args, "name"):
            raise _unknown(args.name)
        if what == "clear" and settings.replies_path.exists():
            replies = SavedReplies(settings.replies_path, b"")
            replies.clear()
            replies.close()
        nothing = {"folder": str(path), "bytes": 0, "conversations": []}
        said = f"Nothing is stored: there is no folder {path}."
        print(json.dumps(nothing, indent=2) if hasattr(args, "as_json") else said, file=out)
        return 0
    looks_only = what in _LOOKS_ONLY
    budget = settings.kv_budget_bytes
    tier = DiskTier(path, budget, _NOBODY, may_write=not looks_only, shrinks=False)
    with _opened(tier):
        folder = _Folder(tier, settings.replies_path, args, out)
        if not looks_only and what != "verify":
            _require_writer(tier.stats)
        folder.tell_notes()
        return _COMMANDS[what](folder)


@contextmanager
def _opened(tier: DiskTier) -> Iterator[DiskTier]:
    try:
        yield tier
    finally:
        tier.close(1.0)


# -- what there is to do -------------------------------------------------------------------------


def _ls(folder: _Folder) -> int:
    found, stats = folder.conversations, folder.tier.stats
    about = {"folder": stats.folder, "bytes": stats.used_bytes, "budget": stats.budget_bytes}
    lines = [f"{stats.folder}: {_size(stats.used_bytes)} of {_size(stats.budget_bytes)}"]
    lines += _table(found) if found else ["No conversation is stored."]
    if stats.stray_bytes:
        lines.append(
            f"Another {_size(stats.stray_bytes)} are in files that this ds4tui cannot use; "
            "records of other versions go first when room is needed."
        )
    folder.tell({**about, "conversations": [_listed(each) for each in found]}, *lines)
    return 0


def _table(found: Sequence[StoredConversation]) -> list[str]:
    heads = ("ID", "TOKENS", "OWN", "SHARED", "LAST USED", "SPARES", "MODEL", "CONVERSATION")
    labels = _model_names(found)
    rows = [heads, *(_row(each, labels) for each in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if head in ("ID", "MODEL") else cell.rjust(width)
            for head, cell, width in zip(heads, row, widths, strict=False)
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def _model_names(found: Iterable[StoredConversation]) -> dict[str, str]:
    """By model_id: the label, and the id where other weights or settings have the same label."""
    labels = {each.model_id: one_line(each.label) or "?" for each in found}
    names = list(labels.values())
    return {
        model_id: f"{label} ({model_id})" if names.count(label) > 1 else label
        for model_id, label in labels.items()
    }


def _row(found: StoredConversation, labels: dict[str, str]) -> tuple[str, ...]:
    return (
        found.name,
        f"{found.tokens:,}",
        _size(found.own_bytes),
        _size(found.shared_bytes) if found.shared_bytes else "-",
        _ago(found.used_at),
        duration(found.spares_s),
        labels[found.model_id],
        ("pinned · " if found.is_pinned else "") + _about(found),
    )


def _about(found: StoredConversation) -> str:
    """`you: Why is the sky blue?`."""
    who, colon, words = one_line(found.what).partition(": ")
    told = f"{'you' if who == 'person' else who}{colon}{words}" if found.what else "(unknown)"
    return told + (" (of no use: its beginning is gone)" if found.is_broken else "")


def _show(folder: _Folder) -> int:
    found = _named(folder)
    snapshots = f" and {_counted(found.snapshots, 'snapshot')}" if found.snapshots else ""
    shared = f", {_size(found.shared_bytes)} shared with others" if found.shared_bytes else ""
    hits = f", loaded {_counted(found.hits, 'time')}" if found.hits else ""
    label = one_line(found.label) or "?"
    folder.tell(
        _listed(found),
        f"{found.name}: {_about(found)}",
        f"  model      {label}, weights and settings {found.model_id}",
        f"  length     {found.tokens:,} tokens, in {_counted(found.pages, 'page')}{snapshots}",
        f"  size       {_size(found.own_bytes)} of its own{shared}",
        f"  stored     {_ago(found.created_at)}",
        f"  last used  {_ago(found.used_at)}{hits}",
        f"  worth      spares about {duration(found.spares_s)} of computing",
        f"  pinned     {'yes: it stays whatever room is needed' if found.is_pinned else 'no'}",
    )
    return 0


def _verify(folder: _Folder) -> int:
    tier = folder.tier
    entries, stats = tier.entries(), tier.stats
    damaged = tier.verify(_progress(sys.stderr))
    nbytes = sum(entry.nbytes for entry in entries)
    removed = "found" if stats.why_not else "removed"
    folder.tell(
        {
            "records": len(entries),
            "bytes": nbytes,
            "damaged": [
                {"file": each.what, "fault": each.fault, "message": each.message}
                for each in damaged
            ],
            "removed": not stats.why_not,
        },
        *(f"{removed} {each.what}: {each.message}" for each in damaged),
        f"{_counted(len(entries), 'record')}, {_size(nbytes)}: {len(damaged) or 'none'} damaged",
        *([f"Nothing was removed: {stats.why_not}."] if damaged and stats.why_not else []),
    )
    return 1 if damaged else 0


def _progress(err: TextIO) -> Callable[[int, int], None]:
    """Reading gigabytes takes a while; a terminal is told how far it is."""

    def tell(done: int, total: int) -> None:
        end = "\r\x1b[K" if done >= total else ""
        print(f"\r{_size(done)} of {_size(total)} read{end}", end="", file=err, flush=True)

    return tell if err.isatty() else lambda done, total: None


def _prune(folder: _Folder) -> int:
    before = folder.conversations
    _tell_freed(folder, before, folder.tier.prune(_kept_bytes(folder.args)))
    return 0


def _clear(folder: _Folder) -> int:
    before = folder.conversations
    pinned = getattr(folder.args, "pinned", False)
    replies = SavedReplies(folder.replies, b"")
    folder.tier.also_clears = replies.clear if folder.replies.exists() else lambda: None
    try:
        freed = folder.tier.clear(pinned=pinned)
    finally:
        replies.close()
    _tell_freed(folder, before, freed)
    return 0


def _tell_freed(folder: _Folder, before: Sequence[StoredConversation], freed: int) -> None:
    folder.tier.drain_notes()  # told here as conversations
    after, stats = folder.conversations, folder.tier.stats
    left = {each.name for each in after}
    gone = [each for each in before if each.name not in left]
    shown = _shortened([f"gone or shortened: {each.name}  {_about(each)}" for each in gone])
    pins = sum(each.is_pinned for each in after)
    stays = _counted(len(after), "conversation") if after else "Nothing"
    folder.tell(
        {
            "freed_bytes": freed,
            "bytes": stats.used_bytes,
            "gone": [each.name for each in gone],
            "conversations": [_listed(each) for each in after],
        },
        *shown,
        f"{_size(freed)} freed. {stays} left{f', {pins} pinned' if pins else ''}: "
        f"{_size(stats.used_bytes)} of {_size(stats.budget_bytes)}.",
    )


def _kept_bytes(args: argparse.Namespace) -> int:
    to_bytes = size_bytes(args.to)
    if to_bytes is None:
        raise UsageError(f"--to must be a size as 5GB, with its unit, not {args.to!r}.")
    return to_bytes


def _pin(folder: _Folder) -> int:
    found = _named(folder)
    folder.tier.pin(found.leaf_id)
    folder.tell(_listed(found) | {"is_pinned": True}, f"{found.name} is pinned: {_about(found)}")
    return 0


def _unpin(folder: _Folder) -> int:
    found = _named(folder)
    folder.tier.unpin(found.leaf_id)
    said = "is pinned no more" if found.is_pinned else "was not pinned"
    folder.tell(_listed(found) | {"is_pinned": False}, f"{found.name} {said}: {_about(found)}")
    return 0


_COMMANDS: dict[str, Callable[[_Folder], int]] = {
    "ls": _ls,
    "show": _show,
    "verify": _verify,
    "prune": _prune,
    "pin": _pin,
    "unpin": _unpin,
    "clear": _clear,
}


def _named(folder: _Folder) -> StoredConversation:
    name = folder.args.name
    found = named(folder.conversations, name)
    if len(found) == 1:
        return found[0]
    if not found:
        raise _unknown(name)
    ids = ", ".join(each.name for each in found[:5])
    raise UsageError(
        f"{len(found)} conversations begin with {name}: {ids}.", "Give more of the ID."
    )


def _unknown(name: str) -> UsageError:
    shown = name if name.isalnum() else repr(name)
    return UsageError(
        f"No stored conversation is called {shown}.", "`ds4tui cache ls` shows them all."
    )


def _require_writer(stats: DiskStats) -> None:
    if not stats.why_not:
        return
    is_in_use = "another" in stats.why_not
    raise StoreError(
        f"Nothing can be changed in {stats.folder}: {stats.why_not}.",
        "Quit that ds4tui and try again, or ask its server: POST /v1/cache/pin, /v1/cache/clear."
        if is_in_use
        else "Make the folder writable for you, or choose another one with --kv-disk-dir.",
    )


def _listed(found: StoredConversation) -> dict[str, Any]:
    """Without what only an open model can tell."""
    return {name: value for name, value in as_json(found).items() if name != "is_ours"}


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - _LINES_SHOWN
    return lines if more <= 0 else [*lines[:_LINES_SHOWN], f"and {more} more"]


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def _size(nbytes: int) -> str:
    value, unit = float(nbytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def _ago(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    return "just now" if seconds < 10 else f"{duration(seconds)} ago"
