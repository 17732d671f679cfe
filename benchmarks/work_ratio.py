"""Tokens evaluated over tokens needed, for the sessions of agent_sessions.py.

    python benchmarks/work_ratio.py                a scripted model without weights, on layers of
                                                   every kind, each with and without exact replay
    python benchmarks/work_ratio.py --model NAME   a real model, through our server
        [--against llama.cpp]                      and through llama.cpp's, with one slot

Needed are the tokens of a prompt that follow the longest beginning that any earlier prompt or
reply of the session had: what must be computed whatever is kept. At least one a request is.
"""

import argparse
import json
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from agent_sessions import SESSIONS, TOOLS, Json

from ds4tui.assistant import Assistant, Job, ModelInfo
from ds4tui.bench.llama_cpp import LlamaCpp
from ds4tui.cache.timeline import Timeline
from ds4tui.chat.rendering import ChatFormat
from ds4tui.config import load_settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.loaded import LoadedModel
from ds4tui.engine.requests import GenerateRequest
from ds4tui.engine.stats import EngineStats
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.worker import Engine
from ds4tui.events import Decision, Event, Finished, Listener
from ds4tui.library.resolve import resolve_model
from ds4tui.opening import open_assistant
from ds4tui.server.runner import ServerHandle
from tests.chat.formats import HERMES
from tests.fake_model import FakeModel, scripted

ANSWER_S = 600.0
REPLY_TOKENS = 48  # of a real model
CONTEXT_TOKENS = 16_384


@dataclass
class Work:
    """What one session cost, in tokens."""

    requests: int = 0
    prompt: int = 0
    needed: int = 0
    evaluated: int = 0
    worst: tuple[int, str] = (0, "")  # most that was evaluated beyond need, and what was said
    _known: list[np.ndarray] = field(default_factory=list)

    def asked(self, prompt: Sequence[int], evaluated: int, reason: str) -> None:
        ids = np.asarray(prompt, dtype=np.int64)
        common = max((_common(ids, known) for known in self._known), default=0)
        needed = max(1, len(ids) - common)
        self.requests += 1
        self.prompt += len(ids)
        self.needed += needed
        self.evaluated += evaluated
        self.worst = max(self.worst, (evaluated - needed, reason))

    def resident(self, ids: Sequence[int]) -> None:
        self._known.append(np.asarray(ids, dtype=np.int64))

    @property
    def ratio(self) -> float:
        return self.evaluated / self.needed if self.needed else 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.requests + other.requests,
            self.prompt + other.prompt,
            self.needed + other.needed,
            self.evaluated + other.evaluated,
            max(self.worst, other.worst),
        )


def _common(a: np.ndarray, b: np.ndarray) -> int:
    both = min(len(a), len(b))
    differs = a[:both] != b[:both]
    return int(differs.argmax()) if differs.any() else both


class Counted:
    """An engine that also tells `work` of every request, and a script what was asked."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.work = Work()
        self.before: Callable[[Timeline], None] = lambda timeline: None

    @property
    def stats(self) -> EngineStats:
        stats: EngineStats = self._engine.stats
        return stats

    def submit(self, request: GenerateRequest, listener: Listener) -> Job:
        prompt, reasons = request.timeline.ids.tolist(), []

        def count(event: Event) -> None:
            if isinstance(event, Decision):
                reasons.append(event.reason)
            if isinstance(event, Finished):
                usage = event.usage
                self.work.asked(prompt, usage.evaluated_tokens, " / ".join(reasons))
                self.work.resident([*prompt, *event.token_ids])
            listener(event)

        self.before(request.timeline)
        job: Job = self._engine.submit(request, count)
        return job

    def close(self, timeout_s: float = 10.0) -> None:
        self._engine.close(timeout_s)


def post(url: str, body: Json) -> Json:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        values: Json = json.load(answer)
    return values


def said_by(answer: Json) -> Json:
    message = answer["choices"][0]["message"]
    return {k: v for k, v in message.items() if v is not None}


# -- a scripted model on the session's own layers --------------------------------------------------


class Scripted:
    """Our server around a model that says what the session's script says."""

    def __init__(self, gguf: GGUFFile, layer_types: Sequence[type], replay: bool) -> None:
        self._tokenizer = Tokenizer.from_gguf(gguf)
        self._format = ChatFormat(self._tokenizer, HERMES)
        self._model = FakeModel(self._tokenizer.vocab_size, CONTEXT_TOKENS, layer_types)
        loaded = LoadedModel("scripted", self._model, self._tokenizer)  # type: ignore[arg-type]
        engine = Engine(lambda: loaded)
        engine.start()
        engine.wait_ready()
        self.counted = Counted(engine)
        info = ModelInfo("scripted", "", "fake", "", 0, 0, CONTEXT_TOKENS)
        self.assistant = Assistant(info, self.counted, self._format)
        if not replay:
            self.assistant._replay.remember = lambda *a, **k: None  # type: ignore[method-assign]
        self._reply: list[int] = []
        self.counted.before = self._play

    def say(self, reply: Json) -> None:
        end = min(self._format.stop_token_ids)
        self._reply = [*self._tokenizer.encode(spoken(reply)), end]

    def _play(self, prompt: Timeline) -> None:
        self._model.choose = scripted(len(prompt), self._reply)


def spoken(reply: Json) -> str:
    """The reply as a model of the Hermes kind samples it."""
    parts = []
    if thinking := reply.get("reasoning_content"):
        parts.append(f"<think>\n{thinking}\n</think>\n")
    parts.append(reply["content"])
    for call in reply.get("tool_calls", ()):
        function = call["function"]
        named = {"name": function["name"], "arguments": json.loads(function["arguments"])}
        parts.append(f"<tool_call>\n{json.dumps(named)}\n</tool_call>")
    return "\n".join(parts)


def run_scripted(gguf: GGUFFile, layer_types: Sequence[type], replay: bool) -> dict[str, Work]:
    works = {}
    for name, session in SESSIONS.items():
        model = Scripted(gguf, layer_types, replay)
        server = ServerHandle.start(model.assistant, "127.0.0.1", 0, None)

        def ask(messages: Sequence[Json], reply: Json) -> Json:
            model.say(reply)  # noqa: B023
            body = {"messages": list(messages), "tools": TOOLS, "temperature": 0}
            return said_by(post(f"{server.url}/v1/chat/completions", body))  # noqa: B023

        try:
            session(ask)
        finally:
            server.stop(5)
            model.assistant.close()
        works[name] = model.counted.work
    return works


# -- real models -----------------------------------------------------------------------------------


@contextmanager
def served(name: str) -> Iterator[tuple[str, Counted]]:
    assistant = open_assistant(name, load_settings({"kv_disk": "off"}), lambda words: None)
    counted = Counted(assistant._engine)
    assistant._engine = counted
    server = ServerHandle.start(assistant, "127.0.0.1", 0, None)
    try:
        yield server.url, counted
    finally:
        server.stop(5)
        assistant.close()


def run_ours(name: str) -> dict[str, Work]:
    works = {}
    for title, session in SESSIONS.items():
        with served(name) as (url, counted):

            def ask(messages: Sequence[Json], reply: Json) -> Json:
                body = {"messages": list(messages), "temperature": 0, "max_tokens": REPLY_TOKENS}
                return said_by(post(f"{url}/v1/chat/completions", body))

            session(ask)
            works[title] = counted.work
    return works


def run_llama_cpp(name: str) -> dict[str, Work]:
    works = {}
    path = resolve_model(name, load_settings({}).data_dir)
    for title, session in SESSIONS.items():
        server = LlamaCpp(path, CONTEXT_TOKENS, os.cpu_count() or 1)
        work = works[title] = Work()

        def ask(messages: Sequence[Json], reply: Json) -> Json:
            body: Json = {"messages": list(messages), "temperature": 0, "max_tokens": REPLY_TOKENS}
            text = post(f"{server._url}/apply-template", body)["prompt"]  # noqa: B023
            answer = post(f"{server._url}/v1/chat/completions", body)  # noqa: B023
            message = said_by(answer)
            ids = _tokens(server._url, text)  # noqa: B023
            work.asked(ids, answer["timings"]["prompt_n"], "")  # noqa: B023
            work.resident([*ids, *_tokens(server._url, message.get("content") or "")])  # noqa: B023
            return message

        try:
            session(ask)
        finally:
            server.close()
    return works


def _tokens(url: str, text: str) -> list[int]:
    body = {"content": text, "parse_special": True, "add_special": False}
    tokens: list[int] = post(f"{url}/tokenize", body)["tokens"]
    return tokens


# -- the report ------------------------------------------------------------------------------------


def show(title: str, works: dict[str, Work], needed: int | None = None) -> float:
    """Prints a table; evaluated over `needed` tokens, by default those counted in `works`."""
    total = sum(works.values(), Work())
    print(f"\n{title}")
    print(f"  {'session':14} {'requests':>8} {'prompt':>8} {'needed':>8} {'evaluated':>9} ratio")
    for name, work in {**works, "all": total}.items():
        counts = f"{work.requests:8,} {work.prompt:8,} {work.needed:8,} {work.evaluated:9,}"
        print(f"  {name:14} {counts} {work.ratio:5.2f}")
    if total.worst[0]:
        print(f"  most beyond need: {total.worst[0]:,} tokens ({total.worst[1]})")
    return total.evaluated / (needed or total.needed)


def layer_kinds() -> dict[str, tuple[type, ...]]:
    from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer

    class Window(WindowLayer):
        WINDOW, SLACK = 128, 512

    return {
        "rows are only appended": (FakeLayer, FakeLayer),
        "some layers see a window": (FakeLayer, Window),
        "some layers are recurrent": (FakeLayer, RecurrentLayer),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--against", choices=["llama.cpp"])
    parser.add_argument("--tokenizer", default="smollm2", help="of the scripted model")
    given = parser.parse_args()
    ratios = {}
    if given.model:
        ratios["ours"] = show(f"{given.model}, our server", run_ours(given.model))
        if given.against:
            title = f"{given.model}, llama.cpp's server with one slot"
            ratios["llama.cpp"] = show(title, run_llama_cpp(given.model))
    else:
        path = resolve_model(given.tokenizer, load_settings({}).data_dir)
        with GGUFFile.open(path) as gguf:
            for kind, types in layer_kinds().items():
                needed = None
                for replay in (True, False):
                    title = f"{kind}, {'with' if replay else 'without'} exact replay"
                    works = run_scripted(gguf, types, replay)
                    ratios[title] = show(title, works, needed)
                    # What replay would have saved is no need.
                    needed = sum(works.values(), Work()).needed
    print(json.dumps({k: round(v, 4) for k, v in ratios.items()}))


if __name__ == "__main__":
    main()
