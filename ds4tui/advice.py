"""What a cause means in plain words, and what helps against it: for panels, -p and clients.

Keyed by the values of ds4tui.cache.causes.Cause, as decisions carry them, and by the words under
which the disk tier counts faults and evictions. Nothing here decides why something was computed
again, or what was wrong; the engine does.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """One sentence each; `help` is "" where there is nothing to do about it."""

    meaning: str
    help: str = ""


_ADVICE = {
    "reply re-serialised": Advice(
        "A reply came back in other words or another layout than it was written in.",
        "Have the client send replies back unchanged, white space included.",
    ),
    "thinking dropped": Advice(
        "Reasoning that was part of an earlier turn is left out of the prompt now.",
        "Send reasoning_content back with each reply, or switch thinking off.",
    ),
    "tool arguments reordered": Advice(
        "A tool call came back with its arguments in another order or layout.",
        "Have the client send the arguments back as the text that it received.",
    ),
    "system text changed": Advice(
        "The system prompt is another one, and all that stands behind it has to follow.",
        "Keep clocks, counters and file lists out of the system prompt, or put them at the end of "
        "the last message.",
    ),
    "tools changed": Advice(
        "Other tools are offered, or the same in another order; they stand before the messages.",
        "Offer the same tools in the same order for a whole conversation.",
    ),
    "image replaced": Advice("Another picture stands where one stood before."),
    "image removed": Advice(
        "A picture of an earlier message is not sent any more.",
        "Have the client keep earlier pictures in the conversation.",
    ),
    "early message edited": Advice(
        "A message before the last one was changed; what stands behind it is computed again.",
        "Have the client only add messages; if it shortens its history, let it do so rarely and "
        "much at once.",
    ),
    "other conversation": Advice(
        "Another conversation was asked for than those that are held.",
        "More sessions (--sessions N) keep several conversations live at once.",
    ),
    "window wrapped": Advice(
        "This model's layers see only the last tokens, and the rows behind that window are gone.",
    ),
    "snapshot evicted": Advice(
        "The snapshot that belongs there had to make room, or found none.",
        "More memory for the cache keeps more snapshots: a shorter context or fewer sessions leave "
        "more of it.",
    ),
    "branch evicted": Advice(
        "This branch was held once and had to make room.",
        "More memory for the cache keeps more branches: a shorter context or fewer sessions leave "
        "more of it.",
    ),
    "model changed": Advice(
        "Another model was opened; what the last one computed is of no use to it."
    ),
    "session poisoned": Advice(
        "An earlier failure left a state that cannot be trusted, so it was given up.",
        "The log file has the failure.",
    ),
}


def advice(cause: str | None) -> Advice | None:
    """What is known about a cause; None for none, and for one that is not known here."""
    return _ADVICE.get(cause) if cause else None


_DISK_FAULTS = {
    # of records (cache.kvformat.Fault)
    "cut": Advice("Records whose files were shorter than they say; they were removed."),
    "flipped": Advice(
        "Records whose checksum was wrong; they were removed, and what they held is computed "
        "again.",
        "If it goes on, check the disk.",
    ),
    "foreign": Advice("Files under a record's name that are no records; they were removed."),
    "version": Advice(
        "Records of another version of ds4tui; they stay, and go first when room is needed."
    ),
    "misplaced": Advice("Records under the name of others; they were removed."),
    "gone": Advice(
        "Records that others removed or changed.",
        "Keep backup and cleaning tools out of the folder.",
    ),
    "unreadable": Advice(
        "Records that the system would not read.", "Check the disk and the rights of the folder."
    ),
    "memory": Advice("Records that there was no memory to read."),
    # of storing
    "half written": Advice("Files that a process did not finish; they were removed."),
    "gap": Advice("Rows that could not be stored, because those before them were not."),
    "queue full": Advice("Records that had to wait, because the disk was slower than the model."),
    "no memory": Advice(
        "Times that there was no memory for a copy; what was left out is tried again."
    ),
    "refused": Advice("Records that were not stored, for which the notes say why."),
    "deadline": Advice("Records that there was no time to write when ds4tui ended."),
    "read-only": Advice(
        "Records that were not stored, because this process may not write in the folder.",
        "One ds4tui at a time writes in a folder; the others read.",
    ),
    "disk full": Advice("Writes that failed because the disk is full.", "Make room on the disk."),
    "write failed": Advice("Writes that the system refused.", "The log file has its reason."),
    "folder gone": Advice("Times that the folder was deleted or replaced; it was made anew."),
    "over budget": Advice(
        "Times that what is pinned, or not ours, took more than the budget.",
        "A larger --kv-disk-budget, or `ds4tui cache unpin ID`.",
    ),
    "index lost": Advice("Times that the index was damaged; it was made anew from the files."),
    "clock set back": Advice("Times that records seemed to be of the future."),
    "engine": Advice("Faults of ds4tui itself: nothing more is stored.", "The log file has it."),
}

_EVICTIONS = {
    "room": "room was needed, and they were worth least",
    "orphan": "nothing led up to them any more",
    "asked": "somebody cleared them",
}


def disk_fault(word: str) -> Advice:
    """What the disk tier counts under a word; the word itself for one that is not known here."""
    return _DISK_FAULTS.get(word, Advice(f"{word.capitalize()}."))


def eviction_words(why: str) -> str:
    """Why records went from the disk."""
    return _EVICTIONS.get(why, why)
