"""`ds4tui serve` is killed in the middle of a reply that the app follows."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from tests.fakes import FakeAssistant
from tests.test_serve import PROGRAM, Process, open_stream
from tests.tui.harness import running


@pytest.fixture
def serve() -> Iterator[Process]:
    program = PROGRAM.format(while_loading="pass", once_open="pass")
    process = Process(program.replace('"x" * 2000', '"x" * 3900'))  # 39 s at least
    with process.popen:
        yield process
        process.popen.kill()


async def test_the_app_sees_at_once_that_nobody_goes_on_with_the_reply(serve: Process) -> None:
    url = await asyncio.to_thread(serve.read_until, r"is served on (\S+)/v1")
    store = ConversationStore(load_settings({}).database_path)
    async with running(FakeAssistant("mine"), store=store) as on:
        with await asyncio.to_thread(open_stream, url):
            await on.until(lambda: store.list(), "the request is stored")
            await on.chat.open_conversation(store.list()[0].id)
            await on.until(lambda: on.chat._following.is_at_work, "it is followed")
            serve.popen.send_signal(signal.SIGKILL)
            # Much sooner than after a minute of silence: `until` has less patience than that.
            await on.until(lambda: not on.chat._following.is_at_work, "and is over")
        await on.until(lambda: "interrupted" in on.screen_text(), "which is told")
        await on.ask("And now?")
        await on.until(lambda: on.answers[-1:] == ["mine"], "the person goes on")


async def test_while_it_lives_silence_means_nothing(
    serve: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ds4tui.tui.following.STALE_S", 0.0)
    url = await asyncio.to_thread(serve.read_until, r"is served on (\S+)/v1")
    store = ConversationStore(load_settings({}).database_path)
    async with running(FakeAssistant("mine"), store=store) as on:
        with await asyncio.to_thread(open_stream, url):
            await on.until(lambda: store.list(), "the request is stored")
            await on.chat.open_conversation(store.list()[0].id)
            await on.until(lambda: on.answers and len(on.answers[0]) > 10, "it is read")
            before = on.answers
            await on.until(lambda: on.answers and on.answers != before, "and is read on")
