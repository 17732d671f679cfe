"""Pages full of text, for learning letters.

An encoder step costs the same however little a picture says, so a page that is full teaches about
ten times as many characters a second as a scene. One page has up to four panels, each with its own
face, size and colours, and many lines that no language model could guess.
"""

import math
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.screen_reader.canvas import SIDE, Canvas, draw
from tools.screen_reader.colours import RGB, background, foreground
from tools.screen_reader.faces import Faces, Font, font
from tools.screen_reader.layout import Scene
from tools.screen_reader.questions import ask, read_everything
from tools.screen_reader.screens import Screen
from tools.screen_reader.text import anyword, fname, hexid, ident, path, word

LEAST_WIDTH, MOST_WIDTH = 8.2, 18.0  # mean character, px of 512
LEAST_PITCH, MOST_PITCH = 19.0, 70.0  # lines, px of 512
PUNCTUATION = string.punctuation


def letters(r: random.Random, alphabet: str, least: int = 2, most: int = 9) -> str:
    return "".join(r.choices(alphabet, k=r.randint(least, most)))


def like_a_word(r: random.Random) -> str:
    """A dictionary word with one to three letters changed: it must be read, not guessed."""
    spelling = list(word(r))
    for _ in range(r.randint(1, 3)):
        spelling[r.randrange(len(spelling))] = r.choice(string.ascii_lowercase)
    return "".join(spelling)


WORDINGS: list[Callable[[random.Random], str]] = [
    word,
    anyword,
    like_a_word,
    lambda r: letters(r, string.ascii_lowercase),
    lambda r: letters(r, string.ascii_letters + string.digits),
    lambda r: letters(r, string.ascii_uppercase),
    lambda r: letters(r, string.digits, 1, 6),
    lambda r: letters(r, string.ascii_letters + string.digits + PUNCTUATION * 2),
    lambda r: r.choice([ident, fname, path, hexid])(r),
]
WEIGHTS = [5, 5, 4, 2, 2, 1, 1, 1, 2]


def filling(r: random.Random, face: Font, room_px: float) -> str:
    """A line of words of one or two kinds that just fits `room_px`."""
    makers = r.choices(WORDINGS, WEIGHTS, k=2)
    line, width, misses = "", 0.0, 0
    while misses < 3:
        more = (" " if line else "") + r.choice(makers)(r)
        if width + face.width(more) > room_px:
            misses += 1
        else:
            line += more
            width += face.width(more)
    return line


@dataclass(frozen=True)
class Panel:
    left: float
    top: float
    right: float
    bottom: float

    def split(self, r: random.Random) -> list["Panel"]:
        share = r.uniform(0.3, 0.7)
        if r.random() < 0.5:
            x = self.left + share * (self.right - self.left)
            return [
                Panel(self.left, self.top, x, self.bottom),
                Panel(x, self.top, self.right, self.bottom),
            ]
        y = self.top + share * (self.bottom - self.top)
        return [
            Panel(self.left, self.top, self.right, y),
            Panel(self.left, y, self.right, self.bottom),
        ]


def panels(r: random.Random, width: float, height: float) -> list[Panel]:
    parts = [Panel(0, 0, width, height)]
    for _ in range(r.choice([0, 0, 0, 1, 1, 2, 3])):
        parts += parts.pop(r.randrange(len(parts))).split(r)
    return parts


def highlighted(c: Canvas, x: float, y: float, line: str, face: Font, fill: RGB) -> None:
    """Draws one word of the line on a bar of another colour, as a selection or a button is."""
    words = line.split(" ")
    i = c.r.randrange(len(words))
    before = " ".join(words[:i]) + (" " if i else "")
    after = " ".join(words[i + 1 :])
    bar = background(c.r, saturated=True)[1]
    start = x + face.width(before)
    end = start + face.width(words[i])
    c.box((start - 2, y - 1, end + 2, y + face.size_px * 1.25), fill=bar, radius=c.r.choice([0, 3]))
    if before.strip():
        c.text(x, y, before.rstrip(), face, fill)
    c.text(start, y, words[i], face, foreground(c.r, bar))
    if after:
        c.text(end + face.width(" "), y, after, face, fill)


def fill_panel(c: Canvas, panel: Panel, face: Font, spacing: float, behind: RGB) -> None:
    r = c.r
    pad = r.uniform(1, face.size_px)
    fill = foreground(r, behind, coloured=True)
    y = panel.top + r.uniform(0, face.size_px)
    sparse, ragged = r.random() * 0.3, r.random() ** 2
    while y + face.size_px * 1.3 < panel.bottom:
        x = panel.left + pad
        if r.random() < 0.2:
            x += face.size_px * r.uniform(0, 4)
        room = panel.right - 2 - x
        if r.random() < ragged:
            room *= r.uniform(0.2, 1)
        line = filling(r, face, room) if room > 0 and r.random() > sparse else ""
        if line and r.random() < 0.12:
            highlighted(c, x, y, line, face, fill)
        elif line:
            c.text(
                x, y, line, face, foreground(r, behind, coloured=True) if r.random() < 0.2 else fill
            )
        y += face.size_px * spacing


def page_size(r: random.Random, face: Font, spacing: float) -> tuple[float, float]:
    """Picture size in px at which characters and lines come out in range at 512 x 512."""
    mean = face.width("abcdefghijklmnopqrstuvwxyz etaoin ETAOIN 0123456789") / 51
    width = mean * SIDE / math.exp(r.uniform(math.log(LEAST_WIDTH), math.log(MOST_WIDTH)))
    height = width / math.exp(r.uniform(math.log(0.8), math.log(2.8)))
    line = face.size_px * spacing
    height = min(max(height, line * SIDE / MOST_PITCH), line * SIDE / LEAST_PITCH)
    return max(width, 120), max(height, 60)


def page(r: random.Random, faces: Faces, tokenizer: Any | None) -> Screen:
    """A picture full of text, without questions."""
    c = Canvas(r, r.random(), faces)
    choices = c.mono if r.random() < 0.5 else c.sans
    face, spacing = font(r.choice(choices), c.px), r.uniform(1.15, 1.8)
    width, height = page_size(r, face, spacing)
    _, behind = background(r, saturated=True)
    for i, panel in enumerate(panels(r, width, height)):
        if i:
            behind = background(r, saturated=True)[1]
            px = max(12, int(c.px * r.uniform(0.9, 1.5)))
            face, spacing = font(r.choice(c.mono + c.sans), px), r.uniform(1.15, 1.8)
            c.box((panel.left, panel.top, panel.right, panel.bottom), fill=behind)
        else:
            first = behind
        fill_panel(c, panel, face, spacing, behind)
    image, truth = draw(c, width, height, first, tokenizer)
    return Screen(image, truth, [], "page")


def reading(c: Canvas) -> Scene:
    """A scene to be read aloud: more lines and harder words than the others have."""
    r = c.r
    _, behind = background(r, saturated=True)
    c.px = int(c.px * r.uniform(1, 1.4))
    face = font(r.choice(c.mono if r.random() < 0.5 else c.sans), c.px)
    mean = face.width("abcdefghijklmnopqrstuvwxyz etaoin 0123456789") / 44
    left, lines = int(c.budget * r.uniform(0.6, 1.6)), [word(r)]
    most = r.randint(10, c.line_length)
    for _ in range(r.randint(1, 9)):
        if left < 4:
            break
        line = filling(r, face, min(most, left) * mean * r.uniform(0.5, 1))
        lines += [line] if line else []
        left -= len(line) + 1
    height = c.px * r.uniform(1.2, 1.75)
    wide = max(map(face.width, lines))
    width = max(mean * SIDE / r.uniform(c.least_width, 17), wide + 6, 120)
    tall = height * len(lines)
    picture = min(max(width / (1 + r.random() * 1.8), tall + 6), height * SIDE / LEAST_PITCH)
    c.lines(
        lines,
        face,
        r.uniform(2, max(3, width - wide - 2)),
        r.uniform(1, max(2, picture - tall - 1)),
        height,
        [foreground(r, behind, coloured=True)] * len(lines),
    )
    i = r.randrange(len(lines))
    questions = [
        (read_everything(r), "\n".join(lines), 6.0),
        (ask(r, f"What does line {i + 1} say?", f"Read line {i + 1}."), lines[i], 3.0),
        (ask(r, "What is the last line?", "What does the last line say?"), lines[-1], 1.0),
        (ask(r, "What is the first line?", "What does the first line say?"), lines[0], 1.0),
    ]
    return Scene(width, picture, behind, questions, "reading")


def reading_screen(
    r: random.Random, difficulty: float, faces: Faces, tokenizer: Any | None
) -> Screen:
    c = Canvas(r, difficulty, faces)
    scene = reading(c)
    image, truth = draw(c, scene.width, scene.height, scene.background, tokenizer)
    return Screen(image, truth, scene.questions, scene.kind)
