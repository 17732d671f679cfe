"""Finding stored conversations by what was said in them, and taking them out of the list.

All texts are read for each search: conversations of people are megabytes, which takes less time
than a screen needs to be drawn, and an index would be another thing to keep right.
"""

import time

from ds4tui.chat.store import ConversationStore

AROUND_CHARS = 40  # shown of a text on each side of what was found
KEPT_DELETED_S = 30 * 86_400


def find(store: ConversationStore, wanted: str) -> dict[int, str]:
    """The conversations with a message that holds all words of `wanted`, in any case, and the
    text around the first word in the newest such message. Raises StoreError."""
    words = wanted.casefold().split()
    found: dict[int, str] = {}
    if not words:
        return found
    with store.transaction("DEFERRED") as db:
        rows = db.execute(
            "SELECT m.conversation_id, m.text FROM messages m"
            " JOIN conversations c ON c.id = m.conversation_id"
            " WHERE c.deleted_at IS NULL ORDER BY m.id DESC"
        )
        for conversation_id, text in rows:
            if conversation_id not in found and _holds(text.casefold(), words):
                found[conversation_id] = around(text, words[0])
    return found


def _holds(folded: str, words: list[str]) -> bool:
    return all(word in folded for word in words)


def around(text: str, word: str) -> str:
    """`text` around the casefolded `word`, on one line."""
    # Folding changes lengths of few texts only; the place is then a little off.
    at = text.casefold().find(word)
    begin, end = max(0, at - AROUND_CHARS), at + len(word) + AROUND_CHARS
    piece = " ".join(text[begin:end].split())
    return f"{'…' if begin else ''}{piece}{'…' if end < len(text) else ''}"


def delete(store: ConversationStore, conversation_id: int) -> None:
    """Take a conversation out of the list. Until it is purged it can be restored, and whoever
    goes on with it brings it back. Raises StoreError."""
    _set_deleted(store, conversation_id, time.time())


def restore(store: ConversationStore, conversation_id: int) -> None:
    """Raises StoreError."""
    _set_deleted(store, conversation_id, None)


def purge(store: ConversationStore, older_than_s: float = KEPT_DELETED_S) -> int:
    """Remove for good what was deleted before that, with the files that nobody else holds; how
    many conversations. Raises StoreError."""
    with store.transaction() as db:
        gone = db.execute(
            "DELETE FROM conversations WHERE deleted_at < ?", (time.time() - older_than_s,)
        ).rowcount
        if gone:
            db.execute(
                "DELETE FROM attachments WHERE hash NOT IN (SELECT hash FROM message_attachments"
                " UNION SELECT hash FROM images_of_drafts)"
            )
    return gone


def _set_deleted(store: ConversationStore, conversation_id: int, at: float | None) -> None:
    with store.transaction() as db:
        db.execute("UPDATE conversations SET deleted_at = ? WHERE id = ?", (at, conversation_id))
