"""One conversation for a person in the app and an agent over HTTP, with all its reuse."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from ds4tui.agents import Agents
from ds4tui.chat.ledger import Asked, ConversationLedger, ReplySoFar
from ds4tui.chat.messages import Message, ToolCall
from ds4tui.chat.store import ConversationStore
from ds4tui.config import load_settings
from ds4tui.opening import open_assistant
from ds4tui.server.runner import ServerHandle
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running


class Shared(Driver):
    """The app, served, and an agent that asks it."""

    assistant: Any
    agents: Agents
    store: ConversationStore
    url: str

    async def say(self, *texts: str, **more: Any) -> str:
        """The agent's reply to a history of questions and answers in turn; it is stored, too,
        which happens on a thread of its own."""
        reply = await asyncio.to_thread(self._say, texts, more)
        await asyncio.to_thread(self.agents.wait_written)
        return reply

    def _say(self, texts: tuple[str, ...], more: dict[str, Any]) -> str:
        with openai.OpenAI(base_url=self.url + "/v1", api_key="x", max_retries=0) as client:
            roles = ("user", "assistant")
            messages: Any = [{"role": roles[n % 2], "content": t} for n, t in enumerate(texts)]
            headers = {"User-Agent": "opencode/1.0"}
            reply = client.chat.completions.create(
                model="", messages=messages, extra_headers=headers, **more
            )
            return str(reply.choices[0].message.content)

    async def person(self, text: str) -> None:
        await self.ask(text)
        await self.answered()

    def shown(self, conversation_id: int) -> list[str]:
        return [m.message.text for m in self.store.load(conversation_id).path]

    @property
    def conversation_id(self) -> int:
        assert self.chat.chat.id is not None
        return self.chat.chat.id


@asynccontextmanager
async def shared(
    assistant: Any, store: ConversationStore | None = None, **more: Any
) -> AsyncIterator[Shared]:
    store = store or ConversationStore.in_memory()
    agents = Agents(ConversationLedger(store))

    def start(served: Any) -> ServerHandle:
        return ServerHandle.start(served, "127.0.0.1", 0, agents=agents)

    async with running(assistant, store=store, agents=agents, start_server=start, **more) as driver:
        one = Shared(driver.app, driver.pilot)
        one.assistant, one.agents, one.store = assistant, agents, store
        await one.press("f4")
        await one.until(lambda: driver.app._server.url, "the server is on")
        one.url = driver.app._server.url
        yield one


def numbered() -> Callable[[Any], str]:
    """Replies r1, r2, .."""
    count = 0

    def reply(request: Any) -> str:
        nonlocal count
        count += 1
        return f"r{count}"

    return reply


async def test_a_person_and_an_agent_take_turns_in_one_conversation_and_keep_all_reuse() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        await on.person("one")
        await on.person("two")
        jobs = on.assistant.engine.jobs
        assert await on.say("one", "r1", "two", "r2", "three") == "r3"
        await on.until(lambda: on.answers == ["r1", "r2", "r3"], "the agent's turn is shown")
        await on.until(lambda: on.questions[-1] == "opencode\nthree", "so is what it asked")
        await on.until(lambda: not on.chat._following.is_at_work, "it is taken in")
        await on.person("four")
        assert on.answers == ["r1", "r2", "r3", "r4"]
        path = on.store.load(on.conversation_id).path
        texts = ["one", "r1", "two", "r2", "three", "r3", "four", "r4"]
        assert [m.message.text for m in path] == texts
        assert [m.client for m in path] == [""] * 4 + ["opencode"] * 2 + [""] * 2
        assert len(on.store.list()) == 1
        # Each request pays for its own words and the fake template's marks around them: the last
        # reply's last token and its end, the question's role and end, the next reply's role.
        usages = [job.usage for job in jobs]
        assert [u.evaluated_tokens for u in usages[1:]] == [
            1 + 1 + 1 + len(text) + 1 + 1 for text in ("two", "three", "four")
        ]
        assert await on.say(*texts, "five") == "r5"
        assert jobs[-1].usage.evaluated_tokens == 1 + 1 + 1 + len("five") + 1 + 1


async def test_an_agents_reply_is_read_as_it_is_written_and_what_is_typed_waits() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        await on.person("one")
        engine = on.assistant.engine
        engine.hold()
        asking = asyncio.create_task(on.say("one", "r1", "two", stream=False))
        await on.until(lambda: on.chat._following.is_at_work, "the agent's request is seen")
        engine.release(4)
        await on.until(lambda: on.answers[-1] == "r", "its first token is shown")
        on.prompt.put("three")
        await on.press("enter")
        await on.until(lambda: "queued" in str(on.prompt.border_title), "the question waits")
        engine.release()
        assert await asking == "r2"
        await on.until(lambda: on.answers == ["r1", "r2", "r3"], "the queued question is answered")
        await on.answered()
        assert on.shown(on.conversation_id) == ["one", "r1", "two", "r2", "three", "r3"]


async def test_an_agents_conversation_is_listed_opened_continued_and_known_as_its() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        assert await on.say("agent says") == "r1"
        await on.press("ctrl+r")
        await on.until(lambda: "by an agent: opencode" in on.screen_text(), "it is marked")
        await on.press("enter")
        await on.until(lambda: on.answers == ["r1"], "it is open")
        await on.person("and I")
        usage = on.assistant.engine.jobs[-1].usage
        assert usage.evaluated_tokens == 1 + 1 + 1 + len("and I") + 1 + 1
        assert await on.say("agent says", "r1", "and I", "r2", "good") == "r3"
        await on.until(lambda: on.answers == ["r1", "r2", "r3"], "the agent went on")
        assert len(on.store.list()) == 1


async def test_a_person_goes_on_with_an_agents_tools_in_the_prompt() -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    async with shared(FakeAssistant(numbered())) as on:
        await on.say("agent", tools=[{"type": "function", "function": tool}])
        await on.chat.open_conversation(1)
        await on.person("mine")
        usage = on.assistant.engine.jobs[-1].usage
        assert usage.evaluated_tokens == 1 + 1 + 1 + len("mine") + 1 + 1


async def test_calls_and_results_of_an_agent_are_shown() -> None:
    store = ConversationStore.in_memory()
    ledger = ConversationLedger(store)
    call = ToolCall("c1", "read", '{"path": "a`b"}')
    history = (
        Message("user", "look"),
        Message("assistant", "I look.", tool_calls=(call,)),
        Message("tool", "nothing", tool_call_id="c1", name="read"),
    )
    ledger.note(ledger.join(Asked(history, "opencode", "fake")), ReplySoFar("It is empty."))
    ledger.close()
    async with running(FakeAssistant("Yes."), store=store) as on:
        await on.chat.open_conversation(1)
        await on.until(lambda: "It is empty." in on.answers, "the partial reply, too")
        assert on.answers[0] == 'I look.\n\n`read({"path": "a\'b"})`'
        assert on.questions == ["opencode\nlook", "opencode · result of read\nnothing"]


async def test_an_agent_that_does_not_know_of_my_turn_hides_nothing() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        assert await on.say("agent") == "r1"
        await on.chat.open_conversation(1)
        await on.person("mine")
        assert await on.say("agent", "r1", "its own") == "r3"
        await on.until(lambda: any("kept beside" in t for t in on.toasts), "it is told")
        assert on.answers == ["r1", "r2"] and on.shown(1) == ["agent", "r1", "mine", "r2"]
        await on.say("agent", "r1", "its own", "r3", "and on")
        await asyncio.to_thread(on.agents.wait_written)
        await on.pilot.pause()
        assert sum("kept beside" in t for t in on.toasts) == 1


async def test_an_agents_own_branch_is_followed() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        await on.say("agent")
        await on.say("agent", "r1", "left")
        await on.chat.open_conversation(1)
        await on.say("agent", "r1", "right")
        await on.until(lambda: on.answers == ["r1", "r3"], "the other branch is shown")
        await on.until(lambda: any("that branch is shown" in t for t in on.toasts), "it is told")


async def test_a_reply_without_words_is_not_sent_on_by_a_person() -> None:
    async with shared(FakeAssistant(numbered())) as on:
        await on.say("agent")
        engine = on.assistant.engine
        engine.hold()
        asking = asyncio.create_task(on.say("agent", "r1", "lost"))
        await on.until(on.agents.requests.__len__, "it is asked")
        await on.until(lambda: on.agents.requests[0].is_at_work, "it is at work")
        on.agents.cancel(on.agents.requests[0].number)
        with pytest.raises(openai.APIStatusError):
            await asking
        engine.release()
        await on.chat.open_conversation(1)
        await on.person("mine")
        sent = on.assistant.format.tokenizer.decode(
            engine.requests[-1].timeline.ids.tolist(), skip_special=False
        )
        assert "lost" not in sent and "r1" in sent


async def _nothing() -> None:
    pass


async def test_two_apps_on_one_database_hide_no_turn(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    async with shared(FakeAssistant(numbered()), ConversationStore(database)) as on:
        await on.person("one")
        await on.until(lambda: on.chat._following._version >= 0, "it was looked at")
        following = on.chat._following
        look, following.look = following.look, _nothing  # type: ignore[method-assign]
        await following._journal.ask(lambda store: None)  # one that had begun is over
        other = ConversationStore(database)
        leaf = on.chat.chat.leaf_id
        _, theirs = other.begin_turn(on.conversation_id, leaf, Message("user", "theirs"))
        on.prompt.put("mine")
        await on.press("enter")
        await on.until(lambda: any("went on elsewhere" in n for n in on.notices), "it is told")
        following.look = look  # type: ignore[method-assign]
        await on.until(lambda: on.prompt.text == "mine", "the question came back")
        await on.until(lambda: on.questions == ["one", "theirs"], "the other turn is shown")
        other.update_message(theirs, "Theirs.", None, "complete", None)
        await on.until(lambda: on.answers[-1] == "Theirs.", "so is its answer")
        await on.until(lambda: not on.chat._following.is_at_work, "and over")
        await on.press("enter")
        await on.until(lambda: on.answers[-1] == "r2", "mine is answered after it")
        await on.answered()
        other.close()
        assert on.shown(on.conversation_id) == ["one", "r1", "theirs", "Theirs.", "mine", "r2"]


async def test_what_serve_writes_in_another_process_is_seen(tmp_path: Path) -> None:
    database = tmp_path / "c.db"
    headless = ConversationStore(database)
    agents = Agents(ConversationLedger(headless))
    served = FakeAssistant(lambda request: "long " * 3)
    server = ServerHandle.start(served, "127.0.0.1", 0, agents=agents)
    async with running(FakeAssistant("mine"), store=ConversationStore(database)) as driver:
        on = Shared(driver.app, driver.pilot)
        on.url, on.store, on.agents = server.url, headless, agents
        await on.say("first")
        await on.until(lambda: headless.list(), "it is stored")
        agents.wait_written()
        await on.chat.open_conversation(1)
        await on.until(lambda: on.chat._following._version >= 0, "it was looked at")
        assert on.answers == ["long long long "]
        served.engine.hold()
        asking = asyncio.create_task(on.say("first", "long long long ", "again"))
        await on.until(lambda: on.chat._following.is_at_work, "the request is seen")
        await on.until(lambda: on.questions[-1:] == ["opencode\nagain"], "and its question")
        served.engine.release()
        await asking
        await on.until(lambda: on.answers == ["long long long "] * 2, "so is the reply")
        await on.until(lambda: not on.chat._following.is_at_work, "it is over")
    server.stop()
    served.close()
    agents.close()
    headless.close()


@pytest.mark.real_model
async def test_the_real_model_evaluates_only_what_is_new_whoever_asks(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS4TUI_DEBUG")
    flags: dict[str, Any] = {"temperature": 0.0, "max_tokens": 10}
    settings = load_settings({**flags, "kv_disk": "off", "context_tokens": 2048})
    assistant = await asyncio.to_thread(
        open_assistant, str(smollm2_path), settings, lambda words: None
    )
    async with shared(assistant, **flags) as on:
        await on.person("Name a colour.")
        await on.person("Another one.")
        told = [m.message.text for m in on.store.load(on.conversation_id).path]
        third = await on.say(*told, "One more.", **flags)
        await on.until(lambda: on.answers[-1] == third, "the agent's turn is shown")
        await on.until(lambda: not on.chat._following.is_at_work, "it is taken in")
        await on.person("And the last.")
        path = on.store.load(on.conversation_id).path
    usages = [m.stats["usage"] for m in path if m.stats]
    assert [m.client for m in path] == [""] * 4 + ["opencode"] * 2 + [""] * 2
    for before, usage in pairwise(usages):
        resident = before["prompt_tokens"] + before["completion_tokens"] - 1
        assert usage["cached_tokens"] == resident
        assert usage["evaluated_tokens"] == usage["prompt_tokens"] - resident < 20
