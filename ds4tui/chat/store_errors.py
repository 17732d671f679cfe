"""What sqlite and the system say about the conversation database, in sentences for a person."""

from ds4tui.errors import StoreError


def explain(path: str, error: Exception) -> StoreError:
    """What sqlite or the system said about `path`, as a sentence and what to do about it."""
    said = str(error).lower()
    for sign, message, hint in _EXPLANATIONS:
        if sign in said:
            return StoreError(message.format(path=path), hint.format(path=path))
    return StoreError(
        f"The conversations in {path} cannot be used: {error}.",
        "Check the file and its folder, or set DS4TUI_DATA_DIR to another folder.",
    )


_DAMAGED_HINT = "Move {path} away to start a new one; `sqlite3 FILE .recover` may save its text."
_EXPLANATIONS: tuple[tuple[str, str, str], ...] = (
    ("not a database", "{path} is damaged or is not a conversation database.", _DAMAGED_HINT),
    ("malformed", "{path} is damaged.", _DAMAGED_HINT),
    (
        "locked",
        "{path} is locked by another process.",
        "Close the other ds4tui (or whatever holds the file) and start again.",
    ),
    (
        "readonly",
        "{path} cannot be written.",
        "Make the file and its folder writable, or set DS4TUI_DATA_DIR to another folder.",
    ),
    (
        "permission denied",
        "{path} may not be opened.",
        "Make the file and its folder writable, or set DS4TUI_DATA_DIR to another folder.",
    ),
    (
        "unable to open",
        "{path} cannot be opened.",
        "Check that it is a file in a folder that you may write to, "
        "or set DS4TUI_DATA_DIR to another folder.",
    ),
    (
        "disk is full",
        "There is no room left to write {path}.",
        "Free some disk space; what is on the screen is not lost until you quit.",
    ),
    (
        "foreign key",
        "A message or conversation that {path} was asked to point at is not in it.",
        "Another process may have removed it: start a new chat.",
    ),
)
