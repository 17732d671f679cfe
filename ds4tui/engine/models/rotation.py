"""The rotary positions of a file: how far each pair of values turns from row to row.

Frequency j is freq_base^(-2j/rotary), slowed down for contexts longer than the model was first
trained for: all by one factor (linear); each by its own, worked out by the converter (the tensor
ROPE_FACTORS, llama3 scaling); or by YaRN (Peng et al. 2023, arXiv 2309.00071), which slows down
the pairs that turn less than once in the original context, keeps those that turn more than 32
times, blends between, and stretches what is turned by 1 + ln(factor) / 10.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.keys import count, impossible, not_read, positive, rotary_values
from ds4tui.engine.models.near import unread_scaling
from ds4tui.kernels.rope import Turn

Frequencies = npt.NDArray[np.float64]

ROPE_FACTORS = "rope_freqs.weight"
YARN_TURNS = {".rope.scaling.yarn_beta_fast": 32.0, ".rope.scaling.yarn_beta_slow": 1.0}


@dataclass(frozen=True, slots=True)
class Rotation:
    """frequencies: radians a position, [J]; magnitude: of what was turned. axes [J]: which of
    the positions in time, height and width turns each pair, in families that tell them apart."""

    frequencies: Frequencies
    magnitude: float = 1.0
    axes: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, gguf: GGUFFile, key_size: int, base_key: str = ".rope.freq_base") -> "Rotation":
        """As the file's keys have it. Raises GGUFError for a scaling that is not read."""
        rotary = rotary_values(gguf)
        if rotary > key_size:
            raise impossible(gguf, f"{rotary} rotary values do not fit heads of {key_size}.")
        base = positive(gguf, base_key, 10_000.0)
        plain = cls.plain(base, rotary)
        kind = gguf.key(".rope.scaling.type", str, "linear")
        if kind == "yarn":
            scaled = _yarn(gguf, plain.frequencies, base)
        elif kind in ("linear", "none"):
            scaled = cls(plain.frequencies / (_factor(gguf) if kind == "linear" else 1.0))
        else:
            what = f"rope scaling of type {kind!r} is not read{unread_scaling(kind)}."
            raise not_read(gguf, what)
        return cls(scaled.frequencies / _own_factors(gguf, rotary // 2), scaled.magnitude)

    @classmethod
    def plain(cls, base: float, rotary: int) -> "Rotation":
        return cls(base ** -(np.arange(0, rotary, 2, dtype=np.float64) / rotary))

    def interleaved(self, gguf: GGUFFile) -> "Rotation":
        """With pairs dealt out to time, height and width in turn, each up to its section. Raises
        GGUFError for sections that are not three or more."""
        sections, pairs = _sections(gguf), np.arange(len(self.frequencies))
        axes = np.where(pairs < 3 * sections[pairs % 3], pairs % 3, 0)
        return replace(self, axes=axes)

    def in_sections(self, gguf: GGUFFile) -> "Rotation":
        """With the first pairs turned by time, the next by height, the last by width. Raises
        GGUFError as above, and for sections that are not of all pairs."""
        sections, pairs = _sections(gguf)[:3], len(self.frequencies)
        if (sections < 0).any() or sections.sum() != pairs:
            raise impossible(gguf, f"sections of {sections.tolist()} are not of {pairs} pairs.")
        return replace(self, axes=np.repeat(np.arange(3), sections))

    def turn(self, positions: npt.NDArray[np.int32]) -> Turn:
        """positions [T]; or [3, T], of time, height and width. ValueError if there are three and
        the model does not tell them apart."""
        if positions.ndim == 2:
            if self.axes is None or len(positions) != 3:
                raise ValueError(f"Rows take positions [T], not {positions.shape}.")
            positions = positions[self.axes].T
        return Turn.at(positions, self.frequencies, self.magnitude)


def _sections(gguf: GGUFFile) -> npt.NDArray[np.int64]:
    sections = gguf.metadata.get(f"{gguf.architecture}.rope.dimension_sections")
    if not isinstance(sections, np.ndarray) or len(sections) < 3 or sections.dtype.kind not in "iu":
        raise impossible(gguf, "the key rope.dimension_sections does not hold sections.")
    return sections.astype(np.int64)


def _factor(gguf: GGUFFile) -> float:
    older = gguf.key(".rope.scale_linear", float, 1.0)
    return gguf.key(".rope.scaling.factor", float, older) or 1.0


def _yarn(gguf: GGUFFile, frequencies: Frequencies, base: float) -> Rotation:
    factor, pairs = _factor(gguf), len(frequencies)
    context = count(gguf, ".rope.scaling.original_context_length")

    def pair_turning(times: float) -> float:
        """The pair, as a fraction, that turns so often in the original context."""
        return pairs * math.log(context / (times * 2 * math.pi)) / math.log(base)

    for name, times in YARN_TURNS.items():  # llama.cpp does not look at these here either
        if gguf.key(name, float, times) != times:
            raise not_read(gguf, f"yarn with a {name[1:]} other than {times:g} is not read.")
    fast, slow = YARN_TURNS.values()
    first = max(0, math.floor(pair_turning(fast)))
    last = min(2 * pairs - 1, math.ceil(pair_turning(slow)))
    slowed = np.clip((np.arange(pairs) - first) / max(0.001, last - first), 0, 1)
    stretch = gguf.key(".rope.scaling.attn_factor", float, 1.0)
    return Rotation(
        frequencies * (1 - slowed + slowed / factor),
        stretch * (1 + 0.1 * math.log(factor) if factor > 1 else 1.0),
    )


def _own_factors(gguf: GGUFFile, pairs: int) -> npt.NDArray[np.float32] | float:
    if ROPE_FACTORS not in gguf.tensors:
        return 1.0
    factors = gguf.dequantised(ROPE_FACTORS)
    if factors.shape != (pairs,) or not (factors > 0).all():
        what = f"the tensor {ROPE_FACTORS} must hold {pairs} positive factors"
        raise impossible(gguf, f"{what}, not {list(factors.shape)}.")
    return factors
