"""Finding conversations by their words; deleting them so that they can come back."""

import pytest

from ds4tui.chat.finding import AROUND_CHARS, around, delete, find, purge, restore
from ds4tui.chat.messages import Image, Message
from ds4tui.chat.store import ConversationStore
from ds4tui.errors import StoreError


def talk(store: ConversationStore, *texts: str) -> int:
    chat = store.create(texts[0]).id
    parent = None
    for text in texts:
        parent = store.add_message(chat, parent, Message("user", text))
    store.set_leaf(chat, parent)
    return chat


def test_all_words_in_any_case_and_order_must_stand_in_one_message() -> None:
    store = ConversationStore.in_memory()
    first = talk(store, "The quick Brown fox", "and a dog")
    second = talk(store, "brown bread", "ÜBERGRÖSSE 100%")
    assert find(store, "BROWN quick") == {first: "The quick Brown fox"}
    assert set(find(store, "brown")) == {first, second}
    assert find(store, "brown dog") == {} and find(store, "  ") == {}
    assert set(find(store, "übergröße")) == {second} == set(find(store, "100%"))


def test_the_newest_message_is_shown_around_what_was_found() -> None:
    store = ConversationStore.in_memory()
    chat = talk(store, "needle one", "x" * 100 + " needle\ntwo " + "y" * 100)
    shown = find(store, "needle")[chat]
    assert shown.startswith("…xxx") and "needle two" in shown and shown.endswith("yyy…")
    assert len(shown) <= len("needle") + 2 * AROUND_CHARS + 2
    assert around("needle", "needle") == "needle"


def test_what_is_deleted_is_neither_listed_nor_found_until_it_is_restored() -> None:
    store = ConversationStore.in_memory()
    chat, other = talk(store, "secret plans"), talk(store, "other")
    delete(store, chat)
    assert [c.id for c in store.list()] == [other] and find(store, "secret") == {}
    delete(store, other)
    assert store.latest() is None
    restore(store, chat)
    assert [c.id for c in store.list()] == [chat] and set(find(store, "secret")) == {chat}


def test_whoever_goes_on_with_a_deleted_conversation_brings_it_back() -> None:
    store = ConversationStore.in_memory()
    chat = talk(store, "plans")
    delete(store, chat)
    store.begin_turn(chat, store.load(chat).leaf_id, Message("user", "more"))
    assert [c.id for c in store.list()] == [chat]


def test_what_is_purged_is_gone_with_the_pictures_that_nobody_else_holds() -> None:
    store = ConversationStore.in_memory()
    kept, gone = store.create("kept").id, store.create("gone").id
    shared, own = Image(b"\x89PNG\r\n\x1a\n1"), Image(b"\x89PNG\r\n\x1a\n2")
    store.add_message(kept, None, Message("user", "", images=(shared,)))
    asked = store.add_message(gone, None, Message("user", "", images=(shared, own)))
    store.set_leaf(gone, store.add_message(gone, asked, Message("assistant", "a")))
    delete(store, gone)
    assert purge(store) == 0
    assert purge(store, older_than_s=-1) == 1
    with pytest.raises(StoreError):
        store.load(gone)
    with store.transaction() as db:
        assert db.execute("SELECT count(*) FROM attachments").fetchone()[0] == 1
    assert [c.id for c in store.list()] == [kept]
