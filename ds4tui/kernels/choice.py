"""Which twin of each operation is in use, and why, in words.

The plain-MLX reference is always right; a twin is used where it was made for the device and
after it agreed with the reference on one small case per shape class in this process. A twin
that fails is disabled alone, with the reason in the log, the report and `doctor`.
DS4TUI_KERNELS=reference uses the reference for everything, openblas the NumPy twins in place of
the C++ ones.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol, cast

import mlx.core as mx

from ds4tui.errors import ConfigError
from ds4tui.kernels import attention, checks, hybrid_checks
from ds4tui.kernels.block import Attend, Block, BlockShape, BlockWeights
from ds4tui.kernels.cpu.attention import attend as cpu_attend
from ds4tui.kernels.cpu.decoder import HostBlock, HostDecoder
from ds4tui.kernels.cpu.delta import HostRule, numpy_rule, over_mlx
from ds4tui.kernels.cpu.hybrid import HostDeltaBlock, HostGatedBlock, HybridBlock, HybridDecoder
from ds4tui.kernels.cpu.kda import kda_rows
from ds4tui.kernels.cpu.linear import HostLinear
from ds4tui.kernels.cpu.native import check as native_check
from ds4tui.kernels.cpu.native.build import Unavailable
from ds4tui.kernels.cpu.native.decoder import NativeBlock, NativeDecoder
from ds4tui.kernels.cpu.native.delta import NativeRule
from ds4tui.kernels.cpu.native.library import Kernels, best
from ds4tui.kernels.cpu.native.linear import BlockSource, NativeLinear, NativeStack
from ds4tui.kernels.cpu.stack import HostStack
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.decoder import Decoder, DenseDecoder, Ends
from ds4tui.kernels.delta import (
    DeltaBlock,
    DeltaBlockWeights,
    DeltaRule,
    DeltaShape,
    channel_steps,
    delta_fused,
    delta_steps,
)
from ds4tui.kernels.delta_chunks import delta_chunks
from ds4tui.kernels.expert_cache import ExpertCache
from ds4tui.kernels.kda import ChannelRule, kda_chunks
from ds4tui.kernels.linear import DenseLinear, Linear, QuantisedLinear, QuantisedMatrix
from ds4tui.kernels.paged_stack import PagedStack
from ds4tui.kernels.policy import EXACT, LoadedWeightsPolicy
from ds4tui.kernels.stack import DenseStack, QuantisedStack, Stack

log = logging.getLogger(__name__)

Device = Literal["cpu", "gpu"]
Attention = Literal["reference", "openblas", "fused"]
Rule = Literal["reference", "fused", "chunks", "numpy", "native"]
Matrices = Literal["blocks", "host", "dense", "quantised"]
AnyBlock = Block | HostBlock | NativeBlock | DeltaBlock | HostGatedBlock | HostDeltaBlock
AnyShape = BlockShape | DeltaShape
AnyWeights = BlockWeights | DeltaBlockWeights


class WeightSource(BlockSource, Protocol):
    """A matrix of a file before it has a form on the device (engine/layers.py)."""

    def dense(self, dtype: mx.Dtype) -> mx.array: ...
    def quantised(self) -> QuantisedMatrix | None: ...


class PartSource(WeightSource, Protocol):
    def unpack(self, dtype: mx.Dtype) -> None:
        """Do ahead what `quantised` does before it needs the device, for rows of `dtype`."""


class StackSource(WeightSource, Protocol):
    """The matrices of experts, one behind the other."""

    def at(self, place: int) -> PartSource: ...


@dataclass(frozen=True, slots=True)
class ComputePath:
    """How a model is held and run.

    matrices: the file's own blocks (multiplied by `native`), float32 in NumPy, dense in MLX, or
    quantised in MLX where that is exact. activations: dtype of rows, keys and values.
    host_blocks: whole blocks run outside of MLX and the state keeps its rows in NumPy; those of
    hybrids do where hybrid_blocks. policy: what the source of a matrix may do where there is no
    exact quantised form. rule: what computes the gated delta rule; the last two for hybrid_blocks.
    experts: holds those that were copied when a row picked them; None: all are held. is_short: the
    model is larger than the memory, so that blocks of experts are not read in ahead.
    """

    device: Device
    matrices: Matrices
    activations: mx.Dtype
    attention: Attention
    host_blocks: bool
    native: Kernels | None = None
    policy: LoadedWeightsPolicy = EXACT
    hybrid_blocks: bool = False
    rule: Rule = "reference"
    experts: ExpertCache[Linear] | None = None
    is_short: bool = False

    @property
    def copies_weights(self) -> bool:
        """Whether MLX holds copies of matrices, which may be made when they are wanted."""
        return self.matrices in ("dense", "quantised")

    def linear(self, weight: WeightSource) -> Linear:
        """`weight` in the form of this path; a matrix with no exact quantised form is dense."""
        if self.native is not None:
            return NativeLinear(self.native, weight)
        if self.matrices == "host":
            out, columns = weight.shape
            return HostLinear.read((out, columns), weight.host_rows)
        matrix = weight.quantised() if self.matrices == "quantised" else None
        if matrix is not None:
            return QuantisedLinear(matrix, self.activations)
        return DenseLinear(weight.dense(self.activations))

    def exact_linear(self, weight: WeightSource) -> Linear:
        """In float32: for a small matrix whose result decides between parts of the model."""
        if self.host_blocks or self.matrices == "host":
            return self.linear(weight)
        return DenseLinear(weight.dense(mx.float32))

    def stack(self, weight: StackSource, of_experts: bool) -> Stack:
        """As `linear`, of a tensor [matrices, out, in], which may be `of_experts`."""
        if self.experts is not None and of_experts:
            count, out, columns = weight.shape
            source = partial(_Expert, self, weight)
            return PagedStack((count, out, columns), source, self.experts)
        if self.native is not None:
            return NativeStack(self.native, weight, not (self.is_short and of_experts))
        if self.matrices == "host":
            return HostStack.read(weight.shape[0], weight.host_rows)
        matrix = weight.quantised() if self.matrices == "quantised" else None
        if matrix is not None:
            return QuantisedStack(matrix, self.activations)
        return DenseStack(weight.dense(self.activations))

    def runs_on_host(self, shapes: Sequence[AnyShape]) -> bool:
        """Whether blocks of these shapes run outside of MLX and keep what they keep in NumPy."""
        return self.hybrid_blocks if is_hybrid(shapes) else self.host_blocks

    def block(self, weights: AnyWeights, shape: AnyShape) -> AnyBlock:
        if isinstance(shape, DeltaShape):
            assert isinstance(weights, DeltaBlockWeights)
            if self.hybrid_blocks:
                return HostDeltaBlock(weights, shape, self._host_rule(shape))
            return DeltaBlock(weights, shape, _DEVICE_RULES[self.rule], self.activations)
        assert isinstance(weights, BlockWeights)
        if shape.gated and self.hybrid_blocks:
            return HostGatedBlock(weights, shape)
        if self.native is not None and not shape.gated:
            return NativeBlock(weights, shape)
        if self.host_blocks and not shape.gated:
            return HostBlock(weights, shape)
        return Block(weights, shape, _ATTENTION[self.attention], self.activations)

    def attend(self) -> Attend:
        """What computes attention in MLX."""
        return _ATTENTION[self.attention]

    def delta_rule(self, shape: DeltaShape) -> DeltaRule:
        """What computes the gated delta rule of MLX arrays."""
        if self.hybrid_blocks:
            return over_mlx(self._host_rule(replace(shape, key_heads=shape.value_heads)))
        return _DEVICE_RULES[self.rule]

    def channel_rule(self) -> ChannelRule:
        """What computes the delta rule whose channels forget each at a rate of its own."""
        if self.hybrid_blocks:
            return over_mlx(kda_rows)
        return channel_steps if self.rule == "reference" else kda_chunks

    def _host_rule(self, shape: DeltaShape) -> HostRule:
        if self.native is not None and self.rule == "native":
            return NativeRule(self.native, shape)
        return numpy_rule(shape)

    def decoder(self, ends: Ends, blocks: Sequence[AnyBlock]) -> Decoder:
        """The blocks must be this path's own."""
        if is_hybrid([block.shape for block in blocks]):
            if self.hybrid_blocks:
                return HybridDecoder(ends, cast(Sequence[HybridBlock], blocks))
            return DenseDecoder(ends, cast(Sequence[Block], blocks), self.activations)
        if self.native is not None:
            return NativeDecoder(self.native, ends, cast(Sequence[NativeBlock], blocks))
        if self.host_blocks:
            return HostDecoder(ends, cast(Sequence[HostBlock], blocks))
        return DenseDecoder(ends, cast(Sequence[Block], blocks), self.activations)

    def words_of(self, shapes: Sequence[AnyShape]) -> str:
        """What runs blocks of these shapes, for the log and the panel."""
        if not is_hybrid(shapes):
            return self.words
        products = "" if self.native is None else f" in C++ ({self.native.words})"
        if self.hybrid_blocks:
            if self.native is None:
                return self.words
            rule = " and the gated delta rule" if self.rule == "native" else ""
            return f"blocks in NumPy, matrix products{rule}{products}"
        how = {"fused": "by its kernel", "chunks": "in chunks"}.get(self.rule, "row by row")
        others = f"MLX, matrix products{products}" if products else self.words
        return f"{others}, the gated delta rule {how}"

    @property
    def words(self) -> str:
        """What multiplies matrices."""
        if self.native is not None:
            return f"whole steps in C++ ({self.native.words})"
        if self.matrices == "host":
            unit = "whole blocks" if self.host_blocks else "matrix products"
            return f"{unit} through NumPy's OpenBLAS on {workers().threads} threads"
        return "MLX reference" if self.attention == "reference" else "MLX"


class _Expert:
    """One of many matrices, held as `path` holds single ones."""

    def __init__(self, path: ComputePath, stack: StackSource, place: int) -> None:
        self._path, self._source = path, stack.at(place)

    def unpack(self) -> None:
        if self._path.matrices == "quantised":
            self._source.unpack(self._path.activations)

    def linear(self) -> Linear:
        return self._path.linear(self._source)


_ATTENTION: dict[Attention, Attend] = {
    "reference": attention.attend,
    "openblas": cpu_attend,
    "fused": attention.attend_fused,
}


_DEVICE_RULES: dict[Rule, DeltaRule] = {
    "reference": delta_steps,
    "fused": delta_fused,
    "chunks": delta_chunks,
}


def is_hybrid(shapes: Sequence[AnyShape]) -> bool:
    """Whether the model has blocks that whole steps in C++ do not know."""
    return any(isinstance(shape, DeltaShape) or shape.gated for shape in shapes)


@dataclass(frozen=True, slots=True)
class Twin:
    """One implementation beside the reference, and how it shows that it is right."""

    operation: str
    name: str
    device: Device
    check: checks.Check  # may raise Unavailable


TWINS = {
    twin.operation + " " + twin.device: twin
    for twin in (
        Twin("decoder step", "C++", "cpu", native_check.native_step),
        Twin("matrix product", "NumPy's OpenBLAS", "cpu", checks.host_linear),
        Twin("attention", "NumPy's OpenBLAS", "cpu", checks.host_attention),
        Twin("decoder block", "NumPy", "cpu", checks.host_block),
        Twin("hybrid block", "NumPy", "cpu", hybrid_checks.host_hybrid_blocks),
        Twin("delta rule", "C++", "cpu", native_check.native_rule),
        Twin("attention", "MLX's fused attention", "gpu", checks.fused_attention),
        Twin("delta rule", "MLX's gated_delta_update", "gpu", hybrid_checks.fused_rule),
        Twin("delta rule in chunks", "MLX", "gpu", hybrid_checks.chunked_rule),
    )
}


@dataclass(frozen=True, slots=True)
class TwinReport:
    operation: str
    twin: str
    in_use: bool
    reason: str
    is_fault: bool  # it ran and was wrong


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What speaks against a twin, "" for nothing."""

    objection: str
    is_fault: bool = False


class TwinChoice:
    """Which twins may be used; checks each at most once. Owned by the engine thread."""

    def __init__(self, environment: Mapping[str, str], device: Device) -> None:
        self.device = device
        self._asked = _asked(environment)
        self._verdicts: dict[str, _Verdict] = {}  # by operation

    def usable(self, operation: str) -> bool:
        twin = TWINS.get(f"{operation} {self.device}")
        return twin is not None and not self._verdict(twin).objection

    def _verdict(self, twin: Twin) -> _Verdict:
        if twin.operation not in self._verdicts:
            self._verdicts[twin.operation] = self._judged(twin)
        return self._verdicts[twin.operation]

    def _judged(self, twin: Twin) -> _Verdict:
        if self._asked == "reference" or (self._asked == "openblas" and twin.name == "C++"):
            return _Verdict(f"DS4TUI_KERNELS={self._asked}")
        try:
            wrong = twin.check()
        except Unavailable as exc:
            log.warning("%s: %s cannot be used: %s", twin.operation, twin.name, exc)
            return _Verdict(str(exc))
        if wrong:
            log.error("%s: %s is disabled: %s", twin.operation, twin.name, wrong)
        return _Verdict(wrong, is_fault=bool(wrong))

    def path(self, hybrids: bool = True) -> ComputePath:
        """The largest units that this device has and that passed their checks. Without `hybrids`
        the path is for other models, and the twins that only hybrids have are not checked."""
        if self.device == "gpu":
            fused: Attention = "fused" if self.usable("attention") else "reference"
            rule = self._rule() if hybrids else "reference"
            return ComputePath("gpu", "quantised", mx.float16, fused, False, rule=rule)
        hybrids = hybrids and self.usable("hybrid block")
        if self.usable("decoder step"):
            return ComputePath(
                "cpu",
                "blocks",
                mx.float32,
                "openblas",
                True,
                best(),
                hybrid_blocks=hybrids,
                rule=self._host_rule(hybrids),
            )
        host = self.usable("matrix product")
        attend: Attention = "openblas" if self.usable("attention") else "reference"
        blocks = host and attend == "openblas" and self.usable("decoder block")
        return ComputePath(
            "cpu",
            "host" if host else "dense",
            mx.float32,
            attend,
            blocks,
            hybrid_blocks=blocks and hybrids,
            rule="numpy" if blocks and hybrids else "reference",
        )

    def _rule(self) -> Rule:
        """Of a GPU."""
        if self.usable("delta rule"):
            return "fused"
        return "chunks" if self.usable("delta rule in chunks") else "reference"

    def _host_rule(self, hybrids: bool) -> Rule:
        if not hybrids:
            return "reference"
        return "native" if self.usable("delta rule") else "numpy"

    def report(self) -> tuple[TwinReport, ...]:
        """One line a twin of this device; checks those that were not needed yet."""
        return tuple(self._line(t) for t in TWINS.values() if t.device == self.device)

    def _line(self, twin: Twin) -> TwinReport:
        verdict = self._verdict(twin)
        reason, in_use = verdict.objection or "agrees with the reference", not verdict.objection
        whole = twin.operation in ("decoder step", "hybrid block", "delta rule")
        if in_use and not whole and self.usable("decoder step"):
            reason, in_use = f"{reason}; whole steps run in C++", False
        elif in_use and twin.device == "cpu" and twin.operation == "delta rule":
            if self.path().rule != "native":
                reason, in_use = f"{reason}; nothing else runs in C++", False
        return TwinReport(twin.operation, twin.name, in_use, reason, verdict.is_fault)


_choices: dict[tuple[str, Device], TwinChoice] = {}


def current() -> TwinChoice:
    """The choice for MLX's default device and this process's environment."""
    device: Device = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
    key = (_asked(os.environ), device)
    if key not in _choices:
        _choices[key] = TwinChoice(os.environ, device)
    return _choices[key]


def report() -> tuple[TwinReport, ...]:
    return current().report()


def _asked(environment: Mapping[str, str]) -> str:
    value = environment.get("DS4TUI_KERNELS", "")
    if value not in ("", "auto", "reference", "openblas"):
        raise ConfigError(
            f"DS4TUI_KERNELS is {value!r}.",
            "Set it to reference, openblas or auto, or leave it unset.",
        )
    return "" if value == "auto" else value
