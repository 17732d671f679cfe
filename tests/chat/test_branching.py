"""Branches as the store has them: which there are, one more answer, copies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.chat.branching import begin_again, copied, tree
from ds4tui.chat.messages import Image, Message
from ds4tui.chat.store import ConversationStore, MessageStatus
from ds4tui.errors import ConversationWentOn
from tests.scale import scaled

ASKED, SAID = Message("user", "question"), Message("assistant", "answer")


def add(
    store: ConversationStore,
    chat: int,
    parent: int | None,
    message: Message = SAID,
    status: MessageStatus = "complete",
) -> int:
    return store.add_message(chat, parent, message, status)


def test_marks_count_answers_and_questions_that_were_answered() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("t").id
    question = add(store, chat, None, ASKED)
    first, second = add(store, chat, question), add(store, chat, question)
    silent = add(store, chat, question, Message("assistant", ""), "cancelled")
    edited = add(store, chat, None, Message("user", "edited"))
    unanswered = add(store, chat, None, Message("user", "nobody answered"))
    add(store, chat, edited)
    found = tree(store, chat)
    assert found.place(first) == (1, 2) and found.place(second) == (2, 2)
    assert found.place(question) == (1, 2) and found.place(edited) == (2, 2)
    assert silent not in found.nodes and unanswered not in found.nodes
    assert found.place(silent) == (1, 1)
    assert found.forks == 2


def test_a_question_that_is_shown_belongs_to_a_branch_before_it_is_answered() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("t").id
    asked, answer = store.begin_turn(chat, None, ASKED)
    assert tree(store, chat).path(answer) == [asked, answer]


def test_the_branch_beside_is_the_newest_through_the_next_sibling_round_and_round() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("t").id
    question = add(store, chat, None, ASKED)
    first = add(store, chat, question)
    second = add(store, chat, question)
    more = add(store, chat, first, ASKED)
    end = add(store, chat, more)
    found = tree(store, chat)
    assert found.newest_end(question) == end and found.newest_end(second) == second
    assert found.beside(found.path(second), 1) == end
    assert found.beside(found.path(end), 1) == second
    assert found.beside([question], 1) is None


def test_one_more_answer_is_refused_where_somebody_else_went_on() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("t").id
    asked, answered = store.begin_turn(chat, None, ASKED)
    again = begin_again(store, chat, asked, answered)
    loaded = store.load(chat)
    assert [m.id for m in loaded.path] == [asked, again] and loaded.path[-1].status == "partial"
    with pytest.raises(ConversationWentOn):
        begin_again(store, chat, asked, answered)
    assert store.load(chat).leaf_id == again


def test_a_copy_holds_ids_pictures_and_numbers_and_leaves_the_original_alone() -> None:
    store = ConversationStore.in_memory()
    chat = store.create("title", "model", "be brief").id
    seen = Message("user", "look", images=(Image(b"\x89PNG\r\n\x1a\n1", 4, "a.png"),))
    asked = add(store, chat, None, seen)
    answer = Message("assistant", "a cat", (1, 2, 3), reasoning="hm")
    store.set_leaf(chat, store.add_message(chat, asked, answer, "complete", {"model": "m"}))
    before = store.load(chat)
    new = store.load(copied(store, chat, before.path))
    assert new.id != chat and (new.title, new.model, new.system) == ("title", "model", "be brief")
    assert [(m.message, m.stats) for m in new.path] == [(seen, None), (answer, {"model": "m"})]
    assert store.load(chat) == before


@settings(max_examples=scaled(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=25))
def test_every_branch_can_be_walked_to_by_going_beside(steps: list[tuple[int, bool]]) -> None:
    store = ConversationStore.in_memory()
    chat = store.create("t").id
    answers: list[int | None] = [None]
    questions: list[int] = []
    for which, is_again in steps:
        if is_again and questions:
            answers.append(add(store, chat, questions[which % len(questions)]))
        else:
            questions.append(add(store, chat, answers[which % len(answers)], ASKED))
            answers.append(add(store, chat, questions[-1]))
    found = tree(store, chat)
    ends = {id_ for id_ in found.nodes if not found.children.get(id_)}
    for end in ends:
        path = found.path(end)
        assert found.newest_end(end) == end and path == sorted(path)
        for id_ in path:
            which, count = found.place(id_)
            assert 1 <= which <= count
    for parent, siblings in found.children.items():
        seen = {siblings[0]}
        for _ in siblings:
            beside = found.beside([*found.path(parent), siblings[len(seen) - 1]], 1)
            if len(siblings) > 1:
                assert beside is not None
                seen.add(found.path(beside)[len(found.path(parent))])
        assert seen == set(siblings)
