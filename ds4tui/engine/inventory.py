"""What loading a file would do with each of its tensors, found out without reading them.

The family's own loading code runs over a path that makes nothing of a matrix but a note, so
names, shapes and what is used are those of a real load; only vectors and weights of convolutions
are read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, Self, cast

import mlx.core as mx
import numpy as np

from ds4tui.engine.device_memory import available_bytes
from ds4tui.engine.gguf import GGUFFile, TensorInfo
from ds4tui.engine.holding import Holding, matrix_holding, required_bytes, vector_holding
from ds4tui.engine.layers import MatrixSource
from ds4tui.engine.models.registry import Config, family_of, granted_context, path_for
from ds4tui.engine.paging import LoadWish, paged_path
from ds4tui.errors import GGUFError, OutOfMemory
from ds4tui.kernels.choice import AnyBlock, AnyShape, AnyWeights, ComputePath, WeightSource
from ds4tui.kernels.decoder import Decoder, Ends
from ds4tui.kernels.linear import Linear
from ds4tui.kernels.policy import EXACT, LoadedWeightsPolicy
from ds4tui.kernels.stack import Stack

KV_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """`holding` is None for a tensor that the model does not use."""

    info: TensorInfo
    holding: Holding | None

    @property
    def elements(self) -> int:
        return math.prod(self.info.shape)


@dataclass(frozen=True, slots=True)
class ContextCost:
    """`kv_bytes` of KV_TOKENS tokens, `own_bytes` of the model's whole context; `fitting_tokens`
    is the context that would be granted now, 0 if the model does not fit."""

    own_tokens: int
    kv_bytes: int
    own_bytes: int
    fitting_tokens: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """`required_bytes`: the peak of loading, without any context. Where `problem` is not empty
    the model cannot be run, and how tensors are held is what would be done with any file."""

    tensors: tuple[PlacedTensor, ...]
    required_bytes: int
    available_bytes: int
    context: ContextCost | None
    words: str
    requantise_works: bool
    problem: str = ""

    @property
    def weights_bytes(self) -> int:
        return sum(t.holding.nbytes for t in self.tensors if t.holding is not None)

    @property
    def unused(self) -> list[PlacedTensor]:
        return [t for t in self.tensors if t.holding is None]

    @property
    def fits(self) -> bool:
        return not self.problem and self.context is not None and self.context.fitting_tokens > 0


def inventory(
    gguf: GGUFFile,
    policy: LoadedWeightsPolicy = EXACT,
    asked: int = 0,
    expert_cache_bytes: int | None = None,
) -> Inventory:
    """Of this machine, as it is now. `asked`: the setting context_tokens. Raises nothing for a
    file that cannot be run: that is what `problem` is for."""
    path, available = path_for(policy, hybrids=False), available_bytes()
    tensors: list[PlacedTensor]
    context, problem, run_by = None, "", path.words
    try:
        family = family_of(gguf)
        config = family.config(gguf)
        wish = LoadWish(asked, expert_cache_bytes)
        path = paged_path(gguf, config, path_for(policy, config.is_hybrid), wish, available)
        context, run_by = _context(config, gguf, path, asked, available), config.run_by(path)
        plan = _Plan.of(path)
        model = family.load(config, gguf, plan, max(1, context.fitting_tokens))
        tensors = _placed(gguf, plan.held, model.unused_tensors)
    except GGUFError as exc:
        problem = exc.message
        tensors = [PlacedTensor(info, _usual(info, path)) for info in gguf.tensors.values()]
    return Inventory(
        tensors=tuple(tensors),
        required_bytes=required_bytes(gguf, path),
        available_bytes=available,
        context=context,
        words=f"{path.device.upper()}; {run_by}",
        requantise_works=path.matrices == "quantised",
        problem=problem,
    )


def _context(
    config: Config, gguf: GGUFFile, path: ComputePath, asked: int, available: int
) -> ContextCost:
    try:
        fitting = granted_context(config, gguf, path, asked, available)
    except OutOfMemory:
        fitting = 0
    own = config.context_tokens
    return ContextCost(
        own, config.kv_bytes(min(own, KV_TOKENS), path), config.kv_bytes(own, path), fitting
    )


def _placed(
    gguf: GGUFFile, matrices: dict[str, Holding], unused: Sequence[str]
) -> list[PlacedTensor]:
    def holding(info: TensorInfo) -> Holding | None:
        return None if info.name in unused else matrices.get(info.name, vector_holding(info))

    return [PlacedTensor(info, holding(info)) for info in gguf.tensors.values()]


def _usual(info: TensorInfo, path: ComputePath) -> Holding:
    return vector_holding(info) if len(info.shape) < 2 else matrix_holding(info, path)


class _Plan(ComputePath):
    """A path that notes how it would hold each matrix, by the tensor's name."""

    held: dict[str, Holding]

    @classmethod
    def of(cls, path: ComputePath) -> Self:
        plan = cls(**{f.name: getattr(path, f.name) for f in fields(path)})
        object.__setattr__(plan, "held", {})
        return plan

    def linear(self, weight: WeightSource) -> Linear:
        return _PlannedLinear(self._noted(weight, matrix_holding(_info(weight), self)))

    def exact_linear(self, weight: WeightSource) -> Linear:
        if self.host_blocks or self.matrices == "host":
            return self.linear(weight)
        return _PlannedLinear(self._noted(weight, vector_holding(_info(weight))))

    def stack(self, weight: WeightSource, of_experts: bool) -> Stack:
        count, out, columns = weight.shape  # of groups of rows, which lie in the file as one
        _, holding = self._noted(weight, matrix_holding(_info(weight), self))
        return _PlannedStack((count, out, columns), holding)

    def block(self, weights: AnyWeights, shape: AnyShape) -> AnyBlock:
        return cast(AnyBlock, None)

    def decoder(self, ends: Ends, blocks: Sequence[AnyBlock]) -> Decoder:
        return cast(Decoder, None)

    def _noted(self, weight: WeightSource, holding: Holding) -> tuple[TensorInfo, Holding]:
        info = _info(weight)
        self.held[info.name] = holding
        return info, holding


def _info(weight: WeightSource) -> TensorInfo:
    assert isinstance(weight, MatrixSource)
    return weight.info


class _PlannedLinear(Linear):
    def __init__(self, noted: tuple[TensorInfo, Holding]) -> None:
        info, holding = noted
        super().__init__((info.shape[0], info.shape[1]), holding.nbytes)
        self.form = holding.form

    def __call__(self, x: mx.array) -> NoReturn:
        raise TypeError("a planned matrix has no values")

    def rows(self, ids: np.ndarray) -> NoReturn:
        raise TypeError("a planned matrix has no values")

    def add_bias(self, bias: mx.array) -> None:
        pass

    def reorder(self, order: np.ndarray) -> None:
        pass


class _PlannedStack(Stack):
    def __init__(self, shape: tuple[int, int, int], holding: Holding) -> None:
        super().__init__(shape, holding.nbytes)
        self.form = holding.form

    def __call__(self, x: mx.array, experts: mx.array) -> Any:
        raise TypeError("a planned stack has no values")
