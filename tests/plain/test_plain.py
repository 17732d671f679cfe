"""The plain mode through a pipe: the app's conversations and commands as lines."""

import asyncio
from pathlib import Path

import pytest

from ds4tui.chat.ledger import Asked, ConversationLedger
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.errors import EngineError, ModelNotFound, UsageError
from ds4tui.plain.acts import ACTS, act_of
from ds4tui.tui import commands
from tests.chat.sights import FakeVision
from tests.engine.vision.pictures import encoded, picture
from tests.fakes import FakeAssistant
from tests.plain.driving import said
from tests.tui.harness import FakeServer, running


def stored(database: Path) -> list[tuple[str, str]]:
    store = ConversationStore(database)
    latest = store.latest()
    assert latest is not None
    path = [(m.message.text, m.status) for m in store.load(latest.id).path]
    store.close()
    return path


def test_each_line_is_a_message_and_each_decision_is_told_with_its_reason() -> None:
    out = said("one\n\ntwo\n", FakeAssistant("Hello you."))
    lines = out.splitlines()
    assert [line for line in lines if line == "Hello you."] == ["Hello you."] * 2
    told = [line for line in lines if line.startswith("Decision: ")]
    assert [line.split()[1] for line in told] == ["cold,", "extend,"]
    assert all("Reason: " in line for line in told)
    assert lines.index("Answer:") < lines.index("Hello you.")
    ends = [line for line in lines if line.startswith("End of answer: stop.")]
    assert len(ends) == 2 and "10 tokens written" in ends[0]


def test_what_is_said_is_text_and_line_ends_only() -> None:
    out = said(
        "one\n/help\n/panel\n/decisions\n/disk\n/agents\n/cache\n/think\n",
        FakeAssistant("a\x1b[31mb\rc"),
    )
    assert all(c == "\n" or c.isprintable() for c in out)
    drawn = {c for c in out if 0x2500 <= ord(c) < 0x2800}  # boxes, blocks, shapes, braille
    assert not drawn and "·" not in out


def test_a_message_of_several_lines() -> None:
    assistant = FakeAssistant()
    said("one\\\ntwo\\\nthree\n", assistant)
    text = assistant.format.tokenizer.decode(assistant.engine.requests[0].timeline.ids.tolist())
    assert "one\ntwo\nthree" in text


def test_the_app_goes_on_with_what_was_said_here(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    said("one\n", FakeAssistant("first"), database=database)
    assert stored(database) == [("one", "complete"), ("first", "complete")]

    async def in_the_app() -> None:
        store = ConversationStore(database)
        async with running(FakeAssistant("second"), store=store, continue_last=True) as on:
            await on.until(lambda: on.questions == ["one"])
            await on.ask("two")
            await on.answered()

    asyncio.run(in_the_app())
    assert [text for text, _ in stored(database)] == ["one", "first", "two", "second"]


def test_continuing_says_how_the_conversation_ends(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    assistant = FakeAssistant("an answer")
    said("one\ntwo\n", assistant, database=database)
    again = FakeAssistant("an answer")
    out = said("three\n", again, database=database, continue_last=True)
    assert "2 earlier messages" in out and "You: two\nAssistant: an answer\n" in out
    assert [text for text, _ in stored(database)][::2] == ["one", "two", "three"]
    sent = again.format.tokenizer.decode(again.engine.requests[0].timeline.ids.tolist())
    assert "one" in sent and "two" in sent
    assert "There is no conversation" in said("", continue_last=True)


# Commands


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
def test_every_command_of_the_table_answers_in_words(
    command: commands.Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where /export writes
    monkeypatch.setattr("ds4tui.tui.attaching.capture", refuse_screenshot)
    monkeypatch.setattr("ds4tui.plain.acts.copy_with_tool", lambda text: None)
    monkeypatch.setattr("ds4tui.plain.acts.newest_screenshots", lambda: (tmp_path, ()))
    for start in ("", "hello\n"):
        before = said(start)
        out = said(f"{start}/{command.name}\n", start_server=lambda assistant: FakeServer())
        if command.name != "quit":
            assert len(out.splitlines()) > len(before.splitlines()), out
        assert "That failed" not in out and "Traceback" not in out
        if act_of(command) is None:
            assert f"/{command.name} is for the screen" in out


def refuse_screenshot() -> object:
    raise UsageError("There is no program that takes screenshots.", "")


def test_what_acts_do_is_in_the_table() -> None:
    names = {name for c in commands.COMMANDS for name in (c.name, *c.aliases)}
    assert set(ACTS) <= names


def test_an_unknown_command_is_told_and_not_sent() -> None:
    assistant = FakeAssistant()
    assert "There is no command /nonsense" in said("/nonsense\n", assistant)
    assert not assistant.engine.requests


def test_quit_leaves_what_follows_unread() -> None:
    assistant = FakeAssistant()
    said("/quit\nhello\n", assistant)
    assert not assistant.engine.requests


def test_another_answer_another_branch_and_back(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    replies = iter(["first", "second"])
    assistant = FakeAssistant(lambda request: next(replies))
    out = said("one\n/regen\n/tree\n1\n", assistant, database=database)
    assert "One more answer: keeps about" in out
    assert "Branches of this conversation:\n1. first\n2. shown now: second\n" in out
    assert "You: one\nAssistant: first\n" in out and "Another branch is shown." in out
    assert stored(database) == [("one", "complete"), ("first", "complete")]
    assert "/regen and /edit make others" in said("one\n/tree\n")


def test_a_question_is_edited_by_the_line_that_follows(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    out = said("one\ntwo\n/edit\n2\nthree\n", FakeAssistant("ok"), database=database)
    assert "1. two\n2. one\n" in out and "It was: one\n" in out
    assert stored(database) == [("three", "complete"), ("ok", "complete")]


def test_an_edit_is_left_by_an_empty_line(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    out = said("one\n/edit\n1\n\ntwo\n", FakeAssistant("ok"), database=database)
    assert "The question stays as it was." in out
    assert [text for text, _ in stored(database)] == ["one", "ok", "two", "ok"]


def test_a_fork_is_a_new_conversation(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    said("one\ntwo\n/fork\n1\nthree\n", FakeAssistant("ok"), database=database)
    assert [text for text, _ in stored(database)] == ["one", "ok", "three", "ok"]
    store = ConversationStore(database)
    assert len(store.list()) == 2
    store.close()


def test_a_conversation_is_found_by_words_and_gone_on_with(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    said("about apples\n/new\nabout pears\n", FakeAssistant("ok"), database=database)
    out = said("/resume\nAPPLES\n2\nmore\n", FakeAssistant("ok"), database=database)
    assert "1. about pears" in out and "You: about apples" in out
    assert [text for text, _ in stored(database)] == ["about apples", "ok", "more", "ok"]
    assert "Nothing was chosen." in said("/resume\n\n", database=database)


def test_agents_conversations_are_listed_on_request_if_so_wished(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    said("about apples\n", FakeAssistant("ok"), database=database)
    store = ConversationStore(database)
    ledger = ConversationLedger(store)
    ledger.join(Asked((Message("user", "about pears"),), "codex", "fake"))
    ledger.close()
    store.close()
    out = said("/resume\n\n/resume all\n\n", database=database, agents_in_list="off")
    _, alone, everything = out.split("Conversations, the newest first:")
    assert "/resume all lists those of agents" in out
    assert "about apples" in alone and "about pears" not in alone
    assert "about apples" in everything and "about pears" in everything


def test_a_conversation_goes_to_a_file_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    said(f"one\n/export {file}\n", FakeAssistant("ok"))
    database = tmp_path / "c.db"
    out = said(f"/import {file}\n/import {file}.none\n", database=database)
    assert "You: one\nAssistant: ok\n" in out and "No such file" in out
    assert [text for text, _ in stored(database)] == ["one", "ok"]


def test_the_system_prompt_is_set_and_its_cost_told() -> None:
    assistant = FakeAssistant()
    out = said("/system Be brief.\nhi\n/system\n/system off\n", assistant)
    assert "The system prompt is set." in out and "Be brief." in out
    text = assistant.format.tokenizer.decode(assistant.engine.requests[0].timeline.ids.tolist())
    assert "Be brief." in text


def test_the_server_is_switched() -> None:
    server = FakeServer("It is open to the network.")
    out = said("/server\n/server on\n/server off\n", start_server=lambda assistant: server)
    assert f"The server is on: {server.url}\nIt is open to the network.\n" in out
    assert "The server is on already." in out and "The server is off.\n" in out
    assert server.is_stopped
    assert "on or off" in said("/server sideways\n")


def test_thinking_is_switched_counted_and_said_on_request() -> None:
    assistant = FakeAssistant("<think>Hm, well.</think>Yes.")
    assistant.format.template = "fake <think>"
    out = said("one\n/think show\ntwo\n/think sideways\n/think\n", assistant)
    first, second = out.split("What the model thinks is shown")
    assert "Thinking.\nThought for" in first and "Hm, well." not in first
    assert "Thinking.\nHm, well.\nThought for" in second and "Answer:\nYes.\n" in second
    assert "does not know 'sideways'" in second


def test_how_tokens_are_chosen_is_said_set_and_kept(tmp_path: Path) -> None:
    database, assistant = tmp_path / "c.db", FakeAssistant()
    text = "/sampling temperature 0.25\none\n/sampling\n/sampling heat 1\n/sampling top_k\n"
    out = said(f"{text}/sampling top_p 7\n", assistant, database=database)
    assert assistant.engine.requests[0].sampling.temperature == 0.25
    assert "temperature: 0.25.\n" in out and "max_tokens: not set.\n" in out
    assert "There is no 'heat'." in out and "top_k needs a value" in out and "top_p must be" in out
    again = FakeAssistant()
    said("two\n/sampling temperature off\nthree\n", again, database=database, continue_last=True)
    first, second = (request.sampling.temperature for request in again.engine.requests)
    assert first == 0.25 and second != 0.25


def test_the_cache_is_told_and_what_it_lacks() -> None:
    out = said("one\n/cache\n/cache disk\n/cache decisions\n/pin\n/cache clear\n")
    assert "Live: " in out and out.count("Decision: cold") == 2
    assert "kv_disk is off" in out


# Pictures


def test_pictures_by_command_and_by_mention(tmp_path: Path) -> None:
    shot, other = tmp_path / "shot.png", tmp_path / "two words.png"
    shot.write_bytes(encoded(picture(8, 8)))
    other.write_bytes(encoded(picture(8, 16)))
    assistant = FakeAssistant(vision=FakeVision())
    text = f'/image {shot}\nwhat is @"{other}"?\n'
    out = said(text, assistant)
    assert "shot.png 8x8" in out and "goes with your next message" in out
    request = assistant.engine.requests[0]
    assert len(request.timeline.spans) == 2
    assert "End of answer: stop." in out


def test_a_picture_that_is_not_there_stops_the_message_once(tmp_path: Path) -> None:
    assistant = FakeAssistant(vision=FakeVision())
    out = said(f"see @{tmp_path}/none.png\n", assistant)
    assert "There is no picture" in out and not assistant.engine.requests
    out = said(f"/image {tmp_path}/none.png\n", FakeAssistant(vision=FakeVision()))
    assert "There is no file" in out


def test_a_model_without_sight_says_so(tmp_path: Path) -> None:
    shot = tmp_path / "shot.png"
    shot.write_bytes(encoded(picture(8, 8)))
    assistant = FakeAssistant(vision_refusal="fake sees no pictures.")
    assert "fake sees no pictures." in said(f"what is @{shot}\n", assistant)
    assert not assistant.engine.requests


# What goes wrong


def test_a_model_that_cannot_be_opened_ends_a_pipe() -> None:
    def missing(name: str, progress: object) -> FakeAssistant:
        raise ModelNotFound("There is no model smollm2.", "Run: ds4tui pull smollm2")

    out = said("hello\n", open_model=missing, wants=1)
    assert out == "Error: There is no model smollm2.\nRun: ds4tui pull smollm2\n"


def test_another_model_is_opened_and_a_wrong_one_changes_nothing() -> None:
    def check(name: str) -> None:
        if name == "nope":
            raise ModelNotFound("There is no model nope.")

    opened: list[str] = []

    def open_model(name: str, progress: object) -> FakeAssistant:
        opened.append(name)
        return FakeAssistant(model=name)

    out = said("/model nope\n/model other\nhi\n/model\n", open_model=open_model, check_model=check)
    assert opened == ["smollm2", "other"]
    assert "There is no model nope." in out and "other is open" in out
    assert "End of answer: stop." in out


def test_a_failed_answer_is_told_and_counts_in_a_pipe(tmp_path: Path) -> None:
    assistant = FakeAssistant(error=EngineError("It broke.", "Try again."), fail_after=3)
    out = said("one\n", assistant, database=tmp_path / "c.db", wants=1)
    assert "Error: It broke.\nTry again.\n" in out and "There is no answer" in out


def test_what_nobody_expected_ends_no_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(host: object, text: str) -> None:
        raise ValueError("oh")

    monkeypatch.setitem(ACTS, "panel", broken)
    out = said("/panel\nhello\n")
    assert "That failed: oh." in out and "End of answer: stop." in out
