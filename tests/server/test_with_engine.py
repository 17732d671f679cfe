"""The server over the real engine: a tiny random llama computes, bytes in, bytes out."""

import concurrent.futures
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ds4tui.assistant import Assistant, Job, ModelInfo
from ds4tui.chat.messages import Message
from ds4tui.config import Settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.worker import Engine
from ds4tui.events import Event, Finished
from tests.fakes import EventLog, FakeChatFormat
from tests.golden.files import golden_path
from tests.server.conftest import Running, wait_until

Serve = Callable[..., Running]
GREEDY = SamplingParams(temperature=0, max_tokens=8)


class TinyAssistant(Assistant):
    """The real Assistant over the real engine. After `hold` a forward pass waits until
    `release`; `is_held` tells that one does. `submitted` counts the jobs."""

    def __init__(self) -> None:
        self._may_pass = threading.Event()
        self._may_pass.set()
        self.is_held = threading.Event()
        self.submitted = 0
        gguf = GGUFFile.open(golden_path("llama"))
        chat_format = FakeChatFormat()
        chat_format.tokenizer = Tokenizer.from_gguf(gguf)
        self.engine = Engine(lambda: self._load(gguf, chat_format.tokenizer))
        self.engine.start()
        self.engine.wait_ready(60)
        gguf.close()
        info = ModelInfo("tiny", "tiny.gguf", "llama", "F32", 1000, 4000, 512)
        super().__init__(info, self.engine, chat_format)  # type: ignore[arg-type]

    def _load(self, gguf: GGUFFile, tokenizer: Tokenizer) -> LoadedModel:
        model = load_model(gguf, Settings())
        forward = model.forward

        def gated(*arguments: Any) -> Any:
            if not self._may_pass.is_set():
                self.is_held.set()
            assert self._may_pass.wait(30)
            return forward(*arguments)

        model.forward = gated  # type: ignore[method-assign]
        return LoadedModel("tiny", model, tokenizer, chunk_sizes=(32, 8))

    def chat(self, *arguments: Any, **options: Any) -> Job:
        job = super().chat(*arguments, **options)
        self.submitted += 1
        return job

    def hold(self) -> None:
        self._may_pass.clear()

    def release(self) -> None:
        self._may_pass.set()


@pytest.fixture
def tiny(serve: Serve) -> Iterator[Running]:
    assistant = TinyAssistant()
    running = serve(assistant)
    yield running
    assistant.release()


def ask(running: Running, messages: list[Any], stream: bool = False, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24, "stream": stream, **options}
    return running.client.chat.completions.create(model="tiny", messages=messages, **options)


def test_a_second_turn_finds_the_whole_first_one_resident(tiny: Running) -> None:
    """Random weights babble bytes that are no text: only exact replay can find them again."""
    messages: list[Any] = [{"role": "user", "content": "Good morning, tiny one."}]
    resident = 0
    # A reply with one of these is not replayed.
    controls = tiny.assistant.format.tokenizer.control_texts.values()
    for turn in range(3):
        reply = ask(tiny, messages, logit_bias={str(i): -100 for i in controls})
        usage, kv = reply.usage, reply.model_extra["kv"]
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached == kv["kept"]
        assert cached + kv["evaluated"] == usage.prompt_tokens
        assert kv["kind"] == ("extend" if turn else "cold")
        assert cached == resident
        # The token sampled last is told and not evaluated yet.
        resident = usage.prompt_tokens + usage.completion_tokens - 1
        assert tiny.assistant.stats.resident_tokens == resident
        assert "\ufffd" in reply.choices[0].message.content
        messages += [
            {"role": "assistant", "content": reply.choices[0].message.content},
            {"role": "user", "content": f"Turn {turn} was fine."},
        ]


def test_the_same_prompt_again_costs_one_token_and_gives_the_same(tiny: Running) -> None:
    messages = [{"role": "user", "content": "Say it again."}]
    first, second = ask(tiny, messages), ask(tiny, messages)
    assert second.model_extra["kv"]["evaluated"] == 1
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens - 1
    assert second.choices[0].message.content == first.choices[0].message.content


def test_streamed_and_whole_replies_are_equal(tiny: Running) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    whole = ask(tiny, messages, logprobs=True, top_logprobs=3)
    with ask(tiny, messages, stream=True, logprobs=True, top_logprobs=3) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    told = [one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.content]
    expected = whole.choices[0].logprobs.content
    assert [one.bytes for one in told] == [one.bytes for one in expected]
    assert len(told) == whole.usage.completion_tokens
    for one, other in zip(told, expected, strict=True):
        # The prompt's last row was computed in another chunk than the first time.
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert one.logprob == max(top.logprob for top in one.top_logprobs)


def test_leaving_in_the_prefill_keeps_what_was_prefilled(tiny: Running) -> None:
    messages = [{"role": "user", "content": "long " * 60}]
    tiny.assistant.hold()
    with ask(tiny, messages, stream=True):
        assert tiny.assistant.is_held.wait(20)
    wait_until(lambda: len(tiny.active_jobs) == 0)
    tiny.assistant.release()  # the chunk that was under way ends; none follows
    wait_until(lambda: tiny.assistant.stats.requests == 1)
    stats = tiny.assistant.stats
    assert stats.resident_tokens == stats.usage.evaluated_tokens == 32
    again = ask(tiny, messages)
    assert again.usage.prompt_tokens_details.cached_tokens == 32


def test_a_person_and_agents_share_the_queue_and_the_person_goes_first(tiny: Running) -> None:
    ended: list[str] = []

    def agent(name: str) -> str:
        reply = ask(tiny, [{"role": "user", "content": name}])
        ended.append(name)
        return str(reply.choices[0].message.content)

    alone = [agent("first"), agent("second")]
    ended.clear()
    tiny.assistant.hold()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(agent, "first")
        assert tiny.assistant.is_held.wait(20)
        second = pool.submit(agent, "second")
        wait_until(lambda: tiny.assistant.submitted == 4)
        person = EventLog()

        def listen(event: Event) -> None:
            if isinstance(event, Finished):
                ended.append("person")
            person(event)

        tiny.assistant.chat([Message("user", "And I?")], GREEDY, listen)
        tiny.assistant.release()
        assert [first.result(60), second.result(60)] == alone
    assert person.wait_end() and person.text
    assert ended.index("person") < ended.index("second")
    assert tiny.get("/v1/cache").json["requests"] == 5
