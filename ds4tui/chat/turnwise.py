"""A conversation's timeline, turn by turn: timeline(k + 1) = timeline(k) + delta(k).

A Node is all up to where one reply begins. The next one adds the reply (its sampled ids) and what
the template writes from there to where the following reply begins, taken out of a rendering in
which the history before stands in its shape only (compact.py). So what the model saw stays what
it saw, whatever the template would now make of it; and a turn costs its own length.
Where a turn ends is where a rendering that ends there and one that goes on differ.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ds4tui.cache.outline import Outline, Turn
from ds4tui.chat.compact import ANY_TOOL, WORD, History, stand_in, stand_ins
from ds4tui.chat.ends import first_end
from ds4tui.chat.messages import Message
from ds4tui.chat.outlining import opening_turn, turn_of
from ds4tui.chat.reasoned import has_reasoning
from ds4tui.chat.rows import Rows, joined
from ds4tui.chat.script import Options, Script
from ds4tui.chat.spelling import Laid, Part, Speller
from ds4tui.chat.untrusted import Marks
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import TemplateError

_log = logging.getLogger(__name__)

_NODE_BYTES = 2048  # of a node's objects beside its rows


class NotTurnwise(Exception):
    """The template cannot be followed turn by turn here; says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """All up to where a reply begins.

    `settled` rows follow those of the nodes before it. What stands behind them may be spelt anew
    when text follows: `run`, the plain text at the end of the last turn, and `opening`, the parts
    with which the template opens the reply; `open_rows` are both. `turns` are those that this
    node added, `length` counts the settled rows of all nodes up to it.
    """

    parent: "Node | None" = None
    settled: Rows = field(default_factory=Rows)
    run: str = ""
    run_follows_reply: bool = False
    opening: tuple[Part, ...] = ()
    open_rows: Rows = field(default_factory=Rows)
    turns: Outline = ()
    length: int = 0
    history: History = field(default_factory=History)
    inputs: tuple[Message, ...] = ()

    @property
    def nbytes(self) -> int:
        texts = len(self.run) + sum(len(p) for p in self.opening if isinstance(p, str))
        return _NODE_BYTES + self.settled.nbytes + self.open_rows.nbytes + 4 * texts

    def path(self) -> "list[Node]":
        """From the first node to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def shapes(self) -> tuple[Message, ...]:
        """The conversation up to here as the template is shown it while it writes on."""
        return (*self.history.messages, *self.inputs)


@dataclass(frozen=True, slots=True)
class _Delta:
    """Text behind a node: `before` the reply's ids (if it has some) and `text` behind them.
    `borders` are ends of turns in `text`, the reply's first; the rest opens the next reply.
    `from_run` says that it replaces the node's opening, `with_calls` that the template is told of
    the reply's calls."""

    text: str
    borders: tuple[int, ...]
    before: str = ""
    ids: Rows | None = None
    from_run: bool = True
    with_calls: bool = True


@dataclass(frozen=True, slots=True)
class _Frame:
    """What the template writes around a reply: `head` before it, `tail` behind it, `borders` and
    `with_calls` as in _Delta."""

    head: str
    tail: str
    borders: tuple[int, ...]
    with_calls: bool


class TurnwiseRenderer:
    """May be shared by threads: nodes are values."""

    def __init__(self, tokenizer: Tokenizer, script: Script, speller: Speller) -> None:
        self._tokenizer = tokenizer
        self._script = script
        self._speller = speller

    def extended(
        self,
        node: Node | None,
        messages: Sequence[Message],
        options: Options,
        sampled: bool,
    ) -> Node:
        """The node after `messages`: a reply (none at the beginning, `node` None) and what comes
        in after it. `sampled` says that the reply's sampled ids are to be used.

        Raises NotTurnwise, TemplateError for what the template refuses.
        """
        if node is not None and options.tools:
            try:
                return self._after(node, messages, replace(options, tools=(ANY_TOOL,)), sampled)
            except (NotTurnwise, TemplateError) as exc:
                _log.debug("rendered with all tools: %s", exc)
        return self._after(node, messages, options, sampled)

    def _after(
        self,
        node: Node | None,
        messages: Sequence[Message],
        options: Options,
        sampled: bool,
    ) -> Node:
        marks = self._script.choose_marks(messages, options)
        work = _Extension(self, node, tuple(messages), options, marks)
        delta = work.of_ids() if sampled else None
        if delta is None:
            if sampled:
                _log.debug("the template does not keep a reply; its text is used")
            delta = work.of_text()
        if WORD in delta.text and not any(WORD in m.text for m in messages):
            raise NotTurnwise("the template writes earlier turns, or tools, into later ones")
        images = options.rows_of((*(node.shapes if node else ()), *messages))
        told = marks.image_pattern().findall(delta.text)
        new = sum(len(m.images) for m in messages)
        if told != [str(number) for number in range(len(images) - new, len(images))]:
            raise NotTurnwise("the template writes images of one turn into another")
        return self._joined(node, messages, options, marks, delta, images)

    def _joined(
        self,
        node: Node | None,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        delta: _Delta,
        images: Sequence[Rows],
    ) -> Node:
        start = node or Node()
        if delta.ids is None:
            parts = (start.run, *([] if delta.from_run else start.opening))
            told = [p for p in parts if p != ""]
            laid = self._lay(delta, marks, told, start.run_follows_reply, images)
            settled, open_rows = laid.rows.cut(laid.settled)
            begin = start.length
        else:
            before = [start.open_rows]
            if node is None:
                before += [self._bos(delta.before), self._speller.spell(delta.before, marks)]
            laid = self._lay(delta, marks, (), True, images)
            behind, open_rows = laid.rows.cut(laid.settled)
            settled = joined([*before, delta.ids, behind])
            begin = start.length + len(settled) - laid.settled
        if node is None and delta.ids is None:
            bos = self._bos(delta.text)
            settled, begin = joined([bos, settled]), len(bos)
        at, *ends = (begin + position for position in laid.positions)
        if delta.ids is not None or not delta.from_run:
            at = start.turns[-1].end if start.turns else 0
        turns = self._turns(messages, options, [at if start.turns else 0, *ends], not start.turns)
        return Node(
            parent=node,
            settled=settled,
            run=laid.run,
            run_follows_reply=laid.run_follows_reply,
            opening=laid.after,
            open_rows=open_rows,
            turns=turns,
            length=start.length + len(settled),
            history=self._history(start, messages, delta.with_calls),
            inputs=stand_ins(messages if node is None else messages[1:]),
        )

    def _lay(
        self,
        delta: _Delta,
        marks: Marks,
        before: Sequence[Part],
        follows_reply: bool,
        images: Sequence[Rows],
    ) -> Laid:
        borders = (0, *delta.borders)
        return self._speller.lay(delta.text, borders, marks, before, follows_reply, images)

    def _turns(
        self, messages: Sequence[Message], options: Options, borders: Sequence[int], first: bool
    ) -> Outline:
        turns: list[Turn] = []
        for message, (start, end) in zip(messages, pairwise(borders), strict=True):
            tools = options.tools if first and not turns else ()
            thinks = has_reasoning(self._tokenizer, message)
            turns.append(turn_of(message, start, end, thinks, tools))
        return tuple(turns)

    def _history(self, start: Node, messages: Sequence[Message], with_calls: bool) -> History:
        if start.parent is None and not start.turns:
            return start.history
        reply = messages[0] if with_calls else replace(messages[0], tool_calls=())
        return start.history.added((*start.inputs, stand_in(reply)))

    def _bos(self, text: str) -> Rows:
        """A BOS if the model wants one and the template has not written it, else no rows."""
        tokenizer = self._tokenizer
        written = text.startswith(tokenizer.token_text(tokenizer.bos_id))
        if not tokenizer.add_bos or tokenizer.bos_id is None or written:
            return Rows()
        return Rows.of([tokenizer.bos_id])

    def write(
        self,
        messages: Sequence[Message],
        options: Options,
        marks: Marks,
        opened: bool,
        stands: Sequence[str] = (),
    ) -> str:
        return self._script.write(messages, options, marks, opened, stands) if messages else ""

    def protected(self, text: str, marks: Marks) -> str:
        return self._script.guard.protect(text, marks)

    def has_place_for_calls(self, options: Options) -> bool:
        return self._script.has_place_for_calls(options)

    def first_end(self, text: str) -> int | None:
        return first_end(self._tokenizer, text)


class _Extension:
    """One extension's renderings."""

    def __init__(
        self,
        renderer: TurnwiseRenderer,
        node: Node | None,
        messages: tuple[Message, ...],
        options: Options,
        marks: Marks,
    ) -> None:
        self._renderer = renderer
        self._is_first = node is None
        self._shapes = node.shapes if node else ()
        self._messages = messages
        self._options = options
        self._marks = marks
        self._mark = marks.reply_mark(0)

    def of_ids(self) -> _Delta | None:
        """With the reply's sampled ids in its place; None if the template does not keep it."""
        if not self._messages or self._messages[0].role != "assistant":
            return None
        frame = self._frame()
        if frame is None:
            return None
        ids = Rows.of(self._messages[0].sampled_ids or ())
        head = frame.head if self._is_first else ""
        return _Delta(frame.tail, frame.borders, head, ids, with_calls=frame.with_calls)

    def of_text(self) -> _Delta:
        """With the reply as its text."""
        messages = self._messages
        written = self._write((*self._shapes, *messages))
        before = self._write(self._shapes, opened=False)
        frame = self._frame() if messages and messages[0].role == "assistant" else None
        if frame is None:
            if not written.startswith(before):
                raise NotTurnwise("the template writes earlier turns anew")
            return _Delta(written[len(before) :], self._borders(written, len(before)))
        if messages[0].reasoning:
            # As when it was the newest: later the template may drop its reasoning.
            newest = self._write((*self._shapes, messages[0]), opened=False)
            if newest.endswith(frame.tail[: frame.borders[0]]):
                written = newest + frame.tail[frame.borders[0] :]
        if not written.endswith(frame.tail):
            raise NotTurnwise("what the template writes after a reply depends on its text")
        end = len(written) - len(frame.tail)
        from_run = written.startswith(before) and len(before) <= end
        start = len(before) if from_run else common_length(frame.head, written[:end])
        borders = tuple(end - start + border for border in frame.borders)
        return _Delta(written[start:], borders, from_run=from_run)

    def _frame(self) -> _Frame | None:
        """None if the reply does not come out exactly once. Raises TemplateError."""
        reply = self._messages[0]
        if reply.tool_calls and self._renderer.has_place_for_calls(self._options):
            calling = Message("assistant", self._mark, tool_calls=reply.tool_calls)
            try:
                frame = self._frame_of(calling)
            except TemplateError:
                self._write((*self._shapes, *self._messages))  # raises unless it was the mark
                frame = None
            if frame is not None:
                return frame
        try:
            return self._frame_of(Message("assistant", self._mark))
        except TemplateError:
            return None

    def _frame_of(self, reply: Message) -> _Frame | None:
        inputs = self._messages[1:]
        whole = self._around(reply, inputs, opened=True)
        if whole is None:
            return None
        head, tail = whole
        ends = [0]
        for count in range(len(inputs) + 1):
            try:
                part = self._around(reply, inputs[:count], opened=False)
            except TemplateError:
                part = None
            end = common_length(tail, part[1]) if part else ends[-1]
            ends.append(max(ends[-1], end))
        return _Frame(head, tail, tuple(ends[1:]), bool(reply.tool_calls))

    def _around(
        self, reply: Message, inputs: tuple[Message, ...], opened: bool
    ) -> tuple[str, str] | None:
        """What is written before the reply's mark and behind the reply."""
        written = self._write((*self._shapes, reply, *inputs), opened)
        head, found, tail = written.partition(self._mark)
        if not found or self._mark in tail:
            return None
        if reply.tool_calls:
            end = self._renderer.first_end(tail)
            if end is None:
                return None
            tail = tail[end:]
        return head, tail

    def _borders(self, written: str, start: int) -> tuple[int, ...]:
        """Ends of all messages in `written[start:]`."""
        ends = [start]
        for count in range(1, len(self._messages) + 1):
            end = max(ends[-1], self._end_of(count, written))
            if not self._holds(written[ends[-1] : end], self._messages[count - 1]):
                end = max(end, self._start_of_next(count, written))
            ends.append(end)
        return tuple(end - start for end in ends[1:])

    def _end_of(self, count: int, written: str) -> int:
        """How much of `written` is there with the first `count` messages only."""
        try:
            part = self._write((*self._shapes, *self._messages[:count]), opened=False)
        except TemplateError:
            return 0
        return common_length(written, part)

    def _holds(self, text: str, message: Message) -> bool:
        texts = (element for element in message.elements() if isinstance(element, str))
        said = (self._renderer.protected(each, self._marks).strip() for each in texts)
        images = self._marks.image_pattern().findall(text)
        return len(images) >= len(message.images) and all(each in text for each in said)

    def _start_of_next(self, count: int, written: str) -> int:
        """How much of `written` does not depend on what the next message says: for a system text
        that a template writes into the user's turn."""
        if count == len(self._messages):
            return 0
        other = replace(self._messages[count], text=self._mark, images=())
        rest = self._messages[count + 1 :]
        try:
            part = self._write((*self._shapes, *self._messages[:count], other, *rest))
        except TemplateError:
            return 0
        return common_length(written, part)

    def _write(self, messages: Sequence[Message], opened: bool = True) -> str:
        return self._renderer.write(messages, self._options, self._marks, opened, (self._mark,))


def common_length(a: str, b: str) -> int:
    """How many characters both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # a[:low] == b[:low]
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def opened_outline(node: Node) -> Outline:
    """The turns of all nodes up to `node`, and the opening of the reply after it."""
    turns: list[Turn] = []
    for step in node.path():
        if turns and turns[-1].end != step.turns[0].start:  # a run that went on was spelt anew
            turns[-1] = replace(turns[-1], end=step.turns[0].start)
        turns += step.turns
    end = node.length + len(node.open_rows)
    return (*turns, opening_turn(turns[-1].end if turns else 0, end))
