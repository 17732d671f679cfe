"""What is told from a header is what loading does."""

import math

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import matrix_holding, required_bytes, vector_holding
from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.repack import NATIVE_FORMS
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.policy import LoadedWeightsPolicy
from tests.engine.gguf_samples import write_gguf
from tests.engine.quantised_samples import QUANTISED, moderate_blocks

TYPES = [T.F32, T.F16, T.BF16, *QUANTISED]
POLICIES = {
    "exact": LoadedWeightsPolicy(),
    "rounded scales": LoadedWeightsPolicy(scales="float16"),
    "to 8 bits": LoadedWeightsPolicy("8"),
    "to 4 bits": LoadedWeightsPolicy("4", "float16"),
}
GPU = {
    f"{name}, {dtype}": ComputePath("gpu", "quantised", getattr(mx, dtype), "fused", False,
                                    policy=policy)
    for name, policy in POLICIES.items() for dtype in ("float16", "float32")
}  # fmt: skip
CPU = {
    "dense": ComputePath("cpu", "dense", mx.float32, "reference", False),
    "half": ComputePath("gpu", "dense", mx.float16, "reference", False),
    "host": ComputePath("cpu", "host", mx.float32, "openblas", True),
    "this machine": choice.current().path(),
}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> GGUFFile:
    """A matrix and a stack of each type."""
    rng = np.random.default_rng(0)
    tensors = {"norm.weight": (np.ones(64, np.float32), T.F32)}
    for kind in TYPES:
        for name, shape in (("matrix", (24, 512)), ("stack", (3, 8, 512))):
            if kind in (T.F32, T.F16):
                raw = rng.normal(size=shape).astype(np.float32 if kind is T.F32 else np.float16)
            elif kind is T.BF16:
                raw = rng.integers(0, 0x3F80, shape).astype(np.uint16).view(np.uint8)
            else:
                raw = moderate_blocks(rng, shape, kind)
            tensors[f"{name}.{kind.name}.weight"] = (raw, kind)
    path = tmp_path_factory.mktemp("holding") / "m.gguf"
    return GGUFFile.open(write_gguf(path, tensors))


@pytest.mark.parametrize("path", (GPU | CPU).values(), ids=(GPU | CPU).keys())
@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_forms_and_bytes_are_those_of_what_is_loaded(
    gguf: GGUFFile, kind: T, path: ComputePath
) -> None:
    loader = LayerLoader(gguf, path)
    matrix = loader.matrix(f"matrix.{kind.name}", 24, 512)
    told = matrix_holding(gguf.tensor(f"matrix.{kind.name}.weight"), path)
    assert (told.form, told.nbytes) == (matrix.form, matrix.nbytes)
    stack = loader.stack(f"stack.{kind.name}", 3, 8, 512)
    told = matrix_holding(gguf.tensor(f"stack.{kind.name}.weight"), path)
    assert (told.form, told.nbytes) == (stack.form, stack.nbytes)
    assert (told.way == "re-quantised") == (len(loader.requantised) == 2)


@pytest.mark.parametrize("path", GPU.values(), ids=GPU.keys())
@pytest.mark.parametrize("kind", TYPES, ids=lambda t: t.name)
def test_exact_means_that_no_number_is_another(gguf: GGUFFile, kind: T, path: ComputePath) -> None:
    """Rows are seen in float32, so that only what the form itself changed is seen."""
    info = gguf.tensor(f"matrix.{kind.name}.weight")
    wide = LayerLoader(gguf, path).matrix(f"matrix.{kind.name}", 24, 512)
    if hasattr(wide, "_matrix"):
        values = np.array(wide._matrix.held_for(mx.float32).values())
    else:
        values = np.array(wide.rows(np.arange(24)).astype(mx.float32))
    told = matrix_holding(info, path)
    if told.exact:
        np.testing.assert_array_equal(values, gguf.dequantised(info.name))
    else:
        assert not np.array_equal(values, gguf.dequantised(info.name))


@pytest.mark.parametrize(
    ("kind", "policy", "bits_a_weight"),
    [
        (T.Q4_0, "exact", 5.0),
        (T.Q5_1, "exact", 6.0),
        (T.Q8_0, "exact", 9.0),
        (T.Q4_K, "exact", 6.0),
        (T.Q5_K, "exact", 7.0),
        (T.Q4_K, "rounded scales", 5.0),
        (T.MXFP4, "exact", 4.25),
        (T.NVFP4, "exact", 4.5),
        (T.Q6_K, "exact", 16.0),
        (T.Q6_K, "to 8 bits", 8.5),
        (T.IQ2_XXS, "to 4 bits", 5.0),
        (T.Q4_K, "to 4 bits", 5.0),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_what_a_weight_costs_on_a_gpu(
    gguf: GGUFFile, kind: T, policy: str, bits_a_weight: float
) -> None:
    info = gguf.tensor(f"matrix.{kind.name}.weight")
    told = matrix_holding(info, GPU[f"{policy}, float16"])
    assert told.nbytes * 8 / math.prod(info.shape) == bits_a_weight


def test_nothing_is_quantised_anew_that_has_an_exact_form(gguf: GGUFFile) -> None:
    for info in gguf.tensors.values():
        if info.ggml_type in NATIVE_FORMS:
            assert matrix_holding(info, GPU["to 8 bits, float16"]).way == "native form"


@pytest.mark.parametrize("path", (GPU | CPU).values(), ids=(GPU | CPU).keys())
def test_loading_needs_all_tensors_and_the_largest_once_more(
    gguf: GGUFFile, path: ComputePath
) -> None:
    held = [
        (vector_holding(t) if len(t.shape) == 1 else matrix_holding(t, path)).nbytes
        for t in gguf.tensors.values()
    ]
    again = 0 if path.matrices == "blocks" else max(held)  # blocks stay where they are
    assert required_bytes(gguf, path) == sum(held) + again
