"""What may be done to the values of a file for the sake of memory. Nothing, unless asked for."""

from dataclasses import dataclass
from typing import Literal

Requantise = Literal["off", "8", "4"]
Scales = Literal["exact", "float16"]


@dataclass(frozen=True, slots=True)
class LoadedWeightsPolicy:
    """Concerns matrices that are held quantised in MLX; others are always exact.

    requantise: the bits that matrices without an exact quantised form are quantised to anew,
    instead of being held as plain numbers. scales: the K types' need float32; float16 rounds
    them (relative error up to 5e-4) and saves one bit a weight.

    Two models of one file with different policies compute different numbers.
    """

    requantise: Requantise = "off"
    scales: Scales = "exact"

    @property
    def identity(self) -> str:
        return f"requantise={self.requantise} scales={self.scales}"


EXACT = LoadedWeightsPolicy()
