"""What may be done to the values of a file for the sake of memory. Nothing, unless asked for."""

from dataclasses import dataclass
from typing import Literal

Requantise = Literal["off", "8", "4"]
Scales = Literal["exact", "float16"]


@dataclass(frozen=True, slots=True)
class LoadedWeightsPolicy:
    """Concerns matrices that are held quantised in MLX; others are always exact.

    requantise: the bits that matrices without an exact quantised form are quantised to anew,
    instead of being held as plain numbers. scales: the K types' need float32, and so do products
    with them; float16 rounds them to 11 bits and saves one bit a weight. On an H200 (MLX 0.32.4)
    a product of 1, 8 and 512 rows with Q4_K 8192 x 8192 took 110, 160 and 2859 µs with exact
    scales, 54, 52 and 610 µs with float16.

    Two models of one file with different policies compute different numbers.
    """

    requantise: Requantise = "off"
    scales: Scales = "exact"

    @property
    def identity(self) -> str:
        return f"requantise={self.requantise} scales={self.scales}"


EXACT = LoadedWeightsPolicy()
