"""The disk panel: what outlives the process, in which room, and what went wrong with it.

Pure functions of one EngineStats. Times are of this machine's clock, not "ago": nothing changes
while nothing happens.
"""

import time
from collections.abc import Sequence

from textual.content import Content

from ds4tui.advice import disk_fault, eviction_words
from ds4tui.cache.kvconversations import StoredConversation
from ds4tui.cache.kvtally import DiskStats
from ds4tui.engine.stats import EngineStats, MemoryNote
from ds4tui.tui.held import what_words
from ds4tui.tui.terminal_text import one_line
from ds4tui.tui.words import (
    QUIET,
    bar,
    clock_words,
    counted,
    cut,
    duration_words,
    hanging_row,
    percent,
    row,
    section,
    short_count,
    size_words,
)

NO_DISK = "KV states are not kept on disk (kv_disk is off): what this process holds ends with it."
NO_MODEL = "No model is open: its KV states on disk are told when it is."
NOTES_SHOWN = 8
CONVERSATIONS_SHOWN = 10
_WARN, _BAD = "$text-warning", "$text-error"
_WHEN_CELLS, _COUNT_CELLS, _SIZE_CELLS, _SPARES_CELLS = 12, 8, 10, 8
_NAMES_WIDTH = 100  # from here on there is room for what `ds4tui cache` calls them


def disk_panel(stats: EngineStats | None, width: int) -> Content:
    """All of it, for `width` cells; what matters most first."""
    if stats is None:
        return Content.styled(NO_MODEL, QUIET)
    disk = stats.disk
    if disk is None:
        return Content.styled(NO_DISK, QUIET)
    parts = [
        _room_section(disk, stats, width),
        _conversations_section(stats, width),
        _traffic_section(disk, width),
        _faults_section(disk, width),
        _notes_section(stats.notes, width),
    ]
    return Content("\n\n").join(part for part in parts if part is not None)


def disk_rows(stats: EngineStats) -> Content | None:
    """Its two or three lines in the KV panel; None without a disk."""
    disk = stats.disk
    if disk is None:
        return None
    share = percent(disk.used_bytes, disk.budget_bytes)
    lines = [row("taken", f"{size_words(disk.used_bytes)} ({share}%)")]
    if disk.pages:
        lines.append(row("stored", f"{short_count(disk.tokens)} tok · {disk.pages:,} pages"))
    if problem := storing_problem(disk):
        lines.append(Content.styled(one_line(problem), _WARN))
    elif disk.queued_bytes:
        lines.append(row("waiting", size_words(disk.queued_bytes)))
    return section("Disk", *lines)


def storing_problem(disk: DiskStats) -> str:
    """Why nothing is stored; "" if it is."""
    if disk.failed:
        return f"nothing more is stored: {disk.failed}"
    return f"nothing is stored: {disk.why_not}" if disk.why_not else ""


# -- room ----------------------------------------------------------------------------------------


def _room_section(disk: DiskStats, stats: EngineStats, width: int) -> Content:
    share = disk.used_bytes / disk.budget_bytes if disk.budget_bytes else 0.0
    words = (
        f" {size_words(disk.used_bytes)} of {size_words(disk.budget_bytes)} "
        f"({percent(disk.used_bytes, disk.budget_bytes)}%)"
    )
    lines = [
        Content.assemble(bar(share, max(8, width - len(words))), words),
        hanging_row("of it", Content(_parts_words(disk)), width),
        hanging_row("free", Content(_free_words(disk)), width),
        hanging_row("writes", _writer_words(disk, stats), width),
    ]
    if disk.folder:
        lines.append(hanging_row("folder", Content(one_line(disk.folder)), width))
    return section("Room", *lines)


def _parts_words(disk: DiskStats) -> str:
    ours = max(0, disk.used_bytes - disk.other_models_bytes - disk.stray_bytes)
    parts = [f"{size_words(ours)} of this model"]
    if disk.other_models_bytes:
        parts.append(f"{size_words(disk.other_models_bytes)} of other models")
    if disk.stray_bytes:
        parts.append(f"{size_words(disk.stray_bytes)} in files that are no records of ours")
    return " · ".join(parts)


def _free_words(disk: DiskStats) -> str:
    words = f"{size_words(disk.free_bytes)} on the disk"
    if disk.free_bytes <= disk.floor_bytes:
        return (
            f"{words}, which is below the {size_words(disk.floor_bytes)} that stay free: "
            "the folder does not grow"
        )
    return f"{words}, of which {size_words(disk.floor_bytes)} stay free"


def _writer_words(disk: DiskStats, stats: EngineStats) -> Content:
    problem = storing_problem(disk)
    if problem:
        more = "; what is there is read" if disk.why_not and disk.pages else ""
        return Content.styled(f"no: {one_line(problem)}{more}", _WARN)
    if disk.queued_bytes:
        return Content(f"yes, this process; {size_words(disk.queued_bytes)} wait to be written")
    if stats.is_storing:
        return Content("yes, this process; it looks for what is not stored yet")
    return Content("yes, this process; nothing waits")


# -- conversations -------------------------------------------------------------------------------


def _conversations_section(stats: EngineStats, width: int) -> Content:
    disk = stats.disk
    assert disk is not None
    count = stats.conversation_count or len(stats.conversations)
    title = f"Conversations: {count:,}"
    about = [counted(disk.pages, "page"), counted(disk.snapshots, "snapshot")]
    about += [counted(disk.anchors, "system prompt")] if disk.anchors else []
    about += [f"{short_count(disk.tokens)} tokens"]
    lines = [Content.styled(cut(", ".join(about), width), QUIET)]
    if not stats.conversations:
        lines = [Content.styled("None is stored yet: the next turn of some length is.", QUIET)]
        return section(title, *lines)
    head = ("id".ljust(10) if width >= _NAMES_WIDTH else "") + (
        "last used".ljust(_WHEN_CELLS)
        + "tokens".rjust(_COUNT_CELLS)
        + "size".rjust(_SIZE_CELLS)
        + "spares".rjust(_SPARES_CELLS)
        + "  conversation"
    )
    lines.append(Content.styled(cut(head, width), QUIET))
    shown = stats.conversations[:CONVERSATIONS_SHOWN]
    lines += [_conversation_line(each, width) for each in shown]
    if count > len(shown):
        more = f"and {count - len(shown):,} more: ds4tui cache ls"
        lines.append(Content.styled(cut(more, width), QUIET))
    return section(title, *lines)


def _conversation_line(found: StoredConversation, width: int) -> Content:
    before = (found.name.ljust(10) if width >= _NAMES_WIDTH else "") + (
        _day_words(found.used_at).ljust(_WHEN_CELLS)
        + short_count(found.tokens).rjust(_COUNT_CELLS)
        + size_words(found.own_bytes).rjust(_SIZE_CELLS)
        + duration_words(found.spares_s).rjust(_SPARES_CELLS)
        + "  "
    )
    pin = "pinned · " if found.is_pinned else ""
    model = "" if found.is_ours else f"{one_line(found.label) or 'another model'} · "
    broken = "of no use, its beginning is gone · " if found.is_broken else ""
    about = cut(what_words(found.what) or "(unknown)", 200)
    return Content.assemble(
        (before, "" if found.is_ours else QUIET),
        (pin, "$text-accent"),
        (broken, _WARN),
        (model, QUIET),
        (about, "" if found.is_ours else QUIET),
    )[:width]


def _day_words(time_s: float) -> str:
    """`12-01 14:03`, by this machine's clock."""
    return time.strftime("%m-%d %H:%M", time.localtime(time_s))


# -- what was done -------------------------------------------------------------------------------


def _traffic_section(disk: DiskStats, width: int) -> Content:
    rows = [
        ("loads", _loads_words(disk)),
        ("stores", _stores_words(disk)),
        ("misses", f"{counted(disk.misses, 'prompt')} of which nothing was stored"),
        ("evicted", _evicted_words(disk)),
        ("pins", counted(disk.pinned, "conversation") if disk.pinned else "none"),
    ]
    lines = [hanging_row(label, Content(words), width) for label, words in rows]
    return section("Since the start", *lines)


def _loads_words(disk: DiskStats) -> str:
    if not disk.hits:
        return "none"
    amount = (
        f"{disk.hits:,} records, {disk.loaded_tokens:,} tokens, {size_words(disk.loaded_bytes)}"
    )
    return amount + _rate(disk.last_load_bytes_per_s, disk.load_bytes_per_s)


def _stores_words(disk: DiskStats) -> str:
    if not disk.stores:
        return "none"
    snapshots = disk.stored_snapshot_bytes
    of_it = f" ({size_words(snapshots)} of snapshots)" if snapshots else ""
    merged = f"; {size_words(disk.merged_bytes)} more to merge pages" if disk.merges else ""
    amount = f"{disk.stores:,} records, {size_words(disk.stored_bytes)}{of_it}{merged}"
    return amount + _rate(disk.last_store_bytes_per_s, disk.store_bytes_per_s)


def _rate(last_per_s: float, per_s: float) -> str:
    if not last_per_s:
        return ""
    return f"; the last at {size_words(last_per_s)}/s, all at {size_words(per_s)}/s"


def _evicted_words(disk: DiskStats) -> str:
    if not disk.evictions:
        return "nothing"
    return "; ".join(f"{count:,}: {eviction_words(why)}" for why, count in disk.evictions)


def _faults_section(disk: DiskStats, width: int) -> Content:
    if not disk.faults:
        return section("Faults", Content.styled("none", QUIET))
    lines = []
    for word, count in disk.faults:
        told = disk_fault(one_line(word))
        help_ = f" {told.help}" if told.help else ""
        lines.append(Content.assemble((f"{count:,} × {one_line(word)}", _WARN)))
        words = Content.assemble(told.meaning, (help_, QUIET))
        lines.append(hanging_row("", words, width))
    return section("Faults", *lines)


def _notes_section(notes: Sequence[MemoryNote], width: int) -> Content | None:
    told = [note for note in notes if note.text.startswith("disk: ")][-NOTES_SHOWN:]
    if not told:
        return None
    lines = [
        hanging_row(clock_words(n.time_s), Content(one_line(n.text.removeprefix("disk: "))), width)
        for n in reversed(told)
    ]
    return section("Lately", *lines)
