"""What the main screens are shown with: one conversation with branches, one engine's stats, fixed
times. Snapshots compare it, and nothing of it depends on a clock or on how fast a machine is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ds4tui.agents import AgentRequest, Agents
from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.engine.stats import SessionStats
from ds4tui.events import Usage
from ds4tui.library.offers import Offer
from tests.tui.test_agents import DONE, FAILED, READING, WRITING
from tests.tui.test_decisions import FORK, NEW, RESTORED
from tests.tui.test_disk import STATS as DISK_STATS
from tests.tui.test_models_screen import row

NOW_S = 1_796_100_000.0

USAGE = Usage(1_906, 1_902, 4, 86, 120.0, 90.0, 1_500.0)
STATS = replace(
    DISK_STATS,
    model="fake",
    context_tokens=8192,
    resident_tokens=1_992,
    kv_bytes=91_668_480,
    weights_bytes=105_000_000,
    memory_active_bytes=512_000_000,
    memory_peak_bytes=640_000_000,
    compute_path="CPU, C++ kernels",
    decision=FORK,
    decisions=(RESTORED, NEW, FORK),
    usage=USAGE,
    requests=14,
    total_prompt_tokens=20_000,
    total_cached_tokens=17_000,
    total_evaluated_tokens=3_000,
    total_completion_tokens=1_200,
    parked_states=1,
    parked_tokens=640,
    parked_bytes=29_000_000,
    cache_budget_bytes=900_000_000,
    sessions=(SessionStats(1, "READY", 1_992, 91_668_480, what="person: Why is the sky blue?"),),
)

MODELS = (
    row(name="a", path=Path("/models/a.gguf")),
    row(name="qwen2.5-vl", vision_part=Path("/models/mmproj.gguf"), source="ollama"),
    row(name="too-large", available_bytes=10**8),
    row(name="torn", facts=None, problem="The file ends in the middle of a tensor."),
    Offer("o/r/f", "Gemma 3", "Gemma Terms", 2 * 10**9, 2 * 10**9, "a hub", True, True, 8),
)

QUESTION = "Why is the sky blue?"
THOUGHT = "Scattering. Keep it short."
ANSWER = (
    "Because of **Rayleigh scattering**: short waves are scattered more.\n\n"
    "1. blue goes everywhere\n2. red goes straight on\n\n"
    "```python\ndef scattered(wave_nm):\n    return wave_nm**-4\n```\n"
)
OTHER_ANSWER = "It is not; your eyes make it so."
MORE = "And at sunset?"
LAST_ANSWER = "The way through the air is longer, and *red* is what is left."


class FixedAgents(Agents):
    """Requests of other programs, as if they stood still."""

    @property
    def requests(self) -> tuple[AgentRequest, ...]:
        mended = replace(FAILED, error="It broke.", number=1)
        return (
            replace(WRITING, number=4, begins="and now the tests"),
            replace(READING, number=3),
            replace(DONE, number=2, client="claude", endpoint="/v1/messages"),
            mended,
        )


def add(store: ConversationStore, chat: int, parent: int | None, message: Message) -> int:
    stats: dict[str, Any] | None = None
    if message.role == "assistant":
        usage = {name: getattr(USAGE, name) for name in Usage.__dataclass_fields__}
        stats = {"usage": usage, "stop_reason": "stop"}
        stats |= {"thought_tokens": 9} if message.reasoning else {}
    return store.add_message(chat, parent, message, "complete", stats)


def conversations() -> ConversationStore:
    """Three, the last of which has two branches and is the newest."""
    store = ConversationStore.in_memory()
    for title in ("A shopping list", "Der Himmel über Berlin"):
        chat = store.create(title, model="fake").id
        question = add(store, chat, None, Message("user", f"{title}, please"))
        store.set_leaf(chat, add(store, chat, question, Message("assistant", "Here it is.")))
    chat = store.create("Why is the sky blue?", model="fake").id
    asked = add(store, chat, None, Message("user", QUESTION))
    add(store, chat, asked, Message("assistant", OTHER_ANSWER))
    first = add(store, chat, asked, Message("assistant", ANSWER, reasoning=THOUGHT))
    again = add(store, chat, first, Message("user", MORE))
    store.set_leaf(chat, add(store, chat, again, Message("assistant", LAST_ANSWER)))
    return store
