"""Planted faults: what a broken engine would do, in wrappers around the real one.

A fault of the state is a FaultyState, which does the wrong thing and reports the right length,
so that only the logits can tell. A fault of loading is a file that makes a right loader do what
a wrong one would do with the right file.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest

from ds4tui.cache.outline import Outline
from ds4tui.cache.plan import PlanKind, SyncPlan
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.models.registry import Model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.session import Session
from ds4tui.engine.state import BoundedState, LayerRows, ModelState, RowPart, RowSegment
from ds4tui.engine.state.buffers import DeviceBuffer, HostBuffer
from tests.golden.files import golden_path

# --- of the state ----------------------------------------------------------


class FaultyState:
    """A real state behind a plausible face: `length` is what a right state would hold."""

    layers: tuple[Any, ...] = ()  # nothing to see for the session's own checks

    def __init__(self, real: ModelState) -> None:
        self.real = real
        self.length = 0

    @property
    def nbytes(self) -> int:
        return self.real.nbytes

    @property
    def needs_snapshots(self) -> bool:
        return self.real.needs_snapshots

    def has_room(self, count: int) -> bool:
        return self.real.has_room(count)

    @property
    def snapshot_bytes(self) -> int:
        return self.real.snapshot_bytes

    def can_rewind(self, to: int) -> bool:
        return 0 <= to <= self.length

    def rewind(self, to: int) -> None:
        self.rewind_wrongly(to)
        self.length = to

    def rebuild(self, keep: int, parts: Sequence[RowPart], bounded: BoundedState | None) -> None:
        self.rewind(keep)
        if parts or bounded is not None:
            real_parts = [(getattr(s, "real", s), start, end) for s, start, end in parts]
            self.real.rebuild(self.real.length, real_parts, bounded)
            self.length = max([keep, *(end for _, _, end in parts)])

    def rows(self, layer: int, start: int, end: int) -> LayerRows | None:
        return self.real.rows(layer, start, end)

    def rows_bytes(self, start: int, end: int) -> int:
        return 0  # not worth putting away: what is kept must come from a right state

    def copy_rows(self, start: int, end: int) -> RowSegment:
        return self.real.copy_rows(start, end)

    def snapshot(self) -> BoundedState | None:
        return self.real.snapshot()

    def rewind_wrongly(self, to: int) -> None:
        """The base is right: it shows that the wrapper itself does no harm."""
        self.real.rewind(to)

    def fed(self, rows: Rows) -> Rows:
        return rows


class StaleRow(FaultyState):
    """A rewind leaves one row too many."""

    def rewind_wrongly(self, to: int) -> None:
        self.real.rewind(min(to + 1, self.real.length))


class LostRow(FaultyState):
    """A rewind takes one row too many: the rows that follow are off by one."""

    def rewind_wrongly(self, to: int) -> None:
        self.real.rewind(max(to - 1, 0))


class FedTwice(FaultyState):
    """An exact hit evaluates the last token again without dropping its first row."""

    def rewind_wrongly(self, to: int) -> None:
        if to != self.length - 1:
            self.real.rewind(to)


class UnevenLayer(FaultyState):
    """One layer of the model goes back further than the others."""

    def rewind_wrongly(self, to: int) -> None:
        for i, layer in enumerate(self.real.layers):
            layer.rewind(max(to - 1, 0) if i == 1 else to)


class RopeOffByOne(FaultyState):
    """After a rewind, new rows are turned as if they stood one further."""

    shift = 0

    def rewind_wrongly(self, to: int) -> None:
        self.real.rewind(to)
        self.shift = int(to > 0)  # all rows turned alike would be right

    def fed(self, rows: Rows) -> Rows:
        return replace(rows, positions=rows.positions + np.int32(self.shift))


class FaultyModel:
    """A real model whose states are `state_class`."""

    def __init__(self, model: Model, state_class: type[FaultyState]) -> None:
        self._model, self._state_class = model, state_class
        self.context_tokens = model.context_tokens

    def new_state(self) -> FaultyState:
        return self._state_class(self._model.new_state())

    def forward(self, rows: Rows, state: FaultyState) -> mx.array | None:
        logits = self._model.forward(state.fed(rows), state.real)
        state.length += len(rows)
        return logits

    def kv_bytes(self, tokens: int) -> int:
        return self._model.kv_bytes(tokens)


class GreedySession(Session):
    """Keeps the first token that differs: the common prefix is taken one too long."""

    def plan(self, wanted: Timeline, outline: Outline = ()) -> SyncPlan:
        plan = super().plan(wanted, outline)
        if plan.kind is not PlanKind.REWIND or plan.kept + 1 >= len(wanted):
            return plan
        plan = replace(
            plan,
            kept=plan.kept + 1,
            base_rows=plan.base_rows + 1,
            dropped=plan.dropped - 1,
            to_evaluate=plan.to_evaluate - 1,
        )
        self._planned = plan, wanted, outline
        return plan


class OpenlyUneven:
    """As UnevenLayer, without the face: for the session's own checks to find."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.context_tokens = model.context_tokens
        self.forward, self.kv_bytes = model.forward, model.kv_bytes

    def new_state(self) -> ModelState:
        state = self._model.new_state()
        layer = state.layers[1]
        real = layer.rewind
        layer.rewind = lambda to: real(max(to - 1, 0))  # type: ignore[method-assign]
        return state


def lose_a_row_when_growing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A growing buffer of rows does not copy its last one, in NumPy and in MLX."""
    for kind in (HostBuffer, DeviceBuffer):
        monkeypatch.setattr(kind, "make", _making_without_a_row(kind.make))


def _making_without_a_row(make: Callable[..., None]) -> Callable[..., None]:
    def faulty(buffer: Any, capacity: int, like: Any, start: int, end: int) -> None:
        make(buffer, capacity, like, start, max(start, end - 1))

    return faulty


# --- of loading ------------------------------------------------------------


@dataclass(frozen=True)
class FileFault:
    """`change` makes a copy of `family`'s file such that a right loader does wrong."""

    family: str
    change: Callable[[Path], None]

    def planted(self, folder: Path) -> Path:
        path = folder / "faulty.gguf"
        shutil.copy(golden_path(self.family), path)
        self.change(path)
        return path


def tensors(path: Path, *suffixes: str) -> list[np.ndarray]:
    """Writable views of all tensors whose names end so, as (rows, columns)."""
    reader = gguf.GGUFReader(path, "r+")
    return [tensor.data for tensor in reader.tensors if tensor.name.endswith(suffixes)]


def _rename(path: Path, old: str, new: str) -> None:
    """Give a tensor another name of the same length."""
    content = path.read_bytes()
    before, after = (len(name).to_bytes(8, "little") + name.encode() for name in (old, new))
    assert content.count(before) == 1 and len(old) == len(new)
    path.write_bytes(content.replace(before, after))


HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 16  # of the tiny llamas


def spread_heads(path: Path) -> None:
    """Query head h reads key head h % KV_HEADS instead of h // (HEADS // KV_HEADS)."""
    order = np.arange(HEADS).reshape(-1, KV_HEADS).T.reshape(-1)
    lines = (order[:, None] * HEAD_SIZE + np.arange(HEAD_SIZE)).reshape(-1)
    for q in tensors(path, "attn_q.weight"):
        q[:] = q[lines]
    for output in tensors(path, "attn_output.weight"):
        output[:] = output[:, lines]


def unpermute(path: Path) -> None:
    """Q and K rows are not brought to the order that the rope pairs."""
    for matrix in tensors(path, "attn_q.weight", "attn_k.weight"):
        pairs = matrix.reshape(-1, HEAD_SIZE // 2, 2, matrix.shape[1])
        matrix[:] = pairs.swapaxes(1, 2).reshape(matrix.shape).copy()


def tie_output(path: Path) -> None:
    """The embedding is used for the output although the file has an output matrix."""
    _rename(path, "output.weight", "ignored.weigh")


def ignore_rope_factors(path: Path) -> None:
    _rename(path, "rope_freqs.weight", "ignored_freqs.wei")


def round_weights(path: Path) -> None:
    """Matrices are held in float16."""
    for matrix in tensors(path, ".weight"):
        matrix[:] = matrix.astype(np.float16).astype(np.float32)


FILE_FAULTS = {
    "wrong key head": FileFault("llama", spread_heads),
    "no q/k permutation": FileFault("llama", unpermute),
    "output tied wrongly": FileFault("llama", tie_output),
    "rope factors ignored": FileFault("llama-rope3", ignore_rope_factors),
    "weights rounded to float16": FileFault("llama", round_weights),
}
STATE_FAULTS: dict[str, type[FaultyState]] = {
    "a stale row after a rewind": StaleRow,
    "a row lost by a rewind": LostRow,
    "the last token fed twice on an exact hit": FedTwice,
    "a layer rewound to another length": UnevenLayer,
    "rope off by one after a rewind": RopeOffByOne,
}
