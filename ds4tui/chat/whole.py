"""A conversation rendered in one go, as the template writes all of it now.

Its cost grows with the conversation, and earlier turns come out as the template wishes: it is for
templates that cannot be followed turn by turn, for those whose wish is law, and for people to
read. Where turns lie is found by marks inside what they say.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ds4tui.cache.outline import Outline, Turn
from ds4tui.chat.ends import first_end
from ds4tui.chat.messages import Message
from ds4tui.chat.outlining import opening_turn, turn_of
from ds4tui.chat.reasoned import has_reasoning
from ds4tui.chat.rows import Rows, joined
from ds4tui.chat.script import Options, Script
from ds4tui.chat.spelling import Speller
from ds4tui.chat.untrusted import Marks
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import TemplateError

_log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]


class WholeRenderer:
    """May be shared by threads. `openers` are the tokens with which the template opens a turn."""

    def __init__(
        self, tokenizer: Tokenizer, script: Script, speller: Speller, openers: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._script = script
        self._speller = speller
        self._openers = openers

    def text(self, messages: Sequence[Message], options: Options) -> str:
        """What the template makes of it, replies as their texts, images as their names. Raises
        TemplateError."""
        marks = self._script.choose_marks(messages, options)
        written = self._script.write(messages, options, marks)
        names = [image.name or "image" for message in messages for image in message.images]
        named = marks.image_pattern().sub(lambda found: f"[{names[int(found[1])]}]", written)
        return self._script.guard.reveal(named, marks)

    def laid_out(
        self, messages: Sequence[Message], options: Options, sampled: Collection[int]
    ) -> tuple[Rows, Outline]:
        """The rows, and where the turns lie. `sampled` are numbers of replies whose sampled ids
        stand in their places; one that does not come out once is written as its text. Raises
        TemplateError."""
        marks = self._script.choose_marks(messages, options)
        written, wanted = self._accepted(messages, options, marks, sampled)
        edges = _Edges(self._written(messages, options, marks, wanted, edged=True)[0], marks)
        said = [
            n for n, m in enumerate(messages) if n in wanted.replies or m.text.strip() or m.images
        ]
        # A template that cuts texts up would cut other pieces with the edges in them.
        borders = edges.borders(self._border_in) if edges.fit(written, len(said)) else []
        rows, ends = self._spelt(written, messages, options, marks, borders)
        known = dict(zip(said, ends, strict=False))
        return rows, self._outline(messages, options, known, len(rows))

    def _accepted(
        self,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        sampled: Collection[int],
    ) -> "tuple[str, _Stands]":
        """What the template writes, and which replies are marks in it: all that it keeps. Raises
        TemplateError where it refuses the conversation as it is."""
        has_calls = self._script.has_place_for_calls(options)
        calling = {n for n in sampled if has_calls and messages[n].tool_calls}
        wanted = _Stands(frozenset(sampled), frozenset(calling))
        while True:
            try:
                written, uncut = self._written(messages, options, marks, wanted)
            except TemplateError:
                if not wanted.replies:
                    raise
                self._script.write(messages, options, marks)  # it may not be the marks
                wanted = wanted.without(wanted.calling or wanted.replies)
                continue
            held = Counter(int(n) for n in marks.reply_pattern().findall(written))
            lost = {n for n in wanted.replies if held[n] != 1} | uncut
            if not lost:
                return written, wanted
            _log.debug("the template does not keep the replies %s as they were sampled", lost)
            wanted = wanted.without(lost)

    def _written(
        self,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        wanted: "_Stands",
        edged: bool = False,
    ) -> tuple[str, set[int]]:
        """What the template writes, and the numbers of replies whose calls stand in it still."""
        told = [
            self._standing(m, marks.reply_mark(n), n in wanted.calling)
            if n in wanted.replies
            else m
            for n, m in enumerate(messages)
        ]
        stands = {marks.reply_mark(n) for n in wanted.replies}
        written = self._script.write(told, options, marks, stands=stands, edged=edged)
        return self._without_calls(written, marks, wanted.calling)

    def _standing(self, reply: Message, mark: str, calls: bool) -> Message:
        """A mark for a reply's sampled ids. They hold its calls, which templates look up when
        they write results, and, unless that was taken out of them, its reasoning, which is not
        written again."""
        thinks = has_reasoning(self._tokenizer, replace(reply, reasoning=""))
        reasoning = "" if thinks else reply.reasoning
        told = reply.tool_calls if calls else ()
        return Message("assistant", mark, reasoning=reasoning, tool_calls=told)

    def _without_calls(
        self, written: str, marks: Marks, calling: Collection[int]
    ) -> tuple[str, set[int]]:
        """`written` without what stands between the marks of `calling` and the ends of their
        turns, which sampled ids hold already; and the numbers of those that end nowhere."""
        if not calling:
            return written, set()
        pieces, uncut = marks.reply_pattern().split(written), set()
        for place in range(1, len(pieces), 2):
            number, behind = int(pieces[place]), pieces[place + 1]
            pieces[place] = marks.reply_mark(number)
            if number in calling:
                end = first_end(self._tokenizer, behind)
                if end is None:
                    uncut.add(number)
                else:
                    edge = marks.edge if behind.startswith(marks.edge) else ""
                    pieces[place + 1] = edge + behind[end:]
        return "".join(pieces), uncut

    def _border_in(self, between: str) -> int:
        """Where in what the template wrote between two texts the first one's turn ends."""
        at = after_end = 0
        for part in self._tokenizer.split(between):
            if isinstance(part, int):
                if part in self._openers and part not in self._tokenizer.end_ids:
                    return at
                at += len(self._tokenizer.token_text(part))
                after_end = at if part in self._tokenizer.end_ids else after_end
            else:
                at += len(part)
        return after_end or at

    def _spelt(
        self,
        written: str,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        borders: Sequence[int],
    ) -> tuple[Rows, list[int]]:
        """The rows, and the position of each border."""
        pieces, images = [self.bos(written)], options.rows_of(messages)
        count, start, left = len(pieces[0]), 0, list(borders)
        ends: list[int] = []
        for number, piece in enumerate(marks.reply_pattern().split(written)):
            if number % 2:
                rows = Rows.of(messages[int(piece)].sampled_ids or ())
                start += len(marks.reply_mark(int(piece)))
            else:
                inside = [b - start for b in left if b <= start + len(piece)]
                laid = self._speller.lay(piece, inside, marks, (), number > 0, images)
                ends += [count + position for position in laid.positions]
                rows, left, start = laid.rows, left[len(inside) :], start + len(piece)
            pieces.append(rows)
            count += len(rows)
        return joined(pieces), ends

    def _outline(
        self, messages: Sequence[Message], options: Options, ends: dict[int, int], length: int
    ) -> Outline:
        """The turns, `ends` being those of some messages by number; what lies between belongs to
        the message after it. Where nothing is known all is the first message's."""
        turns: list[Turn] = []
        at = 0
        for number, message in enumerate(messages):
            end = ends.get(number, at) if ends else length
            turns.append(
                turn_of(
                    message,
                    at,
                    end,
                    has_reasoning(self._tokenizer, message),
                    () if number else options.tools,
                )
            )
            at = end
        return (*turns, opening_turn(at, length))

    def bos(self, written: str) -> Rows:
        """A BOS if the model wants one and the template has not written it, else no rows."""
        tokenizer = self._tokenizer
        there = written.startswith(tokenizer.token_text(tokenizer.bos_id))
        if not tokenizer.add_bos or tokenizer.bos_id is None or there:
            return Rows()
        return Rows.of([tokenizer.bos_id])


@dataclass(frozen=True, slots=True)
class _Stands:
    """Numbers of replies that marks stand for, and of those whose calls the template is told."""

    replies: frozenset[int]
    calling: frozenset[int]

    def without(self, lost: Collection[int]) -> "_Stands":
        """First the calls of `lost`, then the replies themselves are left to the template."""
        silent = self.calling.intersection(lost)
        return _Stands(self.replies - (frozenset(lost) - silent), self.calling - silent)


class _Edges:
    """What was written, without the marks at the ends of texts, and where those were."""

    def __init__(self, written: str, marks: Marks) -> None:
        pieces = written.split(marks.edge)
        self.text = "".join(pieces)
        self._places = np.cumsum([len(piece) for piece in pieces[:-1]], dtype=np.int64).tolist()

    def fit(self, written: str, texts: int) -> bool:
        """Whether nothing but the marks is new in `written`, two for each text."""
        return self.text == written and len(self._places) == 2 * texts > 0

    def borders(self, border_in: Callable[[str], int]) -> list[int]:
        """The end of each text's turn."""
        ends = self._places[1::2]
        starts = [*self._places[2::2], len(self.text)]
        return [
            end + border_in(self.text[end:start]) for end, start in zip(ends, starts, strict=True)
        ]
