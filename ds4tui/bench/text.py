"""Token ids to measure with: a text that reads like one, the same every time."""

import random
from collections.abc import Sequence
from typing import Protocol

SUBJECTS = "The engine|A reader|The old bridge|My neighbour|Every river|The first page".split("|")
VERBS = "remembers|carries|repeats|measures|forgets|answers".split("|")
OBJECTS = "a long winter|the same question|seven small boats|what was said|the last line".split("|")
ENDINGS = ["before the rain", "without a word", "at the edge of town", "once more", "in the dark"]


class Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


def bench_ids(tokenizer: Encoder, count: int) -> Sequence[int]:
    """The first `count` tokens of a text without end."""
    draw = random.Random(0)
    ids: list[int] = []
    while len(ids) < count:
        parts = [draw.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, ENDINGS)]
        ids += tokenizer.encode(f"{' '.join(parts)}, {draw.randrange(10_000)} times. ")
    return ids[:count]
