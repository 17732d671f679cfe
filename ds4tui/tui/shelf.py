"""The pictures and long pastes of prompts, and the labels that stand for them there.

In a prompt a picture is a label, `[shot.png 1280x800 · 64 tokens]`: text, so undo, history and
drafts need to know nothing of pictures. When it is sent the labels are taken out and the pictures
put in their places. A long paste is a label, too, `[pasted 312 lines]`, and is sent whole.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ds4tui.chat.messages import Image, Message
from ds4tui.pictures.reading import size_of
from ds4tui.tui.terminal_text import one_line

NAME_CHARS = 40
# From here on a paste is folded: it would push all else out of the prompt.
FOLD_LINES = 16
FOLD_CHARS = 2_000
_LABEL = re.compile(r"\[[^\[\]\n]+\]")
# What a picture of (width, height) pixels takes, in tokens; None: not known, or nothing.
TokensOf = Callable[[tuple[int, int]], int | None]


@dataclass(frozen=True, slots=True)
class Shelved:
    """A picture with what its label says beside its cost. size: (width, height) in pixels, None
    where the file does not tell."""

    image: Image
    size: tuple[int, int] | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A picture's label in a text: [start, end), and what it stands for. unit_end: with the space
    behind it, which comes and goes with it."""

    start: int
    end: int
    unit_end: int
    shelved: Shelved


class Shelf:
    """Belongs to the UI loop. `tokens_of` is of the model that is open."""

    def __init__(self) -> None:
        self.tokens_of: TokensOf = lambda size: None
        self._by_label: dict[str, Shelved] = {}
        self._pasted: dict[str, str] = {}  # by label

    def folded(self, text: str) -> str:
        """What stands for a paste in the prompt: a label for a long one, else itself."""
        lines = text.count("\n") + 1
        if lines >= FOLD_LINES:
            what = f"{lines:,} lines"
        elif len(text) > FOLD_CHARS:
            what = f"{len(text):,} characters"
        else:
            return text
        for number in range(1, len(self._pasted) + 2):
            label = f"[pasted {what}]" if number == 1 else f"[pasted {what} ({number})]"
            if self._pasted.setdefault(label, text) == text:
                return label
        raise AssertionError("one more number than there are labels is free")

    def unfolded(self, text: str) -> str:
        """`text` with the pastes that its labels stand for."""
        return _LABEL.sub(lambda m: self._pasted.get(m[0], m[0]), text) if self._pasted else text

    def pastes(self, text: str) -> list[str]:
        """The pastes that are folded in a prompt's `text`, in order."""
        return [self._pasted[label] for label in _LABEL.findall(text) if label in self._pasted]

    def label(self, shelved: Shelved) -> str:
        """The text that stands for it from now on, until the model changes."""
        facts = picture_facts(shelved.size, shelved.note, self.tokens_of)
        name = label_name(shelved.image.name)
        for number in range(1, len(self._by_label) + 2):
            numbered = name if number == 1 else f"{name} ({number})"
            text = f"[{' '.join(filter(None, (numbered, facts)))}]"
            known = self._by_label.setdefault(text, shelved)
            if known.image.digest == shelved.image.digest:
                return text
        raise AssertionError("one more number than there are labels is free")

    def found(self, text: str) -> list[Placed]:
        """The labels in `text`, in order."""
        if not self._by_label:  # asked for every line that is drawn, however long
            return []
        matches = ((m, self._by_label.get(m[0])) for m in _LABEL.finditer(text))
        return [
            Placed(m.start(), m.end(), m.end() + text.startswith(" ", m.end()), s)
            for m, s in matches
            if s is not None
        ]

    def units(self, text: str) -> list[tuple[int, int]]:
        """What an editor takes for one unit each: [start, end) in `text`, in order."""
        pictures = [(placed.start, placed.unit_end) for placed in self.found(text)]
        if not self._pasted:
            return pictures
        pastes = [m.span() for m in _LABEL.finditer(text) if m[0] in self._pasted]
        return sorted(pictures + pastes)

    def parted(self, text: str) -> Message:
        """The question that a prompt's `text` is: its words, and the pictures in their places."""
        words, images, at = "", [], 0
        for placed in self.found(text):
            words += self.unfolded(text[at : placed.start])
            images.append(placed.shelved.image.moved(len(words)))
            at = placed.unit_end
        return Message("user", words + self.unfolded(text[at:]), images=tuple(images))

    def joined(self, question: Message) -> str:
        """The prompt's text of a question, the other way round; pastes that were folded are."""
        text, at = "", 0
        for image in question.images:
            before = self._refolded(question.text[at : image.at])
            text += f"{before}{self.label(shelved(image))} "
            at = image.at
        return text + self._refolded(question.text[at:])

    def _refolded(self, text: str) -> str:
        for label, pasted in self._pasted.items():
            text = text.replace(pasted, label)
        return text

    def relabelled(self, text: str) -> Iterable[tuple[str, str]]:
        """The labels in `text` that say something else by now, and what they are to be."""
        for placed in self.found(text):
            old, new = text[placed.start : placed.end], self.label(placed.shelved)
            if old != new:
                yield old, new

    def recounted(self, text: str) -> str:
        """`text` with labels that say what its pictures cost by now."""
        for old, new in list(self.relabelled(text)):
            text = text.replace(old, new)
        return text

    def keep_only(self, texts: Sequence[str]) -> None:
        """Forget the pictures and pastes that stand in none of `texts`: memory holds them."""
        labels = {label for text in texts for label in _LABEL.findall(text)}
        self._by_label = {label: s for label, s in self._by_label.items() if label in labels}
        self._pasted = {label: text for label, text in self._pasted.items() if label in labels}


def shelved(image: Image, note: str = "") -> Shelved:
    return Shelved(image.moved(0), size_of(image.data), note)


def label_name(name: str) -> str:
    """The name of a file as it stands in a label: short, on one line, without brackets."""
    name = one_line(name).replace("[", "(").replace("]", ")") or "picture"
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 13]}…{name[-12:]}"


def picture_facts(size: tuple[int, int] | None, note: str, tokens_of: TokensOf) -> str:
    """`1280x800 · 64 tokens`, `8x8, first of 3 frames`, or what of it is known."""
    tokens = tokens_of(size) if size is not None else None
    pixels = f"{size[0]}x{size[1]}" if size is not None else ""
    cost = f"{tokens:,} tokens" if tokens is not None else ""
    return " · ".join(filter(None, (", ".join(filter(None, (pixels, note))), cost)))
