"""The draft in the prompt, kept for its conversation while it is typed.

A key sets a timer at most; what stands then is written on the journal's thread. However the app
ends, what was typed before the last moment is there the next time.
"""

from collections.abc import Callable
from typing import Any

from ds4tui.chat.drafts import Draft, RunningApp, Waiting, keep, taken, waiting
from ds4tui.chat.store import ConversationStore
from ds4tui.tui.journal import Journal, Writing

KEEP_AFTER_S = 0.4
EMPTY = Draft()
# Under which conversation (None: one that is none yet) something stands in the prompt, and what.
Standing = tuple[int | None, Draft]


class Drafts:
    """Belongs to the UI loop. `standing` tells what is in the prompt, `later` calls something
    after seconds."""

    def __init__(
        self,
        journal: Journal,
        standing: Callable[[], Standing],
        later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._journal = journal
        self._app = RunningApp(journal.store.path)
        self._standing, self._later = standing, later
        self._is_due = False
        self._kept: Standing = (None, EMPTY)

    def changed(self) -> None:
        """Something was typed, or taken out."""
        if not self._is_due:
            self._is_due = True
            self._later(KEEP_AFTER_S, self.keep)

    def keep(self) -> None:
        """Have what stands in the prompt written, unless that is so already."""
        self._is_due = False
        if self._standing() != self._kept:
            self._journal.hand_in(self._writing())

    def last_words(self) -> Writing:
        """What keeps what stands in the prompt now, and leaves it to whoever opens the
        conversation next."""
        keep_it = self._writing()

        def write(store: ConversationStore) -> None:
            try:
                keep_it(store)
            finally:
                self.leave(store)

        return write

    def leave(self, store: ConversationStore) -> None:
        """What is kept is for whoever opens the conversation next; on the journal's thread."""
        self._app.end()

    def taken(self, store: ConversationStore, conversation_id: int | None) -> Draft:
        """The draft of a conversation; on the journal's thread. Raises StoreError."""
        return taken(store, self._app, conversation_id)

    def waiting(self, store: ConversationStore) -> dict[int, Waiting]:
        """Those of other conversations too, as `waiting`; on the journal's thread."""
        return waiting(store, self._app)

    def shown(self, conversation_id: int | None, draft: Draft) -> None:
        """Of what is kept, `draft` stands in the prompt from now on."""
        self._kept = conversation_id, draft

    def _writing(self) -> Writing:
        before, _ = self._kept
        self._kept = now, draft = self._standing()

        def write(store: ConversationStore) -> None:
            if before != now:  # a chat has become a conversation
                keep(store, self._app, before, EMPTY.message)
            keep(store, self._app, now, draft.message, draft.pastes)

        return write
