"""What a template wrote, as ids, with the places of its turns.

The text is cut at the control tokens that it holds; each plain run between them is encoded as a
whole. A text that goes on after an earlier one takes up that one's last run, so that texts
spelt piece by piece give the ids of the whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ds4tui.chat.remembered import RunCache
from ds4tui.chat.rows import Rows, joined
from ds4tui.chat.untrusted import Guard, Marks
from ds4tui.engine.tokenizer import Tokenizer, literal_pattern

Ids = npt.NDArray[np.int64]

_NO_IDS = np.empty(0, dtype=np.int64)

# A special token's id, a plain run without marks, or an image's rows.
Part = int | str | Rows


@dataclass(frozen=True, slots=True)
class Laid:
    """`positions[i]` is how many of the `rows` stand before border i. `settled` of them cannot
    change by what follows the last border; `run` is the plain text after those, up to
    that border, `after` are the parts behind it. `run_follows_reply`: nothing else stands
    between a reply and the run."""

    rows: Rows
    positions: tuple[int, ...]
    settled: int
    run: str
    after: tuple[Part, ...]
    run_follows_reply: bool


class Speller:
    """May be shared by threads."""

    def __init__(self, tokenizer: Tokenizer, guard: Guard, runs: RunCache) -> None:
        self._tokenizer = tokenizer
        self._guard = guard
        self._runs = runs
        # Tokens that people may well write (blanks, mostly) are found in whatever run they come
        # to stand in, also where one text ends and the next begins.
        kept = {t: i for t, i in tokenizer.user_defined_texts.items() if t not in guard.protected}
        self._kept_texts = {token_id: text for text, token_id in kept.items()}
        self._kept_ids = kept
        self._kept = literal_pattern(kept)

    def encode(self, run: str, follows_reply: bool = False) -> Ids:
        """The ids of a plain run."""
        if follows_reply and self._tokenizer.space_prefix:
            return self._encoded(run, continues=True)
        ids = self._runs.get(run)
        if ids is None:
            ids = self._encoded(run, continues=False)
            self._runs.put(run, ids)
        return ids

    def _encoded(self, run: str, continues: bool) -> Ids:
        encode, pieces, end = self._tokenizer.encode_plain, [], 0
        for found in self._kept.finditer(run):
            if found.start() > end:
                pieces.append(encode(run[end : found.start()], continues=continues and not end))
            pieces.append(np.array([self._kept_ids[found[0]]], dtype=np.int64))
            end = found.end()
        if end < len(run):
            pieces.append(encode(run[end:], continues=continues and not end))
        return pieces[0] if len(pieces) == 1 else np.concatenate([_NO_IDS, *pieces])

    def spell(self, text: str, marks: Marks, images: Sequence[Rows] = ()) -> Rows:
        """The rows of `text`, which is marked; `images` are those that its marks number."""
        parts = [part for part, _ in self._measured(text, marks, images)]
        return joined(rows for _, _, rows in self._pieces(parts, follows_reply=False))

    def lay(
        self,
        text: str,
        borders: Sequence[int],
        marks: Marks,
        before: Sequence[Part] = (),
        follows_reply: bool = False,
        images: Sequence[Rows] = (),
    ) -> Laid:
        """The rows of `before` and `text` (marked, with `borders` at places in it, not
        decreasing; `images` are those that its marks number). A border inside a token is moved
        to the token's beginning."""
        parts, places = self._joined(before, text, borders, marks, images)
        pieces = self._pieces(parts, follows_reply)
        starts = np.cumsum([0, *(len(rows) for _, _, rows in pieces)]).tolist()
        positions = [self._position(pieces, starts, place) for place in places]
        last, offset = places[-1] if places else (len(parts), 0)
        open_run = parts[last] if offset else ""
        run = open_run[:offset] if isinstance(open_run, str) else ""
        after: list[Part] = list(parts[last + 1 :] if offset else parts[last:])
        if isinstance(open_run, str) and offset < len(open_run):
            after.insert(0, open_run[offset:])
        return Laid(
            joined(rows for _, _, rows in pieces),
            tuple(positions),
            starts[last],
            run,
            tuple(after),
            follows_reply and last == 0,
        )

    def _joined(
        self,
        before: Sequence[Part],
        text: str,
        borders: Sequence[int],
        marks: Marks,
        images: Sequence[Rows],
    ) -> tuple[list[Part], list[tuple[int, int]]]:
        """Parts of both, neighbouring runs joined, and each border as (part, offset in its text):
        offset 0 is before the part, a run's length behind it."""
        parts = list(before)
        places: list[tuple[int, int]] = []
        left = list(borders)
        start = 0
        for part, length in self._measured(text, marks, images):
            joins = isinstance(part, str) and bool(parts) and isinstance(parts[-1], str)
            known = len(str(parts[-1])) if joins else 0
            index = len(parts) - 1 if joins else len(parts)
            while left and left[0] < start + length:
                places.append((index, known + self._shown(part, text, start, left.pop(0), marks)))
            if joins:
                parts[-1] = str(parts[-1]) + str(part)
            else:
                parts.append(part)
            start += length
            if isinstance(part, str) and left and left[0] == start:
                end = (index, known + len(part))
                places += [end] * left.count(start)
                left = [border for border in left if border != start]
        open_end = bool(parts) and isinstance(parts[-1], str)
        end = (len(parts) - 1, len(str(parts[-1]))) if open_end else (len(parts), 0)
        return parts, [_behind_run(place, parts) for place in (*places, *[end] * len(left))]

    def _measured(self, text: str, marks: Marks, images: Sequence[Rows]) -> list[tuple[Part, int]]:
        """Parts of `text`, each with its length in it, marks included."""
        measured: list[tuple[Part, int]] = []
        for number, piece in enumerate(marks.image_pattern().split(text)):
            if number % 2:
                mark = marks.image_mark(int(piece))
                measured.append((images[int(piece)], len(mark)))
            else:
                measured += self._measured_text(piece, marks)
        return measured

    def _measured_text(self, text: str, marks: Marks) -> list[tuple[Part, int]]:
        measured: list[tuple[Part, int]] = []
        run = ""
        for part in self._tokenizer.split(text):
            if isinstance(part, str):
                run += part
            elif part in self._kept_texts:
                run += self._kept_texts[part]
            else:
                measured += [(self._guard.reveal(run, marks), len(run))] if run else []
                measured.append((part, len(self._tokenizer.token_text(part))))
                run = ""
        return [*measured, (self._guard.reveal(run, marks), len(run))] if run else measured

    def _shown(self, part: Part, text: str, start: int, border: int, marks: Marks) -> int:
        """How many characters of `part` stand before `border`."""
        if not isinstance(part, str):
            return 0
        return len(self._guard.reveal(text[start:border], marks))

    def _pieces(self, parts: Sequence[Part], follows_reply: bool) -> list[tuple[Part, bool, Rows]]:
        """Each part with whether it follows a reply, and its rows."""
        pieces: list[tuple[Part, bool, Rows]] = []
        for part in parts:
            follows = follows_reply and not pieces
            if isinstance(part, int):
                rows = Rows.of([part])
            elif isinstance(part, str):
                rows = Rows(self.encode(part, follows))
            else:
                rows = part
            pieces.append((part, follows, rows))
        return pieces

    def _position(
        self,
        pieces: Sequence[tuple[Part, bool, Rows]],
        starts: Sequence[int],
        place: tuple[int, int],
    ) -> int:
        index, offset = place
        if not offset:
            return starts[index]
        part, follows, rows = pieces[index]
        if not isinstance(part, str) or offset == len(part):
            return starts[index] + len(rows)
        ids = rows.ids
        shorter = self.encode(part[:offset], follows)
        if np.array_equal(ids[: len(shorter)], shorter):
            return starts[index] + len(shorter)
        wanted = len(part[:offset].encode("utf-8", "replace"))
        wanted += self._tokenizer.space_prefix and not follows
        lengths = [len(self._tokenizer.token_bytes(i)) for i in ids.tolist()]
        return starts[index] + int(np.searchsorted(np.cumsum(lengths), wanted, side="right"))


def _behind_run(place: tuple[int, int], parts: Sequence[Part]) -> tuple[int, int]:
    """A place right behind a run belongs to the run, which may go on there."""
    index, offset = place
    before = parts[index - 1] if index and not offset else None
    return (index - 1, len(before)) if isinstance(before, str) else place
