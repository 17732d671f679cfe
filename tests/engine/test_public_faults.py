"""States that cannot be cut back, and memory, as people met them in other systems: each kind of it
through a session, with what is right here. (What went wrong with prompts is chat's to test.)

How exact each real family is: test_session_real.py and test_state_exact.py; snapshots that alias
live buffers (T45): test_session_windows.py; what comes from disk (T36, T39, T44):
test_worker_disk.py and test_disk_histories.py; what is about to hit and stays (T114):
tests/cache/test_memory_tier.py; many prompts without reuse (T33): test_worker_tripwire.py.
"""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ds4tui
from ds4tui.cache.memory_tier import MAX_ENTRIES, MemoryTier
from ds4tui.cache.outline import Outline, Turn
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.session import Session
from tests.engine.histories import FailingModel, FakeRig, drain
from tests.fake_model import FakeModel
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer

RECURRENT = (FakeLayer, RecurrentLayer)
WINDOW = (WindowLayer, FakeLayer)
CONVOLUTION = (WindowLayer, RecurrentLayer, FakeLayer)

HARD = pytest.mark.parametrize(
    "layers", [RECURRENT, WINDOW, CONVOLUTION], ids=["recurrent", "window", "both"]
)


class Chat:
    """A session, and what it is asked: turns as (role, ids)."""

    def __init__(self, layers: Any, budget_bytes: int = 1 << 40) -> None:
        self.rig = FakeRig(layer_types=layers)
        model = FakeModel(vocab_size=40, context_tokens=400_000, layer_types=layers)
        self.session = Session(FailingModel(model), memory=MemoryTier(budget_bytes))

    def ask(self, *turns: Sequence[int], reply: int = 0) -> int:
        """How many rows are evaluated for the turns, of which the first is the system text; the
        last logits are those of a cold run, if there are few. Then `reply` tokens are fed."""
        ids = [token for turn in turns for token in turn]
        model: Any = self.session._model
        before = model.fed
        prefill = drain(self.session.sync(Timeline.of(ids), outline=outlined(*turns)))
        fed = int(model.fed - before)
        assert self.session.timeline.ids.tolist() == ids
        if len(ids) <= 1000:
            assert np.array_equal(prefill.logits, self.rig.cold_logits(ids)), "other tokens"
        for token in range(reply):
            self.session.append(token % 40)
        self.session.end_turn()
        return fed


def outlined(*turns: Sequence[int]) -> Outline:
    roles = ["system", *["user", "assistant"] * len(turns)]
    ends = np.cumsum([len(turn) for turn in turns]).tolist()
    return tuple(
        Turn(end - len(turn), end, role, bytes(turn[:50]))
        for turn, end, role in zip(turns, ends, roles, strict=False)
    )


def some(count: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 40, count)]


def reply_of(count: int) -> list[int]:
    return [token % 40 for token in range(count)]


@HARD
def test_t23_t31_t43_every_turn_costs_its_new_tokens(layers: Any) -> None:
    chat, turns = Chat(layers), [some(100)]
    for number in range(10):
        question = some(20, number)
        # Besides them the end of the reply, which was sampled but not fed.
        assert chat.ask(*turns, question, reply=12) == 20 + (100 if not number else 1)
        turns += [question, [*reply_of(12), 39]]


@HARD
def test_t24_t28_t30_a_fork_behind_which_nothing_can_be_cut_says_what_a_cold_run_says(
    layers: Any,
) -> None:
    """The window has wrapped many times, the recurrent state has seen another ending."""
    chat = Chat(layers)
    chat.ask(some(50), some(900), some(60))
    for at in (949, 500, 51, 3):
        chat.ask(some(50), [*some(900)[: at - 50], 7, 8, 9] if at > 50 else [7, 8])
    chat.ask(some(50), some(900), some(60), [1])


@HARD
def test_t25_t26_an_exact_hit_feeds_one_token_and_no_row_twice(layers: Any) -> None:
    chat = Chat(layers)
    chat.ask(some(50), some(100))
    assert chat.ask(some(50), some(100)) == 1
    state: Any = chat.session._state
    assert {layer.length for layer in state.layers} == {150}
    chat.rig.examine(state, chat.session.timeline.ids.tolist())


@HARD
def test_t28_a_tail_of_22_tokens_costs_the_tail(layers: Any) -> None:
    """Shared 19,322, resident 19,344, asked 19,485."""
    chat = Chat(layers)
    turns = some(4000), some(15_322, 1)
    chat.ask(*turns, some(22, 2))
    assert chat.ask(*turns, some(163, 3)) == 163


@HARD
def test_t29_ten_prompts_with_one_beginning_and_other_ends(layers: Any) -> None:
    chat = Chat(layers)
    chat.ask(some(200), some(10, 1))
    for end in range(2, 12):
        assert chat.ask(some(200), some(10, end)) == 10
    assert chat.ask(some(200), some(10, 5), [1]) == 1


@HARD
def test_t34_a_prompt_of_which_99_percent_match_is_not_read_again(layers: Any) -> None:
    chat = Chat(layers)
    whole = some(79_000, 1)
    chat.ask(some(1000), whole)
    assert chat.ask(some(1000), [*whole[:78_200], *some(800, 2)]) <= 800 + 512


@HARD
def test_t35_an_append_only_chat_reuses_from_its_second_turn_on(layers: Any) -> None:
    chat, turns = Chat(layers), [some(300)]
    for number in range(6):
        turns.append(some(800, number))
        assert chat.ask(*turns) == 800 + (300 if not number else 0)


@HARD
def test_t33_t36_what_is_snapshotted_is_found_again(layers: Any) -> None:
    chat = Chat(layers)
    chat.ask(some(300), some(3000, 1))
    assert chat.session.snapshots_at()
    chat.session.clear("as a test")
    assert chat.ask(some(300), some(3000, 1)[:2000], [7]) <= 1 + 1000 + 512
    plan = chat.session.plan(Timeline.of(some(300)))
    assert (plan.kept, plan.to_evaluate) == (299, 1) or plan.replayed < 128
    assert plan.reason


@HARD
def test_t37_a_new_message_of_31_tokens_costs_31(layers: Any) -> None:
    chat = Chat(layers)
    history = some(2000), some(9000, 1), some(1115, 2)
    chat.ask(*history)
    assert chat.ask(*history, some(31, 3)) == 31


def test_t38_a_window_that_holds_all_rows_goes_back_without_a_snapshot() -> None:
    class Wide(WindowLayer):
        window = 5000

    chat = Chat((Wide, FakeLayer), budget_bytes=0)
    session = chat.session
    drain(session.sync(Timeline.of(some(3000))))
    plan = session.plan(Timeline.of([*some(2000), 7]))
    assert (plan.kept, plan.snapshot_id) == (2000, None)


@HARD
def test_t39_a_parked_state_takes_the_same_prompt_for_one_token(layers: Any) -> None:
    chat = Chat(layers)
    chat.ask(some(400), some(1000, 1))
    chat.session.clear("as a test")
    assert chat.ask(some(400), some(1000, 1)) == 1


@HARD
def test_t41_hits_do_not_depend_on_lengths(layers: Any) -> None:
    for shared, own in ((1500, 700), (1600, 600), (527, 100), (528, 100), (529, 1)):
        chat = Chat(layers)
        chat.ask(some(shared), some(own, 1))
        assert chat.ask(some(shared), some(own, 2)) == own


@HARD
def test_t47_a_side_request_with_the_same_system_text_takes_nobody_s_place(layers: Any) -> None:
    chat = Chat(layers)
    system = some(2000)
    chat.ask(system, some(500, 1))
    assert chat.ask(system, some(300, 2)) == 300
    assert chat.ask(system, some(500, 1), [7]) == 1
    assert chat.ask(system, some(300, 2), [8]) == 1


# -- memory ----------------------------------------------------------------------------------------


@HARD
def test_t109_an_agent_s_session_keeps_its_budget_whatever_comes(layers: Any) -> None:
    chat = Chat(layers, budget_bytes=200_000)
    turns = [some(5000)]
    for number in range(12):
        turns.append(some(900, number))
        chat.ask(*turns, reply=3)
        if number % 4 == 1:
            turns[-2] = some(700, 50 + number)
        memory = chat.session._memory
        assert memory.nbytes <= 200_000


def test_t110_nothing_wires_memory() -> None:
    sources = Path(ds4tui.__file__).parent.rglob("*.py")
    assert not [path for path in sources if "set_wired_limit" in path.read_text("utf-8")]


@HARD
def test_t111_requests_that_come_again_leave_nothing(layers: Any) -> None:
    chat = Chat(layers, budget_bytes=40_000)
    held = []
    for number in range(18):
        chat.ask(some(300), some(200, number % 3), reply=4)
        memory = chat.session._memory
        held.append(memory.nbytes + chat.session.kv_bytes)
    assert max(held[9:]) <= max(held[3:9])


@HARD
def test_t112_long_replies_keep_no_handle_for_each_token(layers: Any) -> None:
    chat = Chat(layers, budget_bytes=30_000)
    chat.ask(some(100), some(50))
    counts = []
    for _ in range(3):
        for token in range(300):
            chat.session.append(token % 40)
        gc.collect()
        arrays = sum(isinstance(o, np.ndarray) for o in gc.get_objects())
        memory = chat.session._memory
        entries = memory.snapshot_count + memory.segment_count + memory.parked_count
        counts.append((entries, arrays))
        assert entries <= MAX_ENTRIES and memory.nbytes <= 30_000
    assert counts[2][0] - counts[1][0] <= 40
    assert counts[2][1] - counts[1][1] <= 200
