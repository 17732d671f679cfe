"""Random blocks of every quantised type whose values are numbers."""

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from tests.engine import gguf_samples as samples

T = GGMLQuantizationType
Bytes = npt.NDArray[np.uint8]

# Where the float16 scales of a block are. IQ1_M's is spread over four 16-bit words.
FLOAT16_AT = {
    **{t: (0,) for t in (T.Q4_0, T.Q5_0, T.Q8_0, T.IQ4_NL, T.IQ4_XS)},
    **{t: (0,) for t in (T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S, T.IQ1_S)},
    **{t: (0, 2) for t in (T.Q4_1, T.Q5_1, T.Q4_K, T.Q5_K)},
    T.Q2_K: (80, 82),
    T.Q3_K: (108,),
    T.Q6_K: (208,),
    T.TQ1_0: (52,),
    T.TQ2_0: (64,),
}
QUANTISED = sorted(
    {*FLOAT16_AT, T.IQ1_M, T.MXFP4, T.NVFP4}, key=lambda t: (GGML_QUANT_SIZES[t][0], t.name)
)


def reference(raw: Bytes, ggml_type: T) -> npt.NDArray[np.float32]:
    """gguf's own values; those beyond float32 are infinite."""
    with np.errstate(all="ignore"):
        return quants.dequantize(raw, ggml_type)


def finite_rows(blocks: Bytes, ggml_type: T) -> npt.NDArray[np.bool_]:
    """Which blocks [n, bytes] have values that are numbers, and scales that MLX knows too."""
    if ggml_type is T.NVFP4:
        return (blocks[:, :4] != 0xFF).all(axis=1)
    if ggml_type is T.MXFP4:
        return blocks[:, 0] != 0xFF
    return np.isfinite(reference(blocks, ggml_type)).all(axis=1)


def finite_blocks(rng: np.random.Generator, shape: tuple[int, ...], ggml_type: T) -> Bytes:
    """Any bits, tiny scales too, but none that are no number."""
    raw = samples.random_blocks(rng, shape, ggml_type)
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[ggml_type][1])
    for at in FLOAT16_AT.get(ggml_type, ()):
        halves = rng.integers(0, 2**16, len(blocks)).astype(np.uint16)
        halves[(halves & 0x7C00) == 0x7C00] &= 0xBFFF  # the exponent of inf and nan
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    bad = ~finite_rows(blocks, ggml_type)
    blocks[bad] &= np.uint8(0x7F if ggml_type in (T.MXFP4, T.NVFP4) else 0)
    return raw


def moderate_blocks(rng: np.random.Generator, shape: tuple[int, ...], ggml_type: T) -> Bytes:
    """Random values and factors under scales of usual size."""
    raw = samples.random_blocks(rng, shape, ggml_type)
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[ggml_type][1])
    for at in FLOAT16_AT.get(ggml_type, ()):
        scales = rng.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if ggml_type is T.IQ1_M:  # the high four bits of each word make the scale: 0x2066 is 0.0086
        words = blocks[:, 48:56].view("<u2")
        words &= np.uint16(0x0FFF)
        words |= np.array([0x6, 0x6, 0x0, 0x2], np.uint16) << np.uint16(12)
    if ggml_type is T.MXFP4:
        blocks[:, 0] = rng.integers(120, 128, len(blocks))
    if ggml_type is T.NVFP4:
        blocks[:, :4] = rng.integers(0x20, 0x38, (len(blocks), 4))  # 2^-3 to 1
    return raw


def weight_blocks(rng: np.random.Generator, shape: tuple[int, ...], ggml_type: T) -> Bytes:
    """As moderate_blocks, of about the size that a model's matrices have: values with a mean
    square of 1 over the length of a row."""
    raw = moderate_blocks(rng, shape, ggml_type)
    blocks = raw.reshape(-1, GGML_QUANT_SIZES[ggml_type][1])
    root = float(np.sqrt(np.square(reference(raw, ggml_type)).mean() * shape[-1]))
    for at in FLOAT16_AT.get(ggml_type, ()):
        halves = np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)
        blocks[:, at : at + 2] = (halves / root).astype(np.float16).view(np.uint8)
    if ggml_type is T.MXFP4:
        blocks[:, 0] -= np.uint8(round(np.log2(root)))
    if ggml_type is T.NVFP4:
        blocks[:, :4] -= np.uint8(8 * min(4, round(np.log2(root))))
    return raw
