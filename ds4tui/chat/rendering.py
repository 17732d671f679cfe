"""Messages to the Timeline that a model was trained to see.

A rendering is the template's text with what people wrote made harmless (untrusted.py), cut at
the template's own control tokens; each plain run between them is encoded as a whole. A reply
whose sampled ids are known is those ids: its place in the text is held by a mark.
So the timeline of a conversation begins with all that is resident from its last turn.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product

import numpy as np
import numpy.typing as npt

from ds4tui.cache.timeline import Timeline
from ds4tui.chat.messages import Message, Tool, ToolCall
from ds4tui.chat.probing import probe, turn_openings
from ds4tui.chat.remembered import FrozenClocks, RunCache
from ds4tui.chat.template import ChatTemplate
from ds4tui.chat.thinking import OPENING
from ds4tui.chat.turns import (
    checked,
    for_forms,
    texts_of,
    tool_values,
    turn_values,
    with_tools_told,
)
from ds4tui.chat.untrusted import Guard, Marks
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vocabulary import SHOWN_MARKS
from ds4tui.errors import TemplateError

_log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int64]

TEMPLATE_KEY = "tokenizer.chat_template"

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# A turn of a long conversation is encoded once, not at each turn after it. A context of 340,000
# tokens takes about 5 MiB, its texts included.
_RUN_CACHE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class _Given:
    """What is to be rendered."""

    messages: Sequence[Message]
    tools: Sequence[Tool]
    thinking: bool | None


class ChatFormat:
    """A model's tokenizer and template. May be shared by threads.

    `stop_token_ids` end a reply: the tokenizer's, and those with which the template opens a
    turn, so that a model that goes on with somebody else's turn is stopped there.
    `prefix_stable` says whether a rendering begins with the rendering of one turn before and
    the reply sampled then; `prefix_reason` says in words what was found when it was tried at
    load. `abilities` are what the template can do, likewise.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str, now: Callable[[], datetime] = datetime.now
    ) -> None:
        """Raises TemplateError for a template that is no Jinja."""
        self.tokenizer = tokenizer
        self.template = template
        self._jinja = ChatTemplate(template, _variables(tokenizer))
        self.abilities = probe(self._jinja)
        self.stop_token_ids = tokenizer.end_ids | self._turn_openers()
        self._guard = _guard(tokenizer, template)
        self._runs = RunCache(_RUN_CACHE_BYTES)
        self._clocks = FrozenClocks(now)
        # How the model writes calls when it is offered tools; None for a way that is not read.
        self.tool_syntax = self.abilities.tool_syntax if self.abilities.tools else "hermes"
        problem = self._probe()
        self.prefix_stable = not problem
        self.prefix_reason = problem or "each turn's rendering begins with the one before it"

    @classmethod
    def from_gguf(cls, gguf: GGUFFile, tokenizer: Tokenizer) -> "ChatFormat":
        """The file's own template, or ChatML if it has none but ChatML's tokens.

        Raises TemplateError for a template that is no Jinja, or if there is none to use.
        """
        template = gguf.key(TEMPLATE_KEY, str, "")
        if template:
            try:
                return cls(tokenizer, template)
            except TemplateError as exc:
                raise TemplateError(f"{gguf.path.name}: {exc.message}", exc.hint) from exc
        known = {*tokenizer.control_texts, *tokenizer.user_defined_texts}
        if {"<|im_start|>", "<|im_end|>"} <= known:
            _log.info("%s has no chat template: using ChatML", gguf.path.name)
            return cls(tokenizer, CHATML)
        raise TemplateError(
            f"{gguf.path.name} has no chat template.",
            "It is a base model: choose an instruction-tuned one to chat with.",
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> Timeline:
        """The timeline of `messages` up to where the assistant's next reply begins.

        `tools` are offered to the model, in a system turn where the template has no place for
        them; `thinking` switches it where the template can, None leaves it to the template.
        Text that looks like control tokens stays text. Raises RequestError for messages that
        make no conversation, TemplateError if the template fails on them or refuses them.
        """
        told = checked(messages)
        marks = self._choose_marks(told, tools)
        verbatim = {i for i, m in enumerate(told) if self._is_usable(m, i)}
        rendered = self._rendered(_Given(told, tools, thinking), marks, verbatim)
        ids = np.concatenate([self._bos(rendered), *self._parts(rendered, messages, marks)])
        if not ids.size:
            raise TemplateError("The chat template made nothing of this conversation.")
        return Timeline.of(ids)

    def render_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> str:
        """What the template makes of it, replies as their texts; for people to read."""
        told = checked(messages)
        marks = self._choose_marks(told, tools)
        rendered = self._rendered(_Given(told, tools, thinking), marks, set())
        return self._guard.reveal(rendered, marks)

    def begins_thinking(self, thinking: bool | None = None) -> bool:
        """Whether the template itself opens the reply's reasoning, for ThinkingParser."""
        try:
            text = self.render_text([Message("user", "?")], thinking=thinking)
        except TemplateError:
            return False
        return text.rstrip().endswith(OPENING)

    def _choose_marks(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Marks:
        return self._guard.choose_marks([self.template, *texts_of(messages, tools)])

    def _is_usable(self, message: Message, index: int) -> bool:
        ids = message.sampled_ids
        if message.role != "assistant" or ids is None:
            return False
        if ids and (min(ids) < 0 or max(ids) >= self.tokenizer.vocab_size):
            _log.debug("message %d: sampled ids of another vocabulary; its text is used", index)
            return False
        # What nobody saw is never told to the model again. A family that writes control tokens
        # inside its replies on purpose would need an explicit list of those here.
        if self.tokenizer.has_silent(ids):
            _log.debug("message %d: sampled ids with control tokens; its text is used", index)
            return False
        return True

    def _rendered(self, given: "_Given", marks: Marks, verbatim: set[int]) -> str:
        """The template's text, with a mark for each reply of `verbatim`. A reply whose mark does
        not come out exactly once becomes text and leaves `verbatim`."""
        now = self._clocks.of(given.messages)
        while True:
            rendered = self._render_once(given, marks, verbatim, now)
            held = Counter(int(n) for n in marks.reply_pattern().findall(rendered))
            lost = {i for i in verbatim if held[i] != 1}
            if not lost:
                return rendered
            _log.debug("the template does not keep the replies %s; their texts are used", lost)
            verbatim -= lost

    def _render_once(
        self, given: "_Given", marks: Marks, verbatim: set[int], now: Callable[[], datetime]
    ) -> str:
        def protect(text: str) -> str:
            return self._guard.protect(text, marks)

        stands = {marks.reply_mark(i) for i in verbatim}
        # Sampled ids are all of a reply: its reasoning and its calls are not written again.
        told = [
            Message("assistant", marks.reply_mark(i)) if i in verbatim else m
            for i, m in enumerate(given.messages)
        ]
        forms, tools = self.abilities.forms, given.tools
        if tools and not self.abilities.tools:
            told, tools = with_tools_told(told, tools), ()
            forms = replace(forms, calls=False)
        turns = [
            turn_values(m, m.text if m.text in stands else protect(m.text), forms, protect)
            for m in for_forms(told, forms)
        ]
        offered = [tool_values(tool, protect) for tool in tools] or None
        return self._jinja.render(turns, now, tools=offered, thinking=given.thinking)

    def _parts(self, rendered: str, messages: Sequence[Message], marks: Marks) -> Iterator[Ids]:
        """The ids of `rendered` without a BOS of our own."""
        for number, piece in enumerate(marks.reply_pattern().split(rendered)):
            if number % 2:
                yield np.array(messages[int(piece)].sampled_ids, dtype=np.int64)
                continue
            continues = number > 0  # text right after a reply
            for part in self.tokenizer.split(piece):
                if isinstance(part, int):
                    yield np.array([part], dtype=np.int64)
                else:
                    yield self._encode(self._guard.reveal(part, marks), continues)
                continues = False

    def _encode(self, run: str, continues: bool) -> Ids:
        if continues and self.tokenizer.space_prefix:
            return self.tokenizer.encode_plain(run, continues=True)
        ids = self._runs.get(run)
        if ids is None:
            ids = self.tokenizer.encode_plain(run)
            self._runs.put(run, ids)
        return ids

    def _bos(self, rendered: str) -> Ids:
        """A BOS if the model wants one and the template has not written it, else no ids."""
        tokenizer = self.tokenizer
        written = rendered.startswith(tokenizer.token_text(tokenizer.bos_id))
        ids = [tokenizer.bos_id] if tokenizer.add_bos and not written else []
        return np.array(ids, dtype=np.int64)

    def _turn_openers(self) -> frozenset[int]:
        """The first control token, other than those that end a turn, of what the template
        writes before one; behind a BOS the next one too."""
        tokenizer, found = self.tokenizer, set()
        for text in turn_openings(self._jinja, self.abilities.forms):
            ids = [i for i in tokenizer.split(text) if isinstance(i, int)]
            for token_id in ids:
                if tokenizer.is_control(token_id) and token_id not in tokenizer.end_ids:
                    found.add(token_id)
                    if token_id != tokenizer.bos_id:
                        break
        return frozenset(found)

    def _probe(self) -> str:
        """Why renderings are not prefixes of each other, or "" if they are."""
        said = Message("assistant", "A reply.", tuple(self.tokenizer.encode("A reply.")))
        calling = replace(said, tool_calls=(ToolCall("call00001", "read", "{}"),))
        result = Message("tool", "A result.", tool_call_id="call00001", name="read")
        question, more = Message("user", "A question."), Message("user", "And more.")
        rounds = ((said, more), (calling, result, said, more))
        tried = 0
        for opening, turns in product(([], [Message("system", "Be brief.")]), rounds):
            try:
                problem = self._probe_turns([*opening, question], turns)
            except TemplateError as exc:
                _log.debug("probe: %s", exc)
                continue
            tried += 1
            if problem:
                return problem
        return "" if tried else "the template failed on every probe conversation"

    def _probe_turns(self, history: list[Message], turns: tuple[Message, ...]) -> str:
        for number, message in enumerate(turns * 3, start=1):
            if message.sampled_ids is not None:
                before = self.render(history).extended(message.sampled_ids)
            history.append(message)
            if message.sampled_ids is not None:
                continue
            after = self.render(history)
            at = before.common_prefix(after)
            if at < len(before):
                was, now = (self._around(t, at) for t in (before, after))
                return f"after turn {number // 2} the template writes {now!r} where {was!r} was"
        return ""

    def _around(self, timeline: Timeline, at: int) -> str:
        ids = timeline.ids[max(0, at - 4) : at + 4].tolist()
        return self.tokenizer.decode(ids, skip_special=False)


def _variables(tokenizer: Tokenizer) -> dict[str, str]:
    return {
        "bos_token": tokenizer.token_text(tokenizer.bos_id),
        "eos_token": tokenizer.token_text(tokenizer.eos_id),
        "unk_token": tokenizer.token_text(tokenizer.unknown_id),
        "pad_token": tokenizer.token_text(tokenizer.padding_id),
    }


def _guard(tokenizer: Tokenizer, template: str) -> Guard:
    """Protects control tokens, the user-defined ones that the template uses and those that mark
    the parts of a reply. Runs of blanks, which many vocabularies have as user-defined tokens,
    forge nothing and stay themselves."""
    known = set(tokenizer.user_defined_texts)
    used = {t for t in known if t in template and not t.isspace()} | (known & SHOWN_MARKS)
    kept = known - used
    return Guard({*tokenizer.control_texts, *used}, kept)
