"""The branches of a stored conversation: which there are, one more answer, a copy of its beginning.

A message that was answered by nobody (its process died, or the engine failed) is in the store and
in no branch.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ds4tui.chat.messages import Message
from ds4tui.chat.store import Conversation, ConversationStore, MessageStatus, StoredMessage
from ds4tui.chat.store_rows import insert, touch
from ds4tui.errors import ConversationWentOn

WORDS_CHARS = 200  # of a message's text, for a list


@dataclass(frozen=True, slots=True)
class Node:
    """A message without its text. `words`: how that begins."""

    id: int
    parent_id: int | None
    role: str
    words: str
    says: bool  # something, or nothing although it is complete
    created_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Written:
    """A message that comes from elsewhere, as it is kept."""

    message: Message
    status: MessageStatus = "complete"
    stats: dict[str, Any] | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    """The messages that belong to a branch, oldest first, and the continuations of each (of None:
    the first messages)."""

    nodes: Mapping[int, Node]
    leaf_id: int | None
    children: Mapping[int | None, tuple[int, ...]] = field(default_factory=dict)

    def place(self, message_id: int) -> tuple[int, int]:
        """(which it is, of how many) among the continuations of its parent, from 1; (1, 1) for a
        message that is none of these."""
        node = self.nodes.get(message_id)
        if node is None:
            return 1, 1
        siblings = self.children[node.parent_id]
        return siblings.index(message_id) + 1, len(siblings)

    def path(self, message_id: int | None) -> list[int]:
        """The messages from the first one to `message_id`."""
        found = []
        while message_id is not None:
            found.append(message_id)
            message_id = self.nodes[message_id].parent_id
        return found[::-1]

    def newest_end(self, message_id: int) -> int:
        """The newest of the branches that lead through `message_id`, by its last message."""
        ends = [message_id]
        waiting = [message_id]
        while waiting:
            below = self.children.get(waiting.pop(), ())
            ends += below
            waiting += below
        return max(ends)

    def beside(self, path: Sequence[int], step: int) -> int | None:
        """The end of the branch `step` places on where `path` forks last, round and round; None
        if it never forks."""
        for message_id in reversed(path):
            which, count = self.place(message_id)
            if count > 1:
                siblings = self.children[self.nodes[message_id].parent_id]
                return self.newest_end(siblings[(which - 1 + step) % count])
        return None

    @property
    def forks(self) -> int:
        """How many branches there are beside the first one."""
        return sum(len(below) - 1 for below in self.children.values())


def tree(store: ConversationStore, conversation_id: int) -> Tree:
    """Raises StoreError."""
    with store.transaction("DEFERRED") as db:
        leaf = db.execute(
            "SELECT leaf_id FROM conversations WHERE id = ?", (conversation_id,)
        ).fetchone()
        rows = db.execute(
            "SELECT id, parent_id, role, substr(text, 1, ?),"
            " text != '' OR tool_calls != '' OR status = 'complete', created_at"
            " FROM messages WHERE conversation_id = ? ORDER BY id",
            (WORDS_CHARS, conversation_id),
        ).fetchall()
    leaf_id = leaf[0] if leaf else None
    nodes = [
        Node(id_, parent, role, words, bool(says), at)
        for id_, parent, role, words, says, at in rows
    ]
    return _tree_of(nodes, leaf_id)


def _tree_of(nodes: Iterable[Node], leaf_id: int | None) -> Tree:
    known = {node.id: node for node in nodes}
    kept: set[int] = set()
    # A parent is older than its children. An end of a branch is no question, unless it is shown.
    for node in sorted(known.values(), key=lambda n: -n.id):
        is_end = node.id == leaf_id or (node.role != "user" and node.says)
        if is_end or node.id in kept:
            kept.add(node.id)
            if node.parent_id is not None:
                kept.add(node.parent_id)
    living = {id_: node for id_, node in sorted(known.items()) if id_ in kept}
    children: dict[int | None, tuple[int, ...]] = {}
    for node in living.values():
        children[node.parent_id] = (*children.get(node.parent_id, ()), node.id)
    return Tree(living, leaf_id, children)


def begin_again(
    store: ConversationStore, conversation_id: int, question_id: int, expected_leaf: int | None
) -> int:
    """Keep one more answer to a question, empty and partial, as the leaf, before work on it
    starts; its id. Raises ConversationWentOn if the path ends elsewhere than at `expected_leaf`
    by now; nothing is kept then."""
    with store.transaction() as db:
        row = db.execute("SELECT leaf_id FROM conversations WHERE id = ?", (conversation_id,))
        found = row.fetchone()
        if found is None or found[0] != expected_leaf:
            raise ConversationWentOn
        answer = insert(db, conversation_id, question_id, Message("assistant", ""), "partial")
        _set_leaf(db, conversation_id, answer)
        store.writing.hold(answer)
    return answer


def copied(store: ConversationStore, conversation_id: int, path: Sequence[StoredMessage]) -> int:
    """A new conversation, of the messages of `path`, with the title, model, system prompt, tools
    and sampling of `conversation_id`; its id."""
    return written(store, store.load(conversation_id), path)


def written(
    store: ConversationStore, head: Conversation, path: Sequence["StoredMessage | Written"]
) -> int:
    """A new conversation like `head`, whose messages are those of `path`; its id."""
    new = store.create(head.title, head.model, head.system, head.tools)
    store.set_sampling(new.id, head.sampling)
    with store.transaction() as db:
        parent: int | None = None
        for each in path:
            parent = insert(db, new.id, parent, each.message, each.status, each.stats, each.client)
        _set_leaf(db, new.id, parent)
    return new.id


def _set_leaf(db: sqlite3.Connection, conversation_id: int, leaf_id: int | None) -> None:
    db.execute("UPDATE conversations SET leaf_id = ? WHERE id = ?", (leaf_id, conversation_id))
    touch(db, conversation_id)
