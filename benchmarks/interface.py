"""What the interface costs: loop lag with a long conversation, and the decode rate under it.

    python benchmarks/interface.py                    loop lag, CPU and idle CPU, with a fake engine
    python benchmarks/interface.py --model NAME       and the real engine's decode rate, headless
                                                      and under the app by turns, in this process

Numbers are of this machine as busy as it is: compare those of one run only.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from ds4tui.assistant import Assistant, Job
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.events import Event, Failed, Finished, Listener, TokenText
from tests.fakes import FakeAssistant
from tests.tui.harness import running

ANSWER = """Here is **what** you asked for, with `code`:

- a first point of some words
- a second point, [linked](https://example.org)

```python
def f(x: int) -> int:
    return x + 1
```

And a last paragraph that is long enough to be wrapped at the width of a terminal window.
"""
LAG_INTERVAL_S = 0.01


class LagMeter:
    """How late the loop runs a callback that asked for LAG_INTERVAL_S."""

    def __init__(self) -> None:
        self.lags_ms: list[float] = []

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_INTERVAL_S)
            self.lags_ms.append((time.perf_counter() - before - LAG_INTERVAL_S) * 1e3)

    def __str__(self) -> str:
        ordered = sorted(self.lags_ms)
        p95 = ordered[int(len(ordered) * 0.95)]
        p50 = statistics.median(ordered)
        return f"loop lag p50 {p50:.1f} ms, p95 {p95:.1f}, max {ordered[-1]:.0f}"


@contextmanager
def cpu_share(what: str) -> Iterator[None]:
    """Tells the CPU time of this process as a share of one core."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    print(f"{what}: {share:.1%} of one core", flush=True)


def conversation(messages: int) -> ConversationStore:
    store = ConversationStore.in_memory()
    chat = store.create("long")
    parent: int | None = None
    for place in range(messages):
        role = "assistant" if place % 2 else "user"
        text = ANSWER if place % 2 else f"question {place}"
        parent = store.add_message(chat.id, parent, Message(role, text))
    store.set_leaf(chat.id, parent)
    return store


async def measure_lag(messages: int, tokens_per_s: float, seconds: float) -> None:
    text = (ANSWER * 100)[: int(tokens_per_s * seconds)]
    assistant = FakeAssistant(text, token_delay_s=1 / tokens_per_s, context_tokens=10**6)
    store = conversation(messages)
    async with running(assistant, store=store, continue_last=messages > 0, size=(120, 40)) as on:
        await on.until(lambda: len(on.chat.chat.path) == messages)
        await asyncio.sleep(3)  # until the last answers are Markdown
        meter = LagMeter()
        watching = asyncio.create_task(meter.watch())
        on.prompt.put("go")
        await on.press("enter")
        with cpu_share(f"{messages} messages, streaming at {tokens_per_s:.0f}/s"):
            while on.chat.is_busy or not on.answers:
                await asyncio.sleep(0.2)
        watching.cancel()
        print(f"{messages} messages: {meter}", flush=True)
        with cpu_share("idle"):
            await asyncio.sleep(5)


@dataclass(frozen=True)
class Leg:
    """One answer: tokens a second, CPU milliseconds of the process a token, and of the loop's
    thread as a share of one core, all while decoding."""

    tokens_per_s: float
    cpu_ms: float
    loop_share: float = 0.0


async def measure_decode(name: str, settings: Settings, rounds: int, tokens: int) -> None:
    """Legs headless and under the app by turns; who goes first alternates."""
    from ds4tui.opening import open_assistant

    assistant = open_assistant(name, settings, lambda words: None)
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens)
    bare: list[Leg] = []
    under: list[Leg] = []
    try:
        for turn in range(rounds):
            question = f"Write a long list of facts about the number {turn}."
            for is_under in (turn % 2 == 1, turn % 2 == 0):
                if is_under:
                    under.append(await _leg_under_app(assistant, question, tokens))
                else:
                    bare.append(
                        await asyncio.to_thread(_headless_leg, assistant, question, sampling)
                    )
            print(
                f"  {bare[-1].tokens_per_s:.1f} t/s and {bare[-1].cpu_ms:.1f} ms of CPU a token "
                f"headless, {under[-1].tokens_per_s:.1f} and {under[-1].cpu_ms:.1f} under the app, "
                f"whose loop took {under[-1].loop_share:.1%} of a core",
                flush=True,
            )
    finally:
        assistant.close()
    rate = statistics.median(
        u.tokens_per_s / b.tokens_per_s for u, b in zip(under, bare, strict=True)
    )
    cpu = statistics.median(u.cpu_ms / b.cpu_ms for u, b in zip(under, bare, strict=True))
    share = statistics.median(leg.loop_share for leg in under)
    print(
        f"decode under the app is {rate:.3f} of headless, CPU a token {cpu:.3f}, the loop's thread "
        f"took {share:.1%} of a core (medians of {rounds} pairs); load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


class _Decoding:
    """Listens to a job; the clocks stand from its first token to its end."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.began: tuple[float, float] | None = None
        self.leg: Leg | None = None

    def listen(self, event: Event) -> None:
        if self.began is None and isinstance(event, TokenText):
            self.began = (time.perf_counter(), time.process_time())
        if isinstance(event, Finished | Failed):
            assert self.began is not None
            cpu_s = time.process_time() - self.began[1]
            tokens = max(1, event.usage.completion_tokens)
            self.leg = Leg(event.usage.decode_tps, cpu_s / tokens * 1e3)
            self.ended.set()


def _headless_leg(assistant: Assistant, question: str, sampling: SamplingParams) -> Leg:
    decoding = _Decoding()
    assistant.chat([Message("user", question)], sampling, decoding.listen)
    decoding.ended.wait()
    assert decoding.leg is not None
    return decoding.leg


class _Lent(Assistant):
    """An assistant that outlives the app that uses it."""

    def __init__(self, lender: Assistant) -> None:
        self.__dict__.update(lender.__dict__)

    def close(self, timeout_s: float = 10.0) -> None:
        pass


async def _leg_under_app(assistant: Assistant, question: str, tokens: int) -> Leg:
    flags = {"temperature": 0.0, "max_tokens": tokens}
    lent, decoding = _Lent(assistant), _Decoding()

    def chat(
        messages: Sequence[Message], sampling: SamplingParams, listener: Listener, **more: Any
    ) -> Job:
        def both(event: Event) -> None:
            decoding.listen(event)
            listener(event)

        return assistant.chat(messages, sampling, both, **more)

    lent.chat = chat  # type: ignore[method-assign]
    async with running(lent, size=(120, 40), **flags) as on:
        on.prompt.put(question)
        await on.press("enter")
        while decoding.began is None:
            await asyncio.sleep(0.002)
        wall_s, loop_s = time.perf_counter(), time.thread_time()
        while not decoding.ended.is_set():
            await asyncio.sleep(0.05)
        share = (time.thread_time() - loop_s) / (time.perf_counter() - wall_s)
        await on.answered()
    assert decoding.leg is not None
    return replace(decoding.leg, loop_share=share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model that is here; without it only the fake engine")
    parser.add_argument("--messages", type=int, nargs="*", default=[0, 200])
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of the fake")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=120)
    chosen = parser.parse_args()

    from ds4tui.config import load_settings

    settings = load_settings({"max_tokens": chosen.tokens, "kv_disk": "off"})
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(DS4TUI_STATE_DIR=folder, DS4TUI_CONFIG_DIR=folder)
        for messages in chosen.messages:
            asyncio.run(measure_lag(messages, chosen.rate, chosen.seconds))
        if chosen.model:
            asyncio.run(measure_decode(chosen.model, settings, chosen.rounds, chosen.tokens))


if __name__ == "__main__":
    main()
