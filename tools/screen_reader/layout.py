"""A scene and its sizes: line wrapping, a block of text, the picture around it."""

from dataclasses import dataclass

from tools.screen_reader.canvas import SIDE, Canvas
from tools.screen_reader.colours import RGB
from tools.screen_reader.faces import Font, font


@dataclass(frozen=True)
class Scene:
    """Picture size in px, its background, and (question, answer, weight) triples."""

    width: float
    height: float
    background: RGB
    questions: list[tuple[str, str, float]]
    kind: str


def wrap(t: str, n: int) -> list[str]:
    """Lines of at most n characters, broken at spaces, a word longer than that within it."""
    out = []
    cur = ""
    for x in t.split(" "):
        while len(x) > n:
            if cur:
                out.append(cur)
                cur = ""
            out.append(x[:n])
            x = x[n:]
        if not cur:
            cur = x
        elif len(cur) + 1 + len(x) <= n:
            cur += " " + x
        else:
            out.append(cur)
            cur = x
    if cur:
        out.append(cur)
    return out


def picture_size(c: Canvas, cw: float, ch: float, lh: float, aw: float) -> tuple[float, float]:
    """Width and height around a content box cw x ch (px): keeps shape and size of type in range.

    lh: line height, aw: mean advance of a character, both px.
    """
    r = c.r
    W = cw + r.randint(4, 40) + (r.random() ** 2) * 0.7 * cw
    W = min(W, aw * SIDE / c.least_width * 1.05)
    W = max(W, cw + 4, 120)
    H = ch + r.randint(4, 40) + (r.random() ** 2) * ch
    amax = 1 + r.random() ** 1.3 * (0.7 + 1.6 * c.difficulty)
    if W / H > amax:
        H = W / amax
    H = min(H, max(lh * SIDE / 19.0, ch + 4, W / 3.2))
    if W / H < 0.75:
        W = min(H * 0.75, max(W, aw * SIDE / c.least_width))
    return W, H


def block(
    c: Canvas, lines: list[str], *, mono: bool, spacing: float | None = None
) -> tuple[Font, float, float, float]:
    """A font for these lines, their width, the mean advance and the line height (px)."""
    r = c.r
    fk = font(r.choice(c.mono if mono else c.sans), c.px)
    cw = max(fk.width(t) for t in lines)
    a = sum(fk.width(t) for t in lines) / max(1, sum(len(t) for t in lines))
    lh = c.px * (spacing or r.uniform(1.2, 1.75))
    return fk, cw, a, lh
