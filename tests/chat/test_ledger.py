"""Requests of agents become conversations: joined where they go on, branched where they fork."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.ledger import Asked, ConversationLedger, Joined, ReplySoFar, title_for
from ds4tui.chat.messages import Image, Message, Tool, ToolCall
from ds4tui.chat.store import ConversationStore
from ds4tui.errors import StoreError
from tests.scale import scaled


def user(text: str) -> Message:
    return Message("user", text)


def said(text: str, *calls: ToolCall) -> Message:
    return Message("assistant", text, tool_calls=calls)


class Bench:
    """A store, its ledger, and what an agent does with them."""

    def __init__(self, store: ConversationStore) -> None:
        self.store = store
        self.ledger = ConversationLedger(store)

    def ask(self, *messages: Message, client: str = "agent", tools: Sequence[Tool] = ()) -> Joined:
        return self.ledger.join(Asked(messages, client, "model", tuple(tools)))

    def turn(self, *messages: Message, reply: Message) -> Joined:
        """A request and its whole reply."""
        joined = self.ask(*messages)
        whole = ReplySoFar(reply.text, "", reply.tool_calls, None, "complete")
        self.ledger.note(joined, whole)
        return joined

    def shown(self, conversation_id: int) -> list[str]:
        return [m.message.text for m in self.store.load(conversation_id).path]


@pytest.fixture
def bench() -> Iterator[Bench]:
    one = Bench(ConversationStore.in_memory())
    yield one
    one.ledger.close()
    one.store.close()


def test_a_history_that_goes_on_is_one_conversation(bench: Bench) -> None:
    system = Message("system", "Be brief.")
    first = bench.turn(system, user("a"), reply=said("A"))
    second = bench.turn(system, user("a"), said("A"), user("b"), reply=said("B"))
    assert second.conversation_id == first.conversation_id and second.known == 2
    assert second.is_shown
    [summary] = bench.store.list()
    assert (summary.origin, summary.client, summary.messages) == ("agent", "agent", 4)
    loaded = bench.store.load(first.conversation_id)
    assert loaded.system == "Be brief." and loaded.title == "a"
    assert bench.shown(first.conversation_id) == ["a", "A", "b", "B"]


def test_an_agent_joins_what_a_person_typed_and_the_person_goes_on_from_there(bench: Bench) -> None:
    store = bench.store
    chat = store.create("mine", system="Be brief.")
    leaf = None
    for question, answer in (("a", "A"), ("b", "B")):
        _, leaf = store.begin_turn(chat.id, leaf, user(question))
        store.update_message(leaf, answer, (1, 2), "complete", None)
    history = [Message("system", "Be brief."), user("a"), said("A"), user("b"), said("B")]
    joined = bench.turn(*history, user("c"), reply=said("C"))
    assert joined.conversation_id == chat.id and joined.known == 4 and joined.is_shown
    path = store.load(chat.id).path
    assert [m.message.text for m in path] == ["a", "A", "b", "B", "c", "C"]
    assert [m.client for m in path] == ["", "", "", "", "agent", "agent"]
    assert path[1].message.sampled_ids == (1, 2)
    assert store.list()[0].origin == "person"


def test_what_clients_change_in_a_history_does_not_part_conversations(bench: Bench) -> None:
    call = ToolCall("call_1", "f", '{"a": 1, "b": 2}')
    clock = "Be brief.\nToday's date: 2026-12-01 10:00\n"
    header = "x-anthropic-billing-header: cch=1\n"
    first = bench.turn(Message("system", header + clock), user("a"), reply=said("A ", call))
    sent_back = [
        Message("system", header.replace("1", "2") + clock.replace("-12-01", "-12-24")),
        user(" a\n"),
        said("A", ToolCall("other", "f", '{"b": 2, "a": 1}')),
        Message("tool", '{"y": 1, "x": 2}', tool_call_id="other"),
    ]
    second = bench.turn(*sent_back, reply=said("done"))
    assert second.conversation_id == first.conversation_id and second.known == 2
    cut = [*sent_back[:2], said("A"), said("", call), sent_back[3], said("done"), user("b")]
    third = bench.turn(*cut, reply=said("B"))
    assert third.conversation_id == first.conversation_id and third.known == 4


def test_a_history_that_forks_is_a_branch_and_both_are_kept(bench: Bench) -> None:
    first = bench.turn(user("a"), reply=said("A"))
    bench.turn(user("a"), said("A"), user("b"), reply=said("B"))
    forked = bench.turn(user("a"), said("A"), user("c"), reply=said("C"))
    assert forked.conversation_id == first.conversation_id and forked.known == 2
    assert bench.shown(first.conversation_id) == ["a", "A", "c", "C"]
    branches = bench.store.children(first.reply_id, first.conversation_id)
    assert [m.message.text for m in branches] == ["b", "c"]


def test_a_request_that_is_sent_again_is_another_reply_to_the_same_question(bench: Bench) -> None:
    first = bench.ask(user("a"))
    bench.ledger.note(first, ReplySoFar("half", status="cancelled"))
    again = bench.turn(user("a"), reply=said("whole"))
    assert again.conversation_id == first.conversation_id and again.known == 1
    question = bench.store.message(again.reply_id).parent_id
    replies = bench.store.children(question, first.conversation_id)
    assert [(m.message.text, m.status) for m in replies] == [
        ("half", "cancelled"),
        ("whole", "complete"),
    ]


def test_what_only_begins_alike_is_another_conversation(bench: Bench) -> None:
    setting = user("<environment>linux</environment>")
    one = bench.turn(setting, user("a"), reply=said("A"))
    two = bench.turn(setting, user("b"), reply=said("B"))
    assert one.conversation_id != two.conversation_id
    assert {c.title for c in bench.store.list()} == {"a", "b"}
    other_system = bench.turn(
        Message("system", "x"), setting, user("a"), said("A"), user("c"), reply=said("C")
    )
    assert other_system.known == 0
    # A person's first question, asked by an agent, is the agent's own conversation.
    mine = bench.store.create("mine")
    bench.store.begin_turn(mine.id, None, user("hi"))
    assert bench.ask(user("hi")).conversation_id != mine.id


def test_the_turn_of_a_person_is_not_hidden_by_an_agent_that_does_not_know_of_it(
    bench: Bench,
) -> None:
    first = bench.turn(user("a"), reply=said("A"))
    _, mine = bench.store.begin_turn(first.conversation_id, first.reply_id, user("mine"))
    bench.store.update_message(mine, "Mine.", None, "complete", None)
    beside = bench.turn(user("a"), said("A"), user("b"), reply=said("B"))
    assert beside.conversation_id == first.conversation_id and not beside.is_shown
    assert bench.shown(first.conversation_id) == ["a", "A", "mine", "Mine."]
    onward = bench.turn(
        user("a"), said("A"), user("mine"), said("Mine."), user("c"), reply=said("C")
    )
    assert onward.known == 4 and onward.is_shown


def test_of_conversations_that_begin_alike_the_last_used_is_joined(bench: Bench) -> None:
    store = bench.store
    ids = []
    for _ in range(2):
        chat = store.create()
        _, answer = store.begin_turn(chat.id, None, user("a"))
        store.update_message(answer, "A", None, "complete", None)
        ids.append((chat.id, answer))
    assert bench.ask(user("a"), said("A"), user("b")).conversation_id == ids[1][0]
    store.update_message(ids[0][1], "A", None, "complete", None)  # now used last
    assert bench.ask(user("a"), said("A"), user("c")).conversation_id == ids[0][0]


def test_a_system_prompt_that_is_changed_in_the_app_changes_what_goes_on(bench: Bench) -> None:
    first = bench.turn(Message("system", "old"), user("a"), reply=said("A"))
    bench.store.set_system(first.conversation_id, "new")
    onward = bench.ask(Message("system", "new"), user("a"), said("A"), user("b"))
    assert onward.conversation_id == first.conversation_id
    assert bench.ask(Message("system", "old"), user("a"), said("A"), user("b")).known == 0


def test_pictures_are_kept_and_tell_conversations_apart(bench: Bench) -> None:
    def pictured(data: bytes) -> Message:
        return Message("user", "see", images=(Image(data),))

    first = bench.turn(pictured(b"\x89PNG one"), reply=said("A"))
    again = bench.turn(pictured(b"\x89PNG one"), said("A"), user("b"), reply=said("B"))
    assert again.known == 2 and first.conversation_id == again.conversation_id
    assert bench.ask(pictured(b"\x89PNG two"), said("A"), user("b")).known == 0
    assert bench.store.load(first.conversation_id).path[0].message.images[0].data == b"\x89PNG one"


def test_the_tools_that_a_program_offered_last_are_known(bench: Bench) -> None:
    tool = Tool("f", "does it", '{"type": "object"}')
    first = bench.turn(user("a"), reply=said("A"))
    bench.ask(user("a"), said("A"), user("b"), tools=[tool], client="other")
    loaded = bench.store.load(first.conversation_id)
    assert loaded.tools == (tool,) and loaded.client == "other"


def test_titles_are_what_a_person_said() -> None:
    told = "<system-reminder>\nbe good\n</system-reminder>\n<env os='x'>y</env>\nFix it\nnow"
    assert title_for([Message("tool", "x"), user("<a>b</a>"), user(told)]) == "Fix it"
    assert title_for([user("<a>b</a>")]) == "<a>b</a>"
    assert title_for([]) == ""


TEXTS = st.sampled_from(["", "a", "b", "a\n", "c"])
HISTORIES = st.lists(
    st.tuples(st.sampled_from([2, 2, 2, 1, 0]), TEXTS, TEXTS), min_size=1, max_size=12
)


@settings(max_examples=scaled(40), deadline=None)
@given(acts=HISTORIES, seed=st.integers(0, 99))
def test_whatever_agents_send_is_a_path_of_the_tree_and_nothing_is_stored_twice(
    acts: list[tuple[int, str, str]], seed: int
) -> None:
    """Random histories that go on, fork or begin anew; the store must hold each as a path."""
    bench = Bench(ConversationStore.in_memory())
    choose = random.Random(seed)
    histories: list[tuple[Message, ...]] = [()]
    for kind, question, answer in acts:
        before = choose.choice(histories) if kind == 1 else () if kind == 0 else histories[-1]
        sent = (*before, user(question))
        joined = bench.turn(*sent, reply=said(answer))
        histories.append((*sent, said(answer)))
        bench.store.set_leaf(joined.conversation_id, joined.reply_id)
        path = [m.message.text.strip() for m in bench.store.load(joined.conversation_id).path]
        assert path == [m.text.strip() for m in histories[-1]]
    stored = sum(c.messages for c in bench.store.list())
    # A reply is written for each request; a question once, wherever its conversation is known.
    assert stored <= 2 * len(acts)
    bench.store.close()


def test_a_long_history_costs_a_handful_of_look_ups(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [m for n in range(5000) for m in (user(f"q{n}"), said(f"a{n}"))]
    first = bench.turn(*turns, user("go"), reply=said("on"))
    statements: list[str] = []
    bench.store._db.set_trace_callback(statements.append)
    onward = bench.ask(*turns, user("go"), said("on"), user("more"))
    bench.store._db.set_trace_callback(None)
    assert (onward.conversation_id, onward.known) == (first.conversation_id, 10_002)
    assert len(statements) < 60


def test_old_rows_get_their_keys_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4tui.chat.ledger.FILLED_AT_ONCE", 3)
    chat = bench.store.create()
    leaf = None
    history: list[Message] = []
    for n in range(5):
        _, leaf = bench.store.begin_turn(chat.id, leaf, user(f"q{n}"))
        bench.store.update_message(leaf, f"a{n}", None, "complete", None)
        history += [user(f"q{n}"), said(f"a{n}")]
    assert bench.ask(*history, user("b")).known == 10


def test_two_processes_see_one_conversation(tmp_path: Path) -> None:
    one, two = (Bench(ConversationStore(tmp_path / "c.db")) for _ in range(2))
    first = one.turn(user("a"), reply=said("A"))
    onward = two.turn(user("a"), said("A"), user("b"), reply=said("B"))
    assert onward.conversation_id == first.conversation_id
    assert one.shown(first.conversation_id) == ["a", "A", "b", "B"]
    for bench in (one, two):
        bench.ledger.close()
        bench.store.close()


def test_a_store_that_fails_is_told_once_and_what_is_recorded_goes_on(bench: Bench) -> None:
    told: list[StoreError] = []
    changes: list[Joined] = []
    bench.ledger.on_problem = told.append
    bench.ledger.on_change = changes.append
    bench.store.close()
    for _ in range(2):
        recording = bench.ledger.record(Asked((user("a"),), "agent", "model"))
        recording.note(ReplySoFar("x", status="complete"))
    other = ConversationStore.in_memory()
    bench.ledger.write(lambda: bench.ledger.use(other))
    kept = bench.ledger.record(Asked((user("b"),), "agent", "model"))
    kept.note(ReplySoFar("B", status="complete"))
    bench.ledger.close()
    assert len(told) == 1 and [c.conversation_id for c in changes] == [1, 1]
    assert [m.message.text for m in other.load(1).path] == ["b", "B"]
    assert kept.joined == changes[0]
    other.close()
