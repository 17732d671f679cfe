"""What is kept of a turn, and when: without a screen."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import StoreError
from ds4tui.events import TokenText
from ds4tui.tui import turn as turn_module
from ds4tui.tui.background import in_thread
from ds4tui.tui.inbox import Inbox
from ds4tui.tui.journal import Journal
from ds4tui.tui.open_chat import OpenChat
from ds4tui.tui.turn import Turn, TurnEnd
from tests.fakes import FakeAssistant


class View:
    """A turn's view that only remembers."""

    def __init__(self) -> None:
        self.text = ""
        self.words: list[str] = []

    async def add_text(self, text: str) -> None:
        self.text += text

    def show_progress(self, words: str) -> None:
        self.words.append(words)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)


def fail(problem: StoreError) -> None:
    raise AssertionError(problem)


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "c.db")


def started(assistant: FakeAssistant, journal: Journal, chat: OpenChat) -> tuple[Turn, View]:
    return Turn(Message("user", "question"), chat, assistant, SamplingParams(), journal), View()


async def test_the_question_is_kept_before_the_engine_is_asked(store: ConversationStore) -> None:
    assistant = FakeAssistant()
    kept: list[int] = []
    real = assistant.engine.submit

    def submit(*arguments: object) -> object:
        kept.extend(c.messages for c in store.list())
        return real(*arguments)  # type: ignore[arg-type]

    assistant.engine.submit = submit  # type: ignore[assignment, method-assign]
    journal = Journal(store, fail)
    turn, view = started(assistant, journal, OpenChat())
    end = await turn.run(view)
    assert kept == [2] and end.text == view.text == "Hello from the fake model."
    await journal.close()
    assistant.close()


async def test_reasoning_is_kept_beside_the_answer(store: ConversationStore) -> None:
    assistant = FakeAssistant("<think>Hm.</think>Yes.")
    assistant.format.template = "fake <think>"
    journal = Journal(store, fail)
    chat = OpenChat()
    turn, view = started(assistant, journal, chat)
    end = await turn.run(view)
    assert (end.text, view.text) == ("Yes.", "Yes.")
    [_, answer] = store.load(1).path
    assert (answer.message.text, answer.message.reasoning) == ("Yes.", "Hm.")
    assert answer.message == chat.path[-1].message
    await journal.close()
    assistant.close()


async def test_text_is_kept_while_it_streams(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "JOURNAL_INTERVAL_S", 0.0)
    assistant = FakeAssistant("abcdef")
    assistant.engine.hold()
    journal = Journal(store, fail)
    chat = OpenChat()
    turn, view = started(assistant, journal, chat)
    running = asyncio.create_task(turn.run(view))
    await until(lambda: bool(assistant.engine.jobs))
    for count in range(1, 4):
        assistant.engine.release(6 if count == 1 else 1)

        def is_kept(length: int = 2 + count) -> bool:
            latest = store.latest()
            path = store.load(latest.id).path if latest else ()
            return bool(path) and path[-1].message.text == "abcdef"[:length]

        await until(is_kept)
        last = store.load(1).path[-1]
        assert last.status == "partial"
        assert last.message.sampled_ids == tuple(last.message.text.encode())
    assistant.engine.release()
    await running
    last = store.load(1).path[-1]
    assert (last.message.text, last.status) == ("abcdef", "complete")
    assert chat.path == [*store.load(1).path] or [m.message for m in chat.path] == [
        m.message for m in store.load(1).path
    ]
    await journal.close()
    assistant.close()


async def test_a_process_that_is_killed_loses_no_more_than_a_second(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from ds4tui.chat.store import ConversationStore
        from tests.fakes import FakeAssistant
        from tests.tui.test_turn import View, started
        from ds4tui.tui import turn
        from ds4tui.tui.journal import Journal
        from ds4tui.tui.open_chat import OpenChat

        class Deadly(View):
            async def add_text(self, text):
                await super().add_text(text)
                if journal._behind is not None and journal._behind.done():
                    print(len(self.text), flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)

        async def main():
            global journal
            turn.JOURNAL_INTERVAL_S = 0.2
            journal = Journal(ConversationStore(sys.argv[1]), print)
            assistant = FakeAssistant("x" * 100_000, token_delay_s=0.001)
            await started(assistant, journal, OpenChat())[0].run(Deadly())

        asyncio.run(main())
        """
    )
    path = tmp_path / "c.db"
    died = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script, str(path)], capture_output=True, check=False
    )
    assert died.returncode == -9, died.stderr.decode()
    shown = int(died.stdout)
    store = ConversationStore(path)
    asked, answered = store.load(1).path
    assert asked.message.text == "question" and answered.status == "partial"
    assert 0 < len(answered.message.text) <= shown
    store.close()


async def test_cancelling_before_the_engine_has_the_job_asks_it_nothing(
    store: ConversationStore,
) -> None:
    assistant = FakeAssistant()
    journal = Journal(store, fail)
    chat = OpenChat()
    turn, view = started(assistant, journal, chat)
    turn.cancel()
    end = await turn.run(view)
    assert not end.answered and end.status == "cancelled" and assistant.engine.requests == []
    latest = store.latest()
    assert latest is not None and store.load(latest.id).leaf_id is None and chat.path == []
    await journal.close()


async def test_a_failing_view_stops_the_job_and_keeps_the_text(store: ConversationStore) -> None:
    class Broken(View):
        async def add_text(self, text: str) -> None:
            raise RuntimeError("no screen")

    assistant = FakeAssistant("x" * 500, token_delay_s=0.01)
    journal = Journal(store, fail)
    end: TurnEnd = await started(assistant, journal, OpenChat())[0].run(Broken())
    assert end.error is not None and "no screen" in end.error.message and end.text
    await until(lambda: assistant.engine.jobs[0].wait(0))
    assert assistant.engine.jobs[0].is_cancelled
    await journal.close()
    assistant.close()


async def test_a_slow_database_does_not_block_the_loop(store: ConversationStore) -> None:
    journal = Journal(store, fail)
    blocked = store._lock
    blocked.acquire()
    asking = asyncio.create_task(journal.ask(lambda s: s.latest()))
    ticks = 0
    for _ in range(20):
        await asyncio.sleep(0.001)
        ticks += 1
    assert ticks == 20 and not asking.done()
    blocked.release()
    assert await asking is None
    await journal.close()


async def test_the_last_word_comes_after_a_note_of_progress(store: ConversationStore) -> None:
    journal = Journal(store, fail)
    chat = OpenChat()
    _, answer_id = await journal.begin_turn(chat, Message("user", "q"))
    journal.note_progress(answer_id, "half", (1,), {})
    journal.note_progress(answer_id, "skipped while the one before is written", (1,), {})
    await journal.end_turn(answer_id, "whole", (1, 2), "complete", {})
    path = await journal.ask(lambda s: s.load(1).path)
    assert (path[-1].message.text, path[-1].status) == ("whole", "complete")
    await journal.close()


async def test_a_full_disk_moves_the_conversation_to_memory_whole(
    store: ConversationStore,
) -> None:
    problems: list[StoreError] = []
    journal = Journal(store, problems.append)
    chat = OpenChat(system="Be brief.")
    assistant = FakeAssistant("answer")
    await started(assistant, journal, chat)[0].run(View())
    store._db.execute("PRAGMA query_only = ON")
    await started(assistant, journal, chat)[0].run(View())
    assert len(problems) == 1 and "cannot be" in problems[0].message
    assert not journal.store.keeps
    kept = journal.store.load(journal.store.latest().id)  # type: ignore[union-attr]
    assert [m.message.text for m in kept.path] == ["question", "answer"] * 2
    assert (kept.system, kept.title) == ("Be brief.", "question")
    assert [m.id for m in kept.path] == [m.id for m in chat.path]
    await journal.close()
    assistant.close()


async def test_an_inbox_loses_nothing_between_threads() -> None:
    inbox = Inbox()
    count = 5000

    def push_all() -> None:
        for n in range(count):
            inbox.push(TokenText("j", str(n), (n,)))

    pushing = asyncio.create_task(in_thread("pusher", push_all))
    seen: list[int] = []
    async with asyncio.timeout(20):
        while len(seen) < count:
            seen += [e.token_ids[0] for e in await inbox.batch()]  # type: ignore[attr-defined]
    await pushing
    assert seen == list(range(count))


async def test_a_call_off_the_loop_raises_to_its_caller() -> None:
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_thread("failing", fails)
    assert await in_thread("fine", lambda: 3) == 3
