"""Tensors of a file as the parts a model is built of, in the form that this device wants."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGMLQuantizationType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import is_experts, requantised_groups
from ds4tui.engine.repack import Groups
from ds4tui.engine.requantise import RequantiseError, requantised
from ds4tui.engine.weights import Weight, WeightLoader
from ds4tui.errors import GGUFError
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.linear import Linear, QuantisedMatrix
from ds4tui.kernels.policy import LoadedWeightsPolicy
from ds4tui.kernels.stack import Stack

Order = npt.NDArray[np.int64]
LookUp = Callable[[Order], npt.NDArray[np.float32]]  # of row numbers [N]: [N, columns]

log = logging.getLogger(__name__)

WHOLE_NUMBERS: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.I8: np.dtype("i1"),
    GGMLQuantizationType.I16: np.dtype("<i2"),
    GGMLQuantizationType.I32: np.dtype("<i4"),
    GGMLQuantizationType.I64: np.dtype("<i8"),
}


class LayerLoader:
    """Hands out matrices and vectors by name; counts what it made of them.

    Raises GGUFError, naming the tensor, for one that is missing or of another shape.
    """

    def __init__(self, gguf: GGUFFile, path: ComputePath) -> None:
        self._gguf, self._path = gguf, path
        self._weights = WeightLoader(gguf)
        self._vector_bytes = 0
        self._copied_bytes = 0  # of experts that are not held but copied into a cache
        self._matrix_bytes: dict[str, list[int]] = defaultdict(list)  # by form
        self.requantised: list[RequantiseError] = []

    def matrix(self, name: str, out: int, columns: int, order: Order | None = None) -> Linear:
        """The product with tensor `name`.weight [out, columns], and `name`.bias if there is one;
        `order` is the one to bring its rows to."""
        linear = self._path.linear(self._source(name, out, columns))
        self._count(linear)
        if order is not None:
            linear.reorder(order)
        bias = self._weights.take_optional(f"{name}.bias", (out,))
        if bias is not None:
            self._vector_bytes += 4 * out
            linear.add_bias(bias.dense() if order is None else bias.dense()[mx.array(order)])
        return linear

    def exact_matrix(self, name: str, out: int, columns: int, order: Order | None = None) -> Linear:
        """As `matrix`, without a bias and held in float32: for one that is small and decides."""
        linear = self._path.exact_linear(self._source(name, out, columns))
        self._count(linear)
        if order is not None:
            linear.reorder(order)
        return linear

    def table(self, name: str, rows: int, columns: int) -> mx.array:
        """Tensor `name` as float32 [rows, columns]: for one that takes part in no product."""
        table = self._weights.take(name, (rows, columns)).dense()
        self._vector_bytes += int(table.nbytes)
        return table

    def kernel(self, name: str, channels: int, rows: int) -> mx.array:
        """Tensor `name`, the weights of a convolution of each channel by itself, as float32
        [channels, rows], whatever axes of one it has besides."""
        info = self._gguf.tensors.get(name)
        axes = () if info is None else info.shape
        is_kernel = [n for n in axes if n > 1] == [n for n in (channels, rows) if n > 1]
        weight = self._weights.take(name, axes if is_kernel else (channels, rows))
        table = weight.dense().reshape(channels, rows)
        self._vector_bytes += int(table.nbytes)
        return table

    def row(self, name: str, size: int) -> mx.array:
        """Tensor `name`, a vector or a matrix of one row, as float32 [size]."""
        info = self._gguf.tensors.get(name)
        if info is not None and len(info.shape) == 2:
            return self.table(name, 1, size)[0]
        return self.vector(name, size)

    def look_up(self, name: str, rows: int, columns: int) -> LookUp:
        """Reads rows of tensor `name`, at least so many of `columns` values, by their numbers
        from the map, and nothing else of it: for tables larger than the memory."""
        info = self._gguf.tensor(name)
        held = max(rows, info.shape[0]) if len(info.shape) == 2 else rows
        weight = self._weights.take(name, (held, columns))
        self._gguf.require_values(name)
        return partial(_looked_up, weight.blocks(), weight.ggml_type)

    def stack(self, name: str, count: int, out: int, columns: int) -> Stack:
        """The products with the matrices of tensor `name`.weight [count, out, columns]."""
        source = self._source(name, count, out, columns)
        stack = self._path.stack(source, is_experts(source.info))
        self._count(stack)
        if self._path.experts is not None and is_experts(source.info):
            self._copied_bytes += stack.nbytes
        return stack

    def groups(self, name: str, count: int, out: int, columns: int) -> Stack:
        """The products with `count` matrices [out, columns] whose rows stand one behind the other
        in tensor `name`.weight."""
        self._weights.take(f"{name}.weight", (count * out, columns))
        self._gguf.require_values(f"{name}.weight")
        weight = Weight(self._gguf, f"{name}.weight", groups=count)
        source = MatrixSource(self._gguf, weight, self._path.policy, self._note)
        stack = self._path.stack(source, of_experts=False)
        self._count(stack)
        return stack

    def whole_numbers(self, name: str, rows: int, columns: int) -> npt.NDArray[np.integer]:
        """Tensor `name` [rows, columns] of a whole-number type. Raises GGUFError for another."""
        weight = self._weights.take(name, (rows, columns))
        kind = WHOLE_NUMBERS.get(weight.ggml_type)
        if kind is None:
            raise GGUFError(
                f"{self._gguf.path.name}: the tensor {name} is of type {weight.ggml_type.name}, "
                "not of whole numbers.",
                "Get another conversion of this model.",
            )
        table = np.array(weight.blocks().view(kind))
        self._vector_bytes += table.nbytes
        return table

    def vector(self, name: str, size: int, order: Order | None = None) -> mx.array:
        """Tensor `name` as float32 [size], brought to `order`."""
        vector = self._weights.take(name, (size,)).dense()
        self._vector_bytes += int(vector.nbytes)
        return vector if order is None else vector[mx.array(order)]

    def _source(self, name: str, *shape: int) -> "MatrixSource":
        weight = self._weights.take(f"{name}.weight", shape)
        self._gguf.require_values(f"{name}.weight")
        return MatrixSource(self._gguf, weight, self._path.policy, self._note)

    def _note(self, error: RequantiseError) -> None:
        log.info("%s re-quantised to %d bits: %s", error.name, error.bits, error)
        self.requantised.append(error)

    def _count(self, part: Linear | Stack) -> None:
        self._matrix_bytes[part.form].append(part.nbytes)

    def has(self, name: str) -> bool:
        return name in self._gguf.tensors

    @property
    def nbytes(self) -> int:
        """Of all that is held; of experts that are copied when they are picked, the most that
        their cache takes."""
        every = self._vector_bytes + sum(map(sum, self._matrix_bytes.values()))
        cache = self._path.experts
        return every if cache is None else every - self._copied_bytes + cache.stats.budget_bytes

    def warn_of_unused(self, *elsewhere: str, left_out: Sequence[str] = ()) -> tuple[str, ...]:
        """Names of tensors that nobody took, which may change what the model means; those named
        `elsewhere` were read without this loader, those that begin with one of `left_out` are
        known to be of no use."""
        unused = [name for name in self._weights.unused() if name not in elsewhere]
        strange = [name for name in unused if not name.startswith(tuple(left_out))]
        if strange:
            names = ", ".join(strange[:8])
            log.warning("%s: %d tensors not used: %s", self._gguf.path.name, len(strange), names)
        return tuple(unused)

    def words(self, run_by: str = "") -> str:
        """The matrices and what runs them: "212 matrices held as .. (538 MiB); .."."""
        held = ", ".join(
            f"{_matrices(len(sizes))} held as {form} ({sum(sizes) / 2**20:,.0f} MiB)"
            for form, sizes in self._matrix_bytes.items()
        )
        if self.requantised:
            count, whole = len(self.requantised), RequantiseError.over("all", self.requantised)
            held += f"; {count} of them re-quantised to {whole.bits} bits ({whole})"
        return f"{self._path.device.upper()}; {held}; {run_by or self._path.words}"


def _looked_up(
    blocks: npt.NDArray[np.uint8], kind: GGMLQuantizationType, rows: Order
) -> npt.NDArray[np.float32]:
    return np.asarray(quants.dequantize(blocks[rows], kind), np.float32)


def _matrices(count: int) -> str:
    return "1 matrix" if count == 1 else f"{count} matrices"


class MatrixSource:
    """A Weight that also hands out a few rows at a time, for a matrix that is laid out anew,
    and knows what may be done to it. Errors of what was re-quantised go to `tell`."""

    def __init__(
        self,
        gguf: GGUFFile,
        weight: Weight,
        policy: LoadedWeightsPolicy,
        tell: Callable[[RequantiseError], None],
    ) -> None:
        self.info, self.shape, self.ggml_type = weight.info, weight.shape, weight.ggml_type
        self.blocks = weight.blocks
        self.dense = weight.dense
        self.host_rows = weight.host_rows
        self._gguf = gguf.handle()  # `at` is asked for when the loading is long over
        self._weight, self._policy, self._tell = weight, policy, tell
        self._unpacked: Groups | None = None

    def unpack(self, dtype: mx.Dtype) -> None:
        """Do ahead what `quantised` does before it needs the device, for rows of `dtype`; on any
        thread."""
        if requantised_groups(self.info, self._policy) is None:
            groups = self._weight.groups()
            if groups is not None and dtype == mx.float16:
                groups = groups.shortened()
            self._unpacked = groups

    def at(self, place: int) -> "MatrixSource":
        """Of several matrices along a first axis one, which is taken again and again: nothing is
        told of it."""
        weight = Weight(self._gguf, self.info.name, place)
        return MatrixSource(self._gguf, weight, self._policy, lambda _: None)

    def quantised(self) -> QuantisedMatrix | None:
        groups = requantised_groups(self.info, self._policy)
        if groups is None:
            return self._weight.quantised(self._policy.scales, self._unpacked)
        matrix, error = requantised(self._weight, *groups)
        self._tell(error)
        return matrix
