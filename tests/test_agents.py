"""Requests of other programs over a real socket: watched, kept as conversations, cancelled."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from ds4tui.agents import ENDED_KEPT, AgentRequest, Agents, Request, client_name
from ds4tui.chat.ledger import ConversationLedger
from ds4tui.chat.messages import Message, Tool
from ds4tui.chat.store import ConversationStore, StoredMessage
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import EngineError
from tests.fakes import FakeAssistant
from tests.server.conftest import Running, wait_until

MODEL = "fake"


class Kept:
    """A served assistant whose requests are kept."""

    def __init__(self, assistant: FakeAssistant) -> None:
        self.store = ConversationStore.in_memory()
        self.agents = Agents(ConversationLedger(self.store))
        self.running = Running(assistant, agents=self.agents)

    @property
    def client(self) -> openai.OpenAI:
        return self.running.client

    def say(self, *texts: str, **more: Any) -> str:
        """The reply to a history of questions and answers in turn."""
        reply = self.client.chat.completions.create(model=MODEL, messages=history(texts), **more)
        return str(reply.choices[0].message.content)

    @property
    def newest(self) -> AgentRequest:
        return self.agents.requests[0]

    def shown(self) -> tuple[StoredMessage, ...]:
        """The path of the conversation used last, once all that was handed in is written."""
        written = threading.Event()
        assert self.agents.ledger is not None
        self.agents.ledger.write(written.set)
        assert written.wait(20)
        return self.store.load(self.store.list()[0].id).path

    def close(self) -> None:
        self.running.close()
        self.agents.close()
        self.store.close()


def history(texts: tuple[str, ...]) -> Any:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


@pytest.fixture
def keep() -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def start(assistant: FakeAssistant | None = None) -> Kept:
        made.append(Kept(assistant or FakeAssistant()))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_clients_are_named_by_their_user_agent() -> None:
    assert client_name("opencode/1.0.3 ai-sdk/5 (linux)") == "opencode"
    assert client_name("claude-cli (external)") == "claude-cli"
    assert client_name(" ") == client_name("") == "a program"
    assert client_name("\x1b[31mx" + "y" * 99) == "[31mx" + "y" * 35


def test_a_request_is_watched_from_its_start_to_its_end(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.say("hi", extra_headers={"User-Agent": "opencode/1.0"})
    [request] = kept.agents.requests
    assert (request.client, request.endpoint) == ("opencode", "/v1/chat/completions")
    assert (request.state, request.begins, request.written) == ("done", "hi", 6)
    assert request.decision is not None and request.decision.kind == "cold"
    assert request.usage.prompt_tokens == request.decision.prompt > 0
    kept.say("hi", "Hello.", "more")
    assert kept.newest.number == 2 and kept.newest.usage.cached_tokens > 0


def test_what_an_agent_says_over_several_turns_is_one_conversation(
    keep: Callable[..., Kept],
) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.say("hi")
    kept.say("hi", "Hello.", "more", stream=False)
    path = kept.shown()
    assert [m.message.text for m in path] == ["hi", "Hello.", "more", "Hello."]
    assert [m.status for m in path] == ["complete"] * 4
    assert path[3].message.sampled_ids == tuple(b"Hello.")
    stats = path[3].stats
    assert stats is not None and stats["usage"]["cached_tokens"] > 0
    assert stats["decision"]["kind"] == "extend"
    assert (kept.newest.conversation_id, kept.newest.reply_id) == (1, path[3].id)


def test_all_dialects_share_conversations(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.say("hi")
    with anthropic.Anthropic(base_url=kept.running.handle.url, api_key="x") as client:
        with client.messages.stream(
            model=MODEL, max_tokens=20, messages=history(("hi", "Hello.", "more"))
        ) as stream:
            assert stream.get_final_text() == "Hello."
    turns = history(("hi", "Hello.", "more", "Hello.", "last"))
    kept.client.responses.create(model=MODEL, input=turns)
    assert [m.message.text for m in kept.shown()][4:] == ["last", "Hello."]
    assert len(kept.store.list()) == 1
    assert [r.endpoint for r in kept.agents.requests] == [
        "/v1/responses",
        "/v1/messages",
        "/v1/chat/completions",
    ]


def test_tool_calls_and_their_results_are_kept(keep: Callable[..., Kept]) -> None:
    call = '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>'
    kept = keep(FakeAssistant(call))
    parameters = {"type": "object", "properties": {"at": {"type": "string"}}}
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    asked: Any = history(("hi",))
    reply = kept.client.chat.completions.create(model=MODEL, messages=asked, tools=tools)
    message = reply.choices[0].message
    assert message.tool_calls
    asked += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "nothing"},
    ]
    kept.client.chat.completions.create(model=MODEL, messages=asked, tools=tools)
    path = kept.shown()
    assert [m.message.role for m in path] == ["user", "assistant", "tool", "assistant"]
    assert path[1].message.tool_calls[0].arguments == '{"at": "x"}'
    loaded = kept.store.load(1)
    assert [t.name for t in loaded.tools] == ["look"]


def test_several_replies_to_one_question_are_branches(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.client.chat.completions.create(model=MODEL, messages=history(("hi",)), n=3)
    path = kept.shown()
    assert len(kept.store.children(path[0].id, 1)) == 3 and len(path) == 2


def test_a_request_can_be_cancelled_and_what_there_is_of_it_is_kept(
    keep: Callable[..., Kept],
) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.running.engine.hold()
    failures: list[Exception] = []

    def ask() -> None:
        try:
            kept.say("hi")
        except openai.APIStatusError as exc:
            failures.append(exc)

    client = threading.Thread(target=ask)
    client.start()
    kept.running.wait_for_jobs(1)
    kept.running.engine.release(5)  # the decision, two chunks, two tokens
    wait_until(lambda: kept.agents.requests and kept.newest.written == 2)
    assert kept.newest.is_at_work and kept.agents.is_at_work
    assert not kept.agents.cancel(99) and kept.agents.cancel(kept.newest.number)
    client.join(20)
    assert kept.newest.state == "stopped" and not kept.agents.is_at_work
    assert [(m.message.text, m.status) for m in kept.shown()] == [
        ("hi", "complete"),
        ("He", "cancelled"),
    ]
    assert "cancelled" in str(failures[0])


def test_a_reply_that_fails_is_marked(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant("Hello.", error=EngineError("It broke."), fail_after=2))
    with pytest.raises(openai.InternalServerError):
        kept.say("hi")
    assert (kept.newest.state, kept.newest.error) == ("failed", "It broke.")
    assert [(m.message.text, m.status) for m in kept.shown()][1] == ("He", "failed")


def test_a_request_that_is_refused_leaves_nothing(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant(context_tokens=8))
    with pytest.raises(openai.BadRequestError):
        kept.say("much too long for it")
    assert kept.agents.requests == () and kept.store.list() == ()


def test_texts_without_a_template_are_watched_and_are_no_conversation(
    keep: Callable[..., Kept],
) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.client.completions.create(model=MODEL, prompt="Once")
    assert (kept.newest.endpoint, kept.newest.state) == ("/v1/completions", "done")
    assert kept.newest.conversation_id is None and kept.store.list() == ()


def test_a_store_that_fails_never_fails_a_reply(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.store.close()
    assert kept.say("hi") == "Hello."
    assert kept.newest.state == "done" and kept.newest.conversation_id is None


def test_a_follower_hears_the_rest_of_a_reply(keep: Callable[..., Kept]) -> None:
    kept = keep(FakeAssistant("Hello."))
    kept.running.engine.hold()
    client = threading.Thread(target=kept.say, args=("hi",))
    client.start()
    kept.running.wait_for_jobs(1)
    wait_until(lambda: kept.agents.requests and kept.newest.reply_id)
    reply_id = kept.newest.reply_id
    assert reply_id is not None
    watched = kept.agents.of_reply(reply_id)
    assert watched is not None
    heard: list[Any] = []
    watched.follow(heard.append)
    kept.running.engine.release()
    client.join(20)
    assert "".join(getattr(e, "text", "") for e in heard) == watched.text == "Hello."
    assert kept.agents.of_reply(reply_id) is None


def test_only_the_last_requests_are_remembered() -> None:
    agents = Agents()
    assistant = FakeAssistant("x")
    for _ in range(ENDED_KEPT + 3):
        asked = Request("a", "/v1", (Message("user", "hi"),), (Tool("f", "", "{}"),))
        watched = agents.watch(asked, assistant.info, lambda event: None)
        job = assistant.chat(asked.messages, SamplingParams(), watched)
        watched.started(job)
        assert job.wait(20)
    assert len(agents.requests) == ENDED_KEPT and agents.requests[0].number == ENDED_KEPT + 3
    assistant.close()
