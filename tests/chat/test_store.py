import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.attachments import media_type
from ds4tui.chat.messages import Image, Message, ToolCall
from ds4tui.chat.migrations import MIGRATIONS, migrate
from ds4tui.chat.store import STATUSES, ConversationStore, title_of
from ds4tui.chat.store_errors import explain
from ds4tui.errors import ConversationWentOn, StoreError
from tests.scale import scaled

Opener = Callable[..., ConversationStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "conversations.db"


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens stores and closes them after the test."""
    with ExitStack() as stack:

        def open_one(path: Path, **options: float) -> ConversationStore:
            store = ConversationStore(path, **options)
            stack.callback(store.close)
            return store

        yield open_one


def user(text: str) -> Message:
    return Message("user", text)


def test_a_conversation_survives_the_process_with_ids_status_and_stats(
    opened: Opener, path: Path
) -> None:
    store = opened(path)
    chat = store.create("hello", model="smollm2", system="Be brief.")
    asked, answered = store.begin_turn(chat.id, None, user("Héllo 🌍\n\0"))
    ids = (1, 2, 49_151)
    store.update_message(answered, "Hi.", ids, "complete", {"usage": {"ttft_ms": 1.5}})
    store.close()

    again = opened(path)
    latest = again.latest()
    assert latest is not None and (latest.title, latest.messages) == ("hello", 2)
    loaded = again.load(latest.id)
    assert (loaded.model, loaded.system, loaded.leaf_id) == ("smollm2", "Be brief.", answered)
    assert [m.message for m in loaded.path] == [
        user("Héllo 🌍\n\0"),
        Message("assistant", "Hi.", ids),
    ]
    assert loaded.path[0].id == asked and loaded.path[1].parent_id == asked
    assert loaded.path[1].status == "complete"
    assert loaded.path[1].stats == {"usage": {"ttft_ms": 1.5}}


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CALLS = st.lists(st.builds(ToolCall, ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=3).map(tuple)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    text=ANY_TEXT,
    sampled_ids=st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
    reasoning=ANY_TEXT,
    tool_calls=CALLS,
    tool_call_id=ANY_TEXT,
    name=ANY_TEXT,
)


@settings(max_examples=scaled(60), deadline=None)
@given(added=MESSAGES, reasoning=ANY_TEXT, calls=CALLS)
def test_messages_come_back_with_reasoning_calls_and_results(
    added: Message, reasoning: str, calls: tuple[ToolCall, ...]
) -> None:
    store = ConversationStore.in_memory()
    chat = store.create()
    first = store.add_message(chat.id, None, added)
    _, answered = store.begin_turn(chat.id, first, user("q"))
    store.update_message(answered, "a", (1,), "complete", None, reasoning, calls)
    path = store.load(chat.id).path
    store.close()
    assert path[0].message == added
    assert path[2].message == Message("assistant", "a", (1,), reasoning, calls)


def test_a_question_is_kept_before_its_answer_exists(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create()
    store.begin_turn(chat.id, None, user("q"))
    found = opened(path).load(chat.id).path
    assert [(m.message.text, m.status) for m in found] == [("q", "complete"), ("", "partial")]


def test_the_leaf_chooses_among_branches_and_none_is_before_all(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create()
    root = store.add_message(chat.id, None, user("root"))
    left = store.add_message(chat.id, root, user("left"))
    right = store.add_message(chat.id, root, user("right"))
    other_root = store.add_message(chat.id, None, user("other root"))

    def texts() -> list[str]:
        return [m.message.text for m in store.load(chat.id).path]

    assert texts() == []
    store.set_leaf(chat.id, left)
    assert texts() == ["root", "left"]
    store.set_leaf(chat.id, right)
    assert texts() == ["root", "right"]
    store.set_leaf(chat.id, None)
    assert texts() == []
    assert [m.id for m in store.children(root, chat.id)] == [left, right]
    assert [m.id for m in store.children(None, chat.id)] == [root, other_root]


def test_parents_and_leaves_of_another_conversation_are_refused_and_nothing_is_kept(
    opened: Opener,
    path: Path,
) -> None:
    store = opened(path)
    one, two = store.create(), store.create()
    foreign = store.add_message(one.id, None, user("one"))
    with pytest.raises(StoreError, match="not in it"):
        store.add_message(two.id, foreign, user("two"))
    with pytest.raises(StoreError, match="not in it"):
        store.set_leaf(two.id, foreign)
    with pytest.raises(StoreError, match="not in it"):
        store.begin_turn(two.id, foreign, user("two"))
    assert store.load(two.id).leaf_id is None
    assert store.children(None, two.id) == ()


def test_what_does_not_exist_is_named(opened: Opener, path: Path) -> None:
    store = opened(path)
    with pytest.raises(StoreError, match="no conversation 7"):
        store.load(7)
    with pytest.raises(StoreError, match="no conversation 7"):
        store.rename(7, "x")
    with pytest.raises(StoreError, match="no message 9"):
        store.update_message(9, "", None, "complete", None)
    with pytest.raises(ValueError, match="status"):
        store.add_message(store.create().id, None, user("x"), "done")  # type: ignore[arg-type]
    assert store.latest() is None and store.list() == ()


def test_the_list_has_the_last_used_first_and_hides_empty_ones(opened: Opener, path: Path) -> None:
    store = opened(path)
    chats = [store.create(f"chat {i}") for i in range(3)]
    store.create("empty")
    for chat in chats:
        store.add_message(chat.id, None, user("x"))
    store.add_message(chats[1].id, None, user("again"))
    store.rename(chats[0].id, "renamed")  # a new name is no use of it
    assert [(c.title, c.messages) for c in store.list()] == [
        ("chat 1", 2),
        ("chat 2", 1),
        ("renamed", 1),
    ]
    assert [c.title for c in store.list(limit=1, offset=1)] == ["chat 2"]


def test_images_come_back_at_their_places_with_the_message(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create()
    shot, again = Image(b"red", 0, "shot.png"), Image(b"red", 4)
    _, answered = store.begin_turn(
        chat.id, None, Message("user", "look", images=(shot, Image(b"blue", 2), again))
    )
    result = Message("tool", "", tool_call_id="c1", images=(Image(b"green"),))
    told = store.add_message(chat.id, answered, result)
    store.set_leaf(chat.id, told)
    store.close()

    store = opened(path)
    first, reply, last = (m.message for m in store.load(chat.id).path)
    assert first.images == (shot, Image(b"blue", 2), again)
    assert first.images[0].data is first.images[2].data  # read once
    assert reply.images == () and last == result
    assert [m.message.images for m in store.children(None, chat.id)] == [first.images]


def test_files_of_images_are_kept_once(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create()
    png = b"\x89PNG\r\n\x1a\n" + bytes(9)
    for _ in range(3):
        store.add_message(chat.id, None, Message("user", "", images=(Image(png), Image(b"?"))))
    store.close()
    with sqlite3.connect(path) as db:
        kinds = db.execute("SELECT media_type FROM attachments ORDER BY media_type").fetchall()
    db.close()
    assert kinds == [("application/octet-stream",), ("image/png",)]


def test_the_kind_of_a_picture_file_is_told_by_how_it_begins() -> None:
    webp, heic = b"RIFF\0\0\0\0WEBPVP8 ", b"\0\0\0\x18ftypheic"
    files = (b"\xff\xd8\xff\xe0", b"GIF89a", b"BM\0", b"MM\0*", webp, heic, b"")
    kinds = "jpeg gif bmp tiff webp heic".split()
    expected = [*(f"image/{kind}" for kind in kinds), "application/octet-stream"]
    assert [media_type(data) for data in files] == expected


def test_lone_surrogates_do_not_break_the_journal(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create(title="\ud800")
    message = store.add_message(chat.id, None, user("a\udc80b"))
    store.set_leaf(chat.id, message)
    assert store.load(chat.id).path[0].message.text == "a?b"


# The tree, as a history of random calls against a plain model of it

_step = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 50), st.text(max_size=8)),
    st.tuples(st.just("turn"), st.integers(0, 50), st.text(max_size=8)),
    st.tuples(st.just("leaf"), st.integers(0, 50), st.just("")),
    st.tuples(st.just("update"), st.integers(0, 50), st.text(max_size=8)),
    st.tuples(st.just("reopen"), st.just(0), st.just("")),
)


@given(steps=st.lists(_step, max_size=30))
@settings(max_examples=scaled(60), deadline=None)
def test_any_history_reads_back_as_the_tree_it_made(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, str]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "c.db"
    store = ConversationStore(path)
    chat = store.create().id
    parents: dict[int, int | None] = {}
    texts: dict[int, str] = {}
    leaf: int | None = None

    def node(pick: int) -> int | None:
        return ([None, *parents])[pick % (len(parents) + 1)]

    for step, pick, text in steps:
        text = text.encode("utf-8", "replace").decode()
        where = node(pick)
        if step == "add":
            new = store.add_message(chat, where, user(text))
            parents[new], texts[new] = where, text
        elif step == "turn":
            asked, answered = store.begin_turn(chat, where, user(text))
            parents |= {asked: where, answered: asked}
            texts |= {asked: text, answered: ""}
            leaf = answered
        elif step == "leaf":
            store.set_leaf(chat, where)
            leaf = where
        elif step == "update" and where is not None:
            store.update_message(where, text, (len(text),), "partial", None)
            texts[where] = text
        elif step == "reopen":
            store.close()
            store = ConversationStore(path)

    expected: list[int] = []
    at = leaf
    while at is not None:
        expected.insert(0, at)
        at = parents[at]
    loaded = store.load(chat)
    assert [m.id for m in loaded.path] == expected
    assert [m.message.text for m in loaded.path] == [texts[i] for i in expected]
    for id_ in [None, *parents]:
        assert [m.id for m in store.children(id_, chat)] == [
            child for child, parent in parents.items() if parent == id_
        ]
    store.close()


# Migrations


def test_every_shipped_shape_ends_as_the_newest_one(opened: Opener, tmp_path: Path) -> None:
    def shape(db_path: Path) -> list[tuple[str, ...]]:
        db = sqlite3.connect(db_path)
        rows = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 2").fetchall()
        db.close()
        return rows

    shapes = []
    for shipped in range(len(MIGRATIONS) + 1):
        db_path = tmp_path / f"{shipped}.db"
        if shipped:
            db = sqlite3.connect(db_path, isolation_level=None)
            migrate(db, MIGRATIONS[:shipped])
            db.execute("PRAGMA application_id = 0x64733474")
            db.close()
        opened(db_path).close()
        shapes.append(shape(db_path))
    assert all(s == shapes[0] for s in shapes)


def test_attachments_of_an_older_version_are_images_of_their_message(
    opened: Opener, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, MIGRATIONS[:4])
    db.execute("PRAGMA application_id = 0x64733474")
    db.execute("INSERT INTO conversations VALUES (1, '', '', '', NULL, 0, 0)")
    db.execute(
        "INSERT INTO messages (id, conversation_id, role, text, status, created_at)"
        " VALUES (7, 1, 'user', 'look', 'complete', 0)"
    )
    db.execute("INSERT INTO attachments VALUES ('aa', 'image/png', x'0102', 0)")
    db.execute("INSERT INTO message_attachments VALUES (7, 0, 'aa')")
    db.close()
    [kept] = opened(path).children(None, 1)
    assert kept.message == Message("user", "look", images=(Image(b"\x01\x02"),))


def test_names_of_migrations_are_in_order_and_unique() -> None:
    names = [name for name, _ in MIGRATIONS]
    assert names == sorted(set(names))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_a_database_of_a_newer_version_is_left_alone(opened: Opener, path: Path) -> None:
    opened(path).close()
    db = sqlite3.connect(path)
    db.execute("INSERT INTO migrations VALUES ('0999_future', 0)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer ds4tui.*0999_future") as caught:
        opened(path)
    assert str(path) in caught.value.message and "Update" in caught.value.hint
    assert path.read_bytes() == before


# What sqlite objects to, as sentences


def test_damaged_and_foreign_files_are_refused_and_not_touched(opened: Opener, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database, " * 100)
    with pytest.raises(StoreError, match="damaged or is not a conversation database") as caught:
        opened(path)
    assert str(path) in caught.value.message and "Move" in caught.value.hint
    assert path.read_bytes().startswith(b"this is no database")

    foreign = path.with_name("foreign.db")
    db = sqlite3.connect(foreign)
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    with pytest.raises(StoreError, match="another program"):
        opened(foreign)


def test_a_file_damaged_in_the_middle_is_an_error_in_words(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create()
    for i in range(200):
        store.add_message(chat.id, None, user("x" * 500 + str(i)))
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 * 2 :] = b"\xa5" * (len(content) - 4096 * 2)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        opened(path).children(None, chat.id)


def test_a_locked_file_is_named(opened: Opener, path: Path) -> None:
    store = opened(path, busy_timeout_s=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked by another process"):
        store.create()
    with pytest.raises(StoreError, match="locked by another process"):
        opened(path, busy_timeout_s=0.05)
    other.execute("ROLLBACK")
    other.close()
    assert store.create().id == 1  # the store is usable again


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (sqlite3.OperationalError("attempt to write a readonly database"), "cannot be written"),
        (sqlite3.OperationalError("unable to open database file"), "cannot be opened"),
        (sqlite3.OperationalError("database or disk is full"), "no room left"),
        (PermissionError(13, "Permission denied", "c.db"), "may not be opened"),
        (sqlite3.OperationalError("something new"), "something new"),
    ],
)
def test_every_objection_names_the_file_and_what_to_do(error: Exception, words: str) -> None:
    found = explain("c.db", error)
    assert words in found.message and "c.db" in found.message and found.hint


def test_a_read_only_database_is_refused(
    opened: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(path).close()
    real = sqlite3.connect

    def read_only(name: str, **options: object) -> sqlite3.Connection:
        return real(f"file:{name}?mode=ro", uri=True, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(sqlite3, "connect", read_only)
    with pytest.raises(StoreError, match="cannot be written"):
        opened(path)


def test_a_folder_that_cannot_be_made_is_an_error_in_words(opened: Opener, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be used") as caught:
        opened(tmp_path / "file" / "c.db")
    assert "DS4TUI_DATA_DIR" in caught.value.hint


def test_memory_stands_in_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "c.db").write_bytes(b"no database" * 100)
    store = ConversationStore.open_or_memory(tmp_path / "c.db")
    assert store.problem is not None and not store.keeps
    chat = store.create("works")
    store.add_message(chat.id, None, user("x"))
    assert [c.title for c in store.list()] == ["works"]
    good = ConversationStore.open_or_memory(tmp_path / "good.db")
    assert good.problem is None and good.keeps
    store.close()
    good.close()


def test_a_closed_store_says_so(opened: Opener, path: Path) -> None:
    store = opened(path)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.create()


# Threads and sudden death


def test_many_threads_and_two_stores_lose_nothing(opened: Opener, path: Path) -> None:
    stores = [opened(path), opened(path)]
    chat = stores[0].create().id
    errors: list[Exception] = []

    def write(number: int) -> None:
        try:
            for i in range(10):
                stores[number % 2].add_message(chat, None, user(f"{number}:{i}"))
        except StoreError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = {m.message.text for m in stores[1].children(None, chat)}
    assert found == {f"{n}:{i}" for n in range(6) for i in range(10)}


def test_what_was_journalled_survives_kill_9(opened: Opener, path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, sys
        from ds4tui.chat.messages import Message
        from ds4tui.chat.store import ConversationStore
        store = ConversationStore(sys.argv[1])
        chat = store.create("t")
        asked, answered = store.begin_turn(chat.id, None, Message("user", "question"))
        store.update_message(answered, "half an ans", (5, 6), "partial", None)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -9
    store = opened(path)
    latest = store.latest()
    assert latest is not None
    loaded = store.load(latest.id)
    assert [(m.message.text, m.status) for m in loaded.path] == [
        ("question", "complete"),
        ("half an ans", "partial"),
    ]
    assert loaded.path[1].message.sampled_ids == (5, 6)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("  first\tline \nsecond", "first line"),
        ("\n \n third", "third"),
        ("", ""),
        ("x" * 100, "x" * 79 + "…"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title_of(text) == title


def test_every_status_can_be_stored(opened: Opener, path: Path) -> None:
    store = opened(path)
    chat = store.create()
    for status in STATUSES:
        store.add_message(chat.id, None, user(status), status)  # type: ignore[arg-type]
    assert [m.status for m in store.children(None, chat.id)] == list(STATUSES)


def test_a_leaf_is_replaced_only_where_nobody_moved_it(opened: Opener, path: Path) -> None:
    mine, other = opened(path), opened(path)
    chat = mine.create()
    first = mine.begin_turn(chat.id, None, user("q"), expected_leaf=None)
    other_turn = other.begin_turn(chat.id, first[1], user("theirs"), expected_leaf=first[1])
    with pytest.raises(ConversationWentOn):
        mine.begin_turn(chat.id, first[1], user("mine"), expected_leaf=first[1])
    assert not mine.replace_leaf(chat.id, first[1], None)
    assert [m.message.text for m in mine.load(chat.id).path] == ["q", "", "theirs", ""]
    assert mine.replace_leaf(chat.id, other_turn[1], first[1])
    assert mine.load(chat.id).leaf_id == first[1]


def test_what_is_new_behind_a_message_is_told_and_whether_it_is_still_shown(
    opened: Opener, path: Path
) -> None:
    mine, other = opened(path), opened(path)
    chat = mine.create()
    asked, answered = mine.begin_turn(chat.id, None, user("q"))
    version = mine.version
    assert mine.after(chat.id, answered).messages == () and mine.version == version
    other.begin_turn(chat.id, answered, user("theirs"))
    assert mine.version != version
    end = mine.after(chat.id, answered)
    assert end.is_known and [m.message.text for m in end.messages] == ["theirs", ""]
    assert end.leaf_id == end.messages[-1].id
    other.set_leaf(chat.id, asked)
    end = mine.after(chat.id, answered)
    assert not end.is_known and [m.message.text for m in end.messages] == ["q"]
