"""Messages to the Timeline that a model was trained to see.

A rendering is the template's text with what people wrote made harmless (untrusted.py), cut at
the template's own control tokens; each plain run between them is encoded as a whole
(spelling.py). A reply whose sampled ids are known is those ids. By default a conversation grows
turn by turn (turnwise.py) and keeps what the model saw; whole.py writes it as the template wishes.
So the timeline of a conversation begins with all that is resident from its last turn.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline
from ds4tui.chat.alignment import aligned
from ds4tui.chat.chain import Chain, Key, cuts, digests
from ds4tui.chat.messages import Image, Message, Tool
from ds4tui.chat.own_templates import CHATML as CHATML  # exported: whoever writes one takes it here
from ds4tui.chat.own_templates import own_template
from ds4tui.chat.probing import probe, turn_openings
from ds4tui.chat.reasoned import has_reasoning, with_reasoning_as_text, without_reasoning
from ds4tui.chat.remembered import FrozenClocks, RunCache
from ds4tui.chat.rows import joined
from ds4tui.chat.script import Options, Script
from ds4tui.chat.spelling import Speller
from ds4tui.chat.stability import conversations, instabilities
from ds4tui.chat.template import ChatTemplate
from ds4tui.chat.thinking import marks_in
from ds4tui.chat.turns import checked
from ds4tui.chat.turnwise import Node, NotTurnwise, TurnwiseRenderer, opened_outline
from ds4tui.chat.untrusted import Guard
from ds4tui.chat.whole import WholeRenderer
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vocabulary import SHOWN_MARKS
from ds4tui.errors import RequestError, TemplateError

if TYPE_CHECKING:
    from ds4tui.engine.vision.recognition import Picture

_log = logging.getLogger(__name__)

PictureOf = Callable[[Image], "Picture"]

# What becomes of earlier replies' reasoning: kept as sampled, as the template wishes, left out.
ThinkingInHistory = Literal["keep", "template", "drop"]

TEMPLATE_KEY = "tokenizer.chat_template"

_STABLE_WORDS = "earlier turns stay as they are: {}"
_HISTORY_WORDS = {
    "keep": "earlier turns are kept as the model saw them, so none is computed again, although {}",
    "template": "earlier turns are written as the template wishes, and what follows a change is "
    "computed again: {}",
    "drop": "earlier turns are kept as the model saw them, but for their reasoning, although {}",
}
_DROPPED = (
    "the reasoning of {} earlier replies is left out; what was computed behind each is computed "
    "again once"
)

# Renderings of conversations that go on, and ids of texts that begin others too. A context of
# 340,000 tokens takes about 3 MiB of the one and, with its texts, 5 MiB of the other.
_CHAIN_BYTES = 64 * 2**20
_RUN_CACHE_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class Rendering:
    """`outline` says where the turns lie in `timeline`, the reply's opening last; `notes` say in
    words what was done for, or costs, the reuse of what is resident; `pictures` are those of the
    timeline's images."""

    timeline: Timeline
    outline: Outline
    notes: tuple[str, ...] = ()
    pictures: "tuple[Picture, ...]" = ()


class ChatFormat:
    """A model's tokenizer and template. May be shared by threads.

    `stop_token_ids` end a reply: the tokenizer's, and those with which the template opens a
    turn, so that a model that goes on with somebody else's turn is stopped there.
    `instabilities` say in words what the template changes in earlier turns, tried at load;
    `prefix_stable` that there are none, `prefix_reason` is them or its contrary in words.
    `abilities` are what the template can do. Where a template is stable, how reasoning is kept
    (`thinking_in_history`) changes nothing but for "drop".
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        now: Callable[[], datetime] = datetime.now,
        thinking_in_history: ThinkingInHistory = "keep",
    ) -> None:
        """Raises TemplateError for a template that is no Jinja."""
        self.tokenizer = tokenizer
        self.template = template
        self.thinking_in_history: ThinkingInHistory = thinking_in_history
        self._jinja = ChatTemplate(template, _variables(tokenizer))
        self.abilities = probe(self._jinja)
        openers = self._turn_openers()
        self.stop_token_ids = tokenizer.end_ids | openers | _result_openers(tokenizer)
        self._guard = _guard(tokenizer, template, self.abilities.forms.image_marker)
        special = {**tokenizer.user_defined_texts, **tokenizer.control_texts}
        self._own_ids = frozenset(i for t, i in special.items() if t in self._guard.protected)
        script = Script(self._jinja, self.abilities, self._guard)
        speller = Speller(tokenizer, self._guard, RunCache(_RUN_CACHE_BYTES))
        self._whole = WholeRenderer(tokenizer, script, speller, openers)
        self._turnwise = TurnwiseRenderer(tokenizer, script, speller)
        self._chain = Chain(_CHAIN_BYTES)
        self._clocks = FrozenClocks(now)
        # How the model writes calls when it is offered tools; None for a way that is not read.
        has_own = self.abilities.tools or self.abilities.calls_without_tools
        self.tool_syntax = self.abilities.tool_syntax if has_own else "hermes"
        self.instabilities = tuple(instabilities(tokenizer, self.abilities, self._probe))
        self.prefix_stable = not self.instabilities
        self.prefix_reason = (
            "; ".join(self.instabilities) or "each turn's rendering begins with the one before it"
        )
        self._grows = self._can_grow()

    @classmethod
    def from_gguf(
        cls,
        gguf: GGUFFile,
        tokenizer: Tokenizer,
        thinking_in_history: ThinkingInHistory = "keep",
    ) -> "ChatFormat":
        """The file's own template, or if it has none that of a format whose tokens it has
        (own_templates.py).

        Raises TemplateError for a template that is no Jinja, or if there is none to use.
        """
        template = gguf.key(TEMPLATE_KEY, str, "")
        if template:
            try:
                return cls(tokenizer, template, thinking_in_history=thinking_in_history)
            except TemplateError as exc:
                raise TemplateError(f"{gguf.path.name}: {exc.message}", exc.hint) from exc
        known = {*tokenizer.control_texts, *tokenizer.user_defined_texts}
        found = own_template(gguf.architecture, known)
        if found is not None:
            _log.info("%s has no chat template: using %s", gguf.path.name, found[1])
            return cls(tokenizer, found[0], thinking_in_history=thinking_in_history)
        raise TemplateError(
            f"{gguf.path.name} has no chat template.",
            "It is a base model: choose an instruction-tuned one to chat with.",
        )

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
        picture_of: PictureOf | None = None,
    ) -> Timeline:
        """The timeline of `laid_out`, which says more."""
        return self.laid_out(messages, tools, thinking, picture_of).timeline

    def laid_out(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
        picture_of: PictureOf | None = None,
    ) -> Rendering:
        """`messages` up to where the assistant's next reply begins, and where their turns lie.

        `tools` are offered to the model, in a system turn where the template has no place for
        them; `thinking` switches it where the template can, None leaves it to the template.
        `picture_of` recognises images; it should know those that it has seen before, for it is
        asked of all of them. Text that looks like control tokens stays text. Raises RequestError
        for messages that make no conversation, TemplateError if the template fails on them or
        refuses them, and what `picture_of` raises.
        """
        if not messages:
            raise RequestError("There are no messages.", param="messages")
        options = self._options(messages, tools, thinking, picture_of)
        told = self._with_history(messages)
        rendering = self._grown_if_possible(told, options)
        if rendering is None:
            rendering = self._written_whole(told, options)
        pictures = {picture.fingerprint: picture for picture in options.pictures.values()}
        rendering = replace(
            rendering, notes=self._notes(messages), pictures=tuple(pictures.values())
        )
        if not len(rendering.timeline):
            raise TemplateError("The chat template made nothing of this conversation.")
        return rendering

    def whole(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
        picture_of: PictureOf | None = None,
    ) -> Rendering:
        """As `laid_out`, all of it as the template writes it now, earlier turns too, but for the
        pictures. Raises as that does."""
        options = self._options(messages, tools, thinking, picture_of)
        return self._written_whole(messages, options)

    def aligned(self, wanted: Rendering, resident: Timeline) -> Rendering:
        """`wanted` with the tokens of `resident` as far as those spell the same text."""
        found = aligned(wanted.timeline, resident, self._spelling)
        if found.timeline is wanted.timeline:
            return wanted
        return replace(wanted, timeline=found.timeline, outline=found.moved(wanted.outline))

    def _spelling(self, token_id: int) -> bytes | None:
        if token_id < 0 or token_id in self._own_ids:
            return None
        return self.tokenizer.token_bytes(token_id)

    def render_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> str:
        """What the template makes of it, replies as their texts; for people to read."""
        told = checked(messages)
        options = Options(tuple(tools), thinking, self._clocks.of(messages))
        return self._whole.text(told, options)

    def begins_thinking(self, thinking: bool | None = None) -> bool:
        """Whether the template itself opens the reply's reasoning, for ThinkingParser."""
        try:
            text = self.render_text([Message("user", "?")], thinking=thinking)
        except TemplateError:
            return False
        marks = marks_in(self.template)
        return marks is not None and text.rstrip().endswith(marks.opening)

    @property
    def kept_bytes(self) -> int:
        """Of renderings kept for conversations that go on."""
        return self._chain.nbytes

    def _options(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        thinking: bool | None,
        picture_of: PictureOf | None,
    ) -> Options:
        images = {image.digest: image for message in messages for image in message.images}
        if images and picture_of is None:
            raise RequestError("There are images, and the model sees none.", param="messages")
        pictures = {d: picture_of(image) for d, image in images.items()} if picture_of else {}
        return Options(tuple(tools), thinking, self._clocks.of(messages), pictures)

    @property
    def history_words(self) -> str:
        """What is done with earlier turns where the template would change them, and what that
        does to the reuse of what is resident."""
        words = _HISTORY_WORDS[self.thinking_in_history] if self.instabilities else _STABLE_WORDS
        return words.format(self.prefix_reason)

    def _with_history(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages, with of earlier replies' reasoning what the setting leaves."""
        if self.thinking_in_history == "drop":
            return [without_reasoning(self.tokenizer, m) for m in messages]
        return messages

    def _grown_if_possible(self, messages: Sequence[Message], options: Options) -> Rendering | None:
        is_wish = self.thinking_in_history == "template" and bool(self.instabilities)
        if is_wish or not self._grows:
            return None
        try:
            return self._grown(messages, options)
        except (NotTurnwise, TemplateError) as exc:
            _log.debug("rendered as a whole: %s", exc)
            return None

    def _grown(self, messages: Sequence[Message], options: Options) -> Rendering:
        """Turn by turn, from the longest beginning that is known."""
        ends = cuts(messages)
        keys = [(digest, options.thinking) for digest in digests(messages, options.tools, ends)]
        number, node = self._chain.longest(self._known_keys(keys))
        path = node.path() if node else []
        for at in range(number + 1, len(ends)):
            start = ends[at - 1] if at else 0
            node = self._next(node, messages[start : ends[at]], start, options)
            path.append(node)
        self._chain.put(list(zip(keys, path, strict=True)))
        last = path[-1]
        rows = joined([*(step.settled for step in path), last.open_rows])
        return Rendering(rows.timeline(), opened_outline(last))

    def _known_keys(self, keys: Sequence[Key]) -> Iterator[tuple[int, Key]]:
        """The last key, which says how the reply is opened, then earlier ones, latest first: with
        thinking switched otherwise too, where the switch is in the opening of the reply, so that
        the conversation before it stays as the model saw it."""
        *earlier, last = enumerate(keys)
        yield last
        for number, (digest, thinking) in reversed(earlier):
            yield number, (digest, thinking)
            if self.abilities.switch_in_opening:
                yield from ((number, (digest, t)) for t in (None, True, False) if t is not thinking)

    def _next(
        self, node: Node | None, messages: Sequence[Message], first: int, options: Options
    ) -> Node:
        told = checked(messages, first)
        sampled = self._is_usable(told[0], first)
        return self._turnwise.extended(node, told, options, sampled)

    def _written_whole(self, messages: Sequence[Message], options: Options) -> Rendering:
        told = checked(messages)
        if self.thinking_in_history == "template" and self.abilities.reasoning:
            # As text the template can leave it out, or not, as it wishes.
            told = [with_reasoning_as_text(self.tokenizer, m) for m in told]
        sampled = [n for n, m in enumerate(told) if self._is_usable(m, n)]
        rows, outline = self._whole.laid_out(told, options, sampled)
        return Rendering(rows.timeline(), outline)

    def _notes(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """What the history of `messages` is made of, in words, if the template or the setting
        would have it otherwise."""
        replies = [m for m in messages if m.role == "assistant"]
        if self.thinking_in_history == "drop":
            thought = sum(has_reasoning(self.tokenizer, m) for m in replies)
            return (_DROPPED.format(thought),) if thought else ()
        return (self.history_words,) if replies and self.instabilities else ()

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

    def _probe(self, messages: Sequence[Message], thinking: bool | None) -> Timeline:
        options = Options(thinking=thinking)
        return self._written_whole(messages, options).timeline

    def _can_grow(self) -> bool:
        """Whether growing turn by turn gives what a stable template writes as a whole; of one
        that is not there is nothing to compare with."""
        if not self.prefix_stable:
            return True
        for said in (Message("assistant", "A reply."), Message("assistant", "A reply.", (1, 2))):
            for messages in conversations(said):
                try:
                    whole = self._probe(messages, None)
                    grown = self._grown(messages, Options()).timeline
                except TemplateError:
                    continue
                except NotTurnwise as exc:
                    _log.info("conversations are rendered as a whole: %s", exc)
                    return False
                if grown != whole:
                    _log.info("conversations are rendered as a whole: turn by turn differs")
                    return False
        return True


def _result_openers(tokenizer: Tokenizer) -> frozenset[int]:
    """Where Gemma 4 waits for a result, within its turn."""
    known = {**tokenizer.user_defined_texts, **tokenizer.control_texts}
    return frozenset(known[text] for text in ("<|tool_response>",) if text in known)


def _variables(tokenizer: Tokenizer) -> dict[str, str]:
    return {
        "bos_token": tokenizer.token_text(tokenizer.bos_id),
        "eos_token": tokenizer.token_text(tokenizer.eos_id),
        "unk_token": tokenizer.token_text(tokenizer.unknown_id),
        "pad_token": tokenizer.token_text(tokenizer.padding_id),
    }


def _guard(tokenizer: Tokenizer, template: str, image_marker: str) -> Guard:
    """Protects control tokens, the user-defined ones that the template uses, those that mark the
    parts of a reply, and what the template writes for an image. Runs of blanks, which many
    vocabularies have as user-defined tokens, forge nothing and stay themselves."""
    known = set(tokenizer.user_defined_texts)
    used = {t for t in known if t in template and not t.isspace()} | (known & SHOWN_MARKS)
    kept = known - used
    return Guard({*tokenizer.control_texts, *used, image_marker}, kept)
