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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.config import Settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.events import Event, Failed, Finished
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, running

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


async def measure_decode(name: str, settings: Settings, rounds: int, tokens: int) -> None:
    from ds4tui.opening import open_assistant

    assistant = open_assistant(name, settings, lambda words: None)
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens)
    headless: list[float] = []
    under_app: list[float] = []
    try:
        for turn in range(rounds):
            question = f"Write a long list of facts about the number {turn}."
            headless.append(await asyncio.to_thread(_headless_rate, assistant, question, sampling))
            under_app.append(await _rate_under_app(assistant, question, tokens))
            print(f"  decode {headless[-1]:.1f} t/s headless, {under_app[-1]:.1f} under the app")
    finally:
        assistant.close()
    ratio = statistics.median(a / h for a, h in zip(under_app, headless, strict=True))
    print(f"decode under the app is {ratio:.3f} of headless (median of {rounds})", flush=True)


def _headless_rate(assistant: Assistant, question: str, sampling: SamplingParams) -> float:
    ended = threading.Event()
    endings: list[Finished | Failed] = []

    def listen(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            endings.append(event)
            ended.set()

    assistant.chat([Message("user", question)], sampling, listen)
    ended.wait()
    return endings[0].usage.decode_tps


class _Lent(Assistant):
    """An assistant that outlives the app that uses it."""

    def __init__(self, lender: Assistant) -> None:
        self.__dict__.update(lender.__dict__)

    def close(self, timeout_s: float = 10.0) -> None:
        pass


async def _rate_under_app(assistant: Assistant, question: str, tokens: int) -> float:
    flags = {"temperature": 0.0, "max_tokens": tokens}
    async with running(_Lent(assistant), size=(120, 40), **flags) as on:
        await _ask(on, question)
        return assistant.stats.usage.decode_tps


async def _ask(on: Driver, question: str) -> None:
    on.prompt.put(question)
    await on.press("enter")
    while on.chat.is_busy or not on.answers:
        await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model that is here; without it only the fake engine")
    parser.add_argument("--messages", type=int, nargs="*", default=[0, 200])
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second of the fake")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
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
