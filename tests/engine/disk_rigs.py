"""Models of every kind of state and dtype, and what a conversation with one stores on disk.

A rig is named `model` or `model-dtype`: with a dtype the plain MLX reference keeps keys and values
of it. `fake-` ones have no arithmetic and take pictures, whose rows are hashed like others.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.outline import Turn
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine import disk_store
from ds4tui.engine.disk_store import Storing
from ds4tui.engine.models import registry
from ds4tui.engine.session import Session
from ds4tui.kernels import choice
from tests.cache.kv_samples import merge_short_pages
from tests.engine.histories import PLENTY, FakeRig, drain
from tests.engine.test_session_real import FamilyRig
from tests.fake_state import FakeLayer, RecurrentLayer, WindowLayer

DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
FAKES = {"fake-rows": FakeLayer, "fake-window": WindowLayer, "fake-recurrent": RecurrentLayer}
RIGS = (
    *("llama", "gemma3", "qwen35", "llama-f32", "llama-f16", "llama-bf16"),
    *("gemma3-bf16", "qwen35-f16", *FAKES),
)
SYSTEM_TOKENS, REPLY_TOKENS, TURNS = 30, 5, 9
DISK_BYTES = 64 << 20


def opened_rig(name: str) -> Any:
    """FakeRig or FamilyRig."""
    if name in FAKES:
        return FakeRig(layer_types=(FakeLayer, FAKES[name]))
    family, _, dtype = name.partition("-")
    if not dtype:
        return FamilyRig(family)
    found = choice.current().path()
    path = replace(
        found,
        matrices="dense",
        activations=DTYPES[dtype],
        attention="reference",
        host_blocks=False,
        native=None,
        hybrid_blocks=False,
        rule="reference",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "path_for", lambda policy, hybrids: path)
        return FamilyRig(family)


def make_pages_short(patch: pytest.MonkeyPatch) -> None:
    """So that little conversations have many records."""
    patch.setattr(disk_store, "MIN_TOKENS", 2)
    patch.setattr(disk_store, "SNAPSHOT_SPACING", 12)
    patch.setattr(disk_store, "PAGE_POSITIONS_MAX", 7)
    merge_short_pages(patch)


@dataclass
class Desk:
    """One session with a disk, as the engine has them."""

    session: Session
    disk: DiskTier
    storing: Storing

    @classmethod
    def of(cls, rig: Any, name: str, folder: Path) -> "Desk":
        identity = hashlib.sha256(name.encode()).digest()
        return cls.at(rig, DiskTier(folder, DISK_BYTES, identity, label=name, floor_bytes=0))

    @classmethod
    def at(cls, rig: Any, disk: DiskTier) -> "Desk":
        """With nothing in memory."""
        memory = MemoryTier(PLENTY)
        session = rig.session(memory)
        session._disk = disk
        return cls(session, disk, Storing(disk, memory, [session]))

    def stored(self, is_over: bool) -> None:
        self.storing.stepped(self.session, 1.0, is_prefilled=True, is_over=is_over)

    def settle(self) -> bool:
        """Everything that is due is on disk."""
        while self.storing.is_pending:
            self.storing.idle()
        return self.disk.flush(60.0) and self.disk.tidied(60.0) and not self.storing.failed

    def asked(self, prompt: Timeline) -> list[int]:
        """Greedy tokens, as a job has them: the last one is not fed."""
        outline = (Turn(0, SYSTEM_TOKENS, "system", b""),)
        logits = drain(self.session.sync(prompt, outline=outline), 8).logits
        self.stored(is_over=False)
        sampled = [int(np.argmax(logits))]
        while len(sampled) < REPLY_TOKENS:
            sampled.append(int(np.argmax(self.session.append(sampled[-1]))))
            self.stored(is_over=False)
        self.session.end_turn()
        self.stored(is_over=True)
        return sampled


class Script:
    """What people ask of a seed's conversation: it begins as others of the folder do, goes on
    with the replies that it gets, forks now and then, and has pictures where the rig takes them."""

    def __init__(self, name: str, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._has_pictures = name in FAKES
        self._vocab_size = 40 if name in FAKES else 288
        shared = np.random.default_rng(1).integers(0, self._vocab_size, SYSTEM_TOKENS)
        self.resident = Timeline.of(shared.tolist())
        self._earlier = [self.resident]

    def prompts(self) -> Iterator[Timeline]:
        """The reply to one is to be told by `answered` before the next is asked for."""
        for _ in range(TURNS):
            fork = self._random.random() < 0.3
            base = self._earlier[self._random.integers(len(self._earlier))]
            yield self._longer(base if fork else self.resident)

    def answered(self, prompt: Timeline, sampled: Sequence[int]) -> None:
        self._earlier.append(prompt)
        self.resident = prompt.extended(list(sampled))

    def _longer(self, base: Timeline) -> Timeline:
        found = base
        if self._has_pictures and self._random.random() < 0.6:
            rows, which = int(self._random.integers(2, 11)), int(self._random.integers(1, 4))
            span = ImageSpan(len(found), rows, bytes([which, rows]) * 8, (7,) * rows)
            found = found.extended([-(100 * which + row + 1) for row in range(rows)], (span,))
        count = int(self._random.integers(1, 14))
        return found.extended(self._random.integers(0, self._vocab_size, count).tolist())
