"""The compiled kernels, as Python calls them. The structures are those of source/step.cpp.

A call lets other Python threads run, and only one call may run at a time: the engine thread's.
"""

import ctypes
import logging
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import cache

import numpy as np
import numpy.typing as npt

from ds4tui.kernels.cpu.native.build import Unavailable, built
from ds4tui.kernels.cpu.native.variants import Variant, runnable
from ds4tui.kernels.cpu.threads import workers

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]


class MatrixStruct(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        ("order", c_void_p),
        ("row_bytes", c_int64),
        ("type", c_int32),
        ("out", c_int32),
        ("columns", c_int32),
        ("unused", c_int32),
    )


class ExpertsStruct(Structure):
    _fields_ = (
        ("router", MatrixStruct),
        ("gate_bytes", c_int64),
        ("up_bytes", c_int64),
        ("down_bytes", c_int64),
        ("count", c_int32),
        ("used", c_int32),
    )


class LayerStruct(Structure):
    _fields_ = (
        *((name, MatrixStruct) for name in ("q", "k", "v", "output", "gate", "up", "down")),
        ("experts", POINTER(ExpertsStruct)),
        ("attn_norm", c_void_p),
        ("ffn_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("attn_post_norm", c_void_p),
        ("ffn_post_norm", c_void_p),
        ("window", c_int32),
        ("turn", c_int32),
    )


class ModelStruct(Structure):
    _fields_ = (
        ("layers", POINTER(LayerStruct)),
        ("embedding", MatrixStruct),
        ("head", MatrixStruct),
        ("output_norm", c_void_p),
        ("blocks", c_int32),
        ("width", c_int32),
        ("inner", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("key_size", c_int32),
        ("value_size", c_int32),
        ("is_gelu", c_int32),
        ("experts", c_int32),
        ("norm_epsilon", c_float),
        ("score_scale", c_float),
        ("embedding_scale", c_float),
    )


class CacheStruct(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("capacity", c_int64),
        ("base", c_int64),
    )


class StepStruct(Structure):
    _fields_ = (
        ("ids", c_void_p),
        ("embedded", c_void_p),
        ("turns", c_void_p * 2),
        ("caches", POINTER(CacheStruct)),
        ("logits", c_void_p),
        ("added", c_void_p),
        ("sight", c_void_p),
        ("rows", c_int32),
        ("first", c_int32),
        ("logit_rows", c_int32),
        ("pairs", c_int32 * 2),
        ("added_blocks", c_int32),
    )


class DeltaStruct(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v", "kept", "rates", "state", "out")),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride")),
        *((name, c_int32) for name in ("rows", "key_heads", "value_heads")),
        *((name, c_int32) for name in ("key_size", "value_size", "tiled")),
    )


STRUCTS = (
    MatrixStruct,
    LayerStruct,
    ModelStruct,
    CacheStruct,
    StepStruct,
    ExpertsStruct,
    DeltaStruct,
)


class Kernels:
    """One variant, loaded. Raises Unavailable if it cannot be."""

    def __init__(self, variant: Variant) -> None:
        path = built(variant)
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as exc:
            raise Unavailable(f"the compiled kernels cannot be loaded: {exc}") from exc
        self.variant, self.threads = variant, 0
        self._library.ds4_step.argtypes = (POINTER(ModelStruct), POINTER(StepStruct))
        self._library.ds4_product.argtypes = (POINTER(MatrixStruct), c_void_p, c_void_p, c_int32)
        self._library.ds4_rows.argtypes = (POINTER(MatrixStruct), c_void_p, c_int32, c_void_p)
        self._library.ds4_delta.argtypes = (POINTER(DeltaStruct),)
        self._library.ds4_will_need.argtypes = (c_void_p, c_int64)
        sizes = (c_int64 * len(STRUCTS))()
        self._library.ds4_sizes(sizes)
        if list(sizes) != [ctypes.sizeof(struct) for struct in STRUCTS]:
            raise Unavailable("the compiler lays structures out differently")

    def start(self, threads: int) -> None:
        """Share the work among so many threads, the caller's among them."""
        self._expect(self._library.ds4_start(c_int32(threads)))
        self.threads = threads

    @property
    def words(self) -> str:
        return f"{self.variant.name}, {self.threads} threads"

    def step(self, model: ModelStruct, step: StepStruct) -> None:
        self._expect(self._library.ds4_step(ctypes.byref(model), ctypes.byref(step)))

    def delta(self, rows: DeltaStruct) -> None:
        self._expect(self._library.ds4_delta(ctypes.byref(rows)))

    def product(self, matrix: MatrixStruct, x: Floats) -> Floats:
        """x float32 [T, in] to a new [T, out]."""
        x = np.ascontiguousarray(x)
        y = np.empty((len(x), matrix.out), np.float32)
        answer = self._library.ds4_product(
            ctypes.byref(matrix), x.ctypes.data, y.ctypes.data, len(x)
        )
        self._expect(answer)
        return y

    def rows(self, matrix: MatrixStruct, ids: npt.NDArray[np.int64]) -> Floats:
        """Rows `ids` of the matrix, float32 [T, in]; ids must be rows of it."""
        ids = np.ascontiguousarray(ids, np.int64)
        y = np.empty((len(ids), matrix.columns), np.float32)
        self._library.ds4_rows(ctypes.byref(matrix), ids.ctypes.data, len(ids), y.ctypes.data)
        return y

    def will_need(self, view: npt.NDArray[np.uint8]) -> None:
        """Ask the system to read a view of a mapped file soon."""
        self._library.ds4_will_need(view.ctypes.data, view.nbytes)

    def _expect(self, answer: int) -> None:
        if answer == 1:
            raise MemoryError("The CPU kernels got no memory.")
        if answer:
            raise RuntimeError("The CPU kernels were not started.")


@cache
def loaded(variant: Variant) -> Kernels:
    """Raises Unavailable."""
    kernels = Kernels(variant)
    kernels.start(workers().threads)
    log.info("CPU kernels: %s, %d threads", variant.name, kernels.threads)
    return kernels


def best() -> Kernels:
    """The best variant that this CPU has. Raises Unavailable."""
    variants = runnable()
    if not variants:
        raise Unavailable("this CPU has neither AVX-512, AVX2 nor NEON")
    return loaded(variants[0])
