"""The colours that questions name, and foregrounds that can be read on them."""

import random

RGB = tuple[int, ...]

LIGHT: dict[str, RGB] = {
    "White": (255, 255, 255),
    "Light gray": (232, 232, 232),
    "Light yellow": (255, 248, 200),
    "Light blue": (205, 228, 255),
    "Light green": (208, 245, 208),
    "Pink": (255, 200, 215),
}
DARK: dict[str, RGB] = {
    "Black": (4, 4, 4),
    "Dark gray": (44, 44, 46),
    "Dark blue": (8, 18, 80),
    "Dark green": (6, 60, 22),
    "Purple": (82, 16, 112),
    "Brown": (92, 50, 18),
    "Dark red": (100, 6, 14),
}
MID: dict[str, RGB] = {
    "Red": (215, 30, 35),
    "Green": (26, 145, 52),
    "Blue": (25, 95, 225),
    "Orange": (250, 140, 10),
    "Yellow": (255, 225, 20),
    "Teal": (0, 135, 135),
    "Gray": (128, 128, 128),
}
# Below this luminance a background counts as dark, above as light.
DARK_BELOW = 130
READABLE_CONTRAST = 95


def luminance(colour: RGB) -> float:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]


def jitter(r: random.Random, colour: RGB, most: int = 6) -> RGB:
    return tuple(max(0, min(255, v + r.randint(-most, most))) for v in colour)


def mix(a: RGB, b: RGB, share_of_a: float) -> RGB:
    return tuple(int(share_of_a * x + (1 - share_of_a) * y) for x, y in zip(a, b, strict=True))


def background(r: random.Random, *, saturated: bool = False) -> tuple[str, RGB]:
    """A named background; `saturated` lets the strong colours in, too."""
    k = r.random()
    if saturated and k < 0.4:
        name = r.choice(list(MID))
        return name, jitter(r, MID[name])
    if k >= 0.7:
        name = r.choice(list(LIGHT) + list(DARK))
    elif r.random() < 0.5:
        name = r.choice(["White", "White", "Light gray", *LIGHT])
    else:
        name = r.choice(["Black", "Dark gray", "Dark gray", *DARK])
    return name, jitter(r, {**LIGHT, **DARK}[name], 4)


def foreground(r: random.Random, behind: RGB, *, coloured: bool = False) -> RGB:
    """A text colour with enough contrast against `behind`."""
    dark = luminance(behind) < DARK_BELOW
    for _ in range(12):
        if coloured and r.random() < 0.6:
            colour: RGB = tuple(r.randint(0, 255) for _ in range(3))
        else:
            v = r.randint(200, 255) if dark else r.randint(0, 60)
            colour = jitter(r, (v, v, v), 8)
        if abs(luminance(colour) - luminance(behind)) > READABLE_CONTRAST:
            return colour
    return (255, 255, 255) if dark else (0, 0, 0)


def theme(behind: RGB) -> str:
    return "Dark" if luminance(behind) < DARK_BELOW else "Light"
