"""One opened model as every front-end sees it: messages in, events out.

The app, the server and one-shot hold an Assistant and nothing below it. It renders messages
to a Timeline (on the caller's thread), hands the job to the engine thread, and remembers what
was sampled so that the same reply, sent back by whoever, renders to the very same tokens.
It imports neither mlx nor textual nor starlette: the engine is passed in.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ds4tui.cache.foreseen import Foreseen
from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.outline import Outline
from ds4tui.cache.timeline import Timeline
from ds4tui.chat.forms import Forms
from ds4tui.chat.grammars import AnswerFormat, Reasoning, ToolChoice
from ds4tui.chat.messages import Message, Tool
from ds4tui.chat.picturing import Pictures, last_images
from ds4tui.chat.remembered import LatestTimelines, TextNumbers
from ds4tui.chat.rendering import ChatFormat, Rendering
from ds4tui.chat.replay import ReplayMemory
from ds4tui.chat.reply_reader import ReplyReader
from ds4tui.chat.saved_replies import SavedReplies
from ds4tui.chat.thinking import THINK, ThinkingMarks, ThinkingParser, marks_in
from ds4tui.chat.toolcalls import marks, parser_of
from ds4tui.engine.requests import GenerateRequest, Origin, SamplingParams
from ds4tui.engine.sampling_defaults import OwnSampling
from ds4tui.engine.stats import EngineStats
from ds4tui.errors import ContextOverflow, EngineError
from ds4tui.events import Event, Finished
from ds4tui.events import Listener as Listener  # exported: front-ends take it from here

if TYPE_CHECKING:  # bring libraries that not every reply needs
    from ds4tui.engine.constraint import Constraint
    from ds4tui.engine.vision.recognition import Picture
    from ds4tui.engine.vision.seeing import Vision

_MAY_CALL = ToolChoice()
_FORESEEN_WITHIN_S = 20.0  # the longest step of a slow machine
_NEVER = -1e4  # added to a logit: no other is that low

log = logging.getLogger(__name__)

_BYTES_MAX = 4  # of a character in UTF-8; no text has more tokens than bytes


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of an opened model without touching its weights."""

    name: str  # how people and clients call it, e.g. "smollm2"
    path: str
    architecture: str
    quantisation: str
    parameters: int
    file_bytes: int
    context_tokens: int
    sampling: OwnSampling = field(default_factory=OwnSampling)  # what its authors recommend
    vision: str = ""  # the file of its image encoder; "": it sees no pictures

    @property
    def ids_key(self) -> str:
        """Names the vocabulary of sampled ids: ids of one model mean nothing to another."""
        return f"{self.name} {self.architecture} {self.parameters} {self.quantisation}"


class Job(Protocol):
    """A request at work. `cancel` may be called from any thread, more than once."""

    job_id: str

    def cancel(self) -> None: ...
    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the job has ended."""


class EngineLike(Protocol):
    """What an Assistant needs of an engine; tests pass a fake one."""

    @property
    def stats(self) -> EngineStats: ...
    @property
    def disk(self) -> DiskTier | None: ...
    def submit(self, request: GenerateRequest, listener: Listener) -> Job: ...
    def foreseen(self, wanted: Timeline, outline: Outline = ()) -> Future[Foreseen]: ...
    def close(self, timeout_s: float = 10.0) -> None: ...


class Assistant:
    """Thread-safe. Listeners are called on the engine thread: they must be quick, and what
    they raise is logged and dropped. With `replies`, which it closes, what was sampled is
    remembered over restarts."""

    def __init__(
        self,
        info: ModelInfo,
        engine: EngineLike,
        chat_format: ChatFormat,
        replies: SavedReplies | None = None,
        vision: "Vision | None" = None,
        vision_refusal: str = "",
        images_kept: int = 0,
    ) -> None:
        """Without `vision` the model sees no pictures, and `vision_refusal` says why and what to
        do. Of a conversation's images at most `images_kept` are shown to the model, the last
        ones; 0 shows all."""
        self.info = info
        self.vision = vision
        self.vision_refusal = vision_refusal
        self.format = chat_format
        self._engine = engine
        self._replies = replies
        self._images_kept = images_kept
        self._pictures = Pictures(vision, vision_refusal)
        self._replay = ReplayMemory(shelf=replies, identity=self._pictures.identity)
        self._latest = LatestTimelines()
        self._forms = Forms(
            chat_format.tokenizer, chat_format.stop_token_ids, chat_format.tool_syntax
        )
        self._least_tokens = TextNumbers(lambda text: chat_format.tokenizer.least_tokens(text))
        self._lock = threading.Lock()

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats

    @property
    def disk(self) -> DiskTier | None:
        """What outlives the process, for people to pin and clear; None without one."""
        return self._engine.disk

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> Timeline:
        """The timeline of `messages` up to where the assistant's reply begins.

        Raises RequestError for messages that make no conversation or hold images that the model
        does not see, TemplateError if the model's template fails on them, UsageError for images
        that are no pictures.
        """
        return self._laid_out(messages, tools, thinking).timeline

    def _laid_out(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        thinking: bool | None,
        note: bool = False,
    ) -> Rendering:
        with self._lock:
            known = self._replay.recall(messages, note)
        shown, left_out = last_images(known, self._images_kept)
        if left_out:
            log.info("%d earlier images are left out (images_kept)", left_out)
        rendering = self.format.laid_out(shown, tools, thinking, self._pictures)
        for words in rendering.notes:
            log.debug("%s", words)
        # What no reply was remembered for may still spell what is resident.
        resident = self._latest.nearest(rendering.timeline)
        return rendering if resident is None else self.format.aligned(rendering, resident)

    def foreseen(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
    ) -> Foreseen:
        """What asking `messages` would cost now. Blocks until a step of what is at work has
        ended; raises what `render` raises, ContextOverflow, and EngineError if the engine does
        not answer."""
        self._require_room(messages, tools)
        rendering = self._laid_out(messages, tools, thinking)
        told = self._engine.foreseen(rendering.timeline, rendering.outline)
        try:
            return told.result(_FORESEEN_WITHIN_S)
        except TimeoutError as exc:
            raise EngineError("The engine is busy and does not tell.", "Try it later.") from exc

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams,
        listener: Listener,
        origin: Origin = "person",
        before_start: Callable[[], None] = lambda: None,
        tools: Sequence[Tool] = (),
        thinking: bool | None = None,
        choice: ToolChoice = _MAY_CALL,
        answer: AnswerFormat | None = None,
    ) -> Job:
        """Reply to `messages`. `tools` are offered to the model, and calls are then read out of
        what it says; `thinking` switches that where the template can, None leaves it to the model.
        With the `choice` "none" the tools stay in the prompt, for what is resident was rendered
        with them, but the model is kept from opening a call and what it says is text. A "required"
        call and the form of an `answer` are held by grammar; neither changes the prompt.

        Raises before any work starts (ContextOverflow, TemplateError, RequestError); after that
        everything arrives as events. `before_start` is called when the messages are rendered,
        which may take seconds: if it raises, there is no job."""
        self._require_room(messages, tools)
        reasoning = self._reasoning(thinking)
        around = self._thinking_marks
        constraint = self._forms.constraint(answer, choice, tools, reasoning, around)
        rendering = self._laid_out(messages, tools, thinking, note=True)
        reader = self._reader(() if choice.kind == "none" else tools, reasoning)
        if tools and choice.kind == "none":
            sampling = self._without_calls(sampling)

        def keep(reply: Finished) -> None:
            self._latest.put(rendering.timeline.extended(reply.token_ids))
            # After a stop string, or with control tokens, the sampled ids say more than was shown:
            # such a reply is rendered from its text, so that no state holds what nobody saw.
            if not self.says_more(reply):
                with self._lock:
                    self._replay.remember(messages, reader.text, reply.token_ids, reader.calls)

        images = sum(len(message.images) for message in messages)
        left_out = images - len(rendering.timeline.spans)

        def remember(event: Event) -> None:
            told = reader.read(event)
            if isinstance(event, Finished):
                keep(event)
            for each in told:
                listener(each)

        before_start()
        began = _first_words(messages)
        return self._submit(
            rendering.timeline,
            sampling,
            remember,
            origin,
            rendering.outline,
            began,
            constraint,
            rendering.pictures,
            left_out,
        )

    @property
    def _thinking_marks(self) -> ThinkingMarks:
        return marks_in(self.format.template) or THINK

    def _reasoning(self, thinking: bool | None) -> Reasoning:
        if marks_in(self.format.template) is None:
            return "none"
        return "begun" if self.format.begins_thinking(thinking) else "maybe"

    def _reader(self, tools: Sequence[Tool], reasoning: Reasoning) -> ReplyReader:
        around = self._thinking_marks
        thoughts = ThinkingParser(reasoning == "begun", around) if reasoning != "none" else None
        schemas = {tool.name: tool.parameters for tool in tools}
        calls = parser_of(self.format.tool_syntax, schemas) if tools else None
        return ReplyReader(thoughts, calls)

    def _without_calls(self, sampling: SamplingParams) -> SamplingParams:
        known = self.format.tokenizer.user_defined_texts
        markers = [known[text] for text in marks(self.format.tool_syntax) if text in known]
        never = tuple((marker, _NEVER) for marker in markers)
        return replace(sampling, logit_bias=(*sampling.logit_bias, *never))

    def _require_room(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Raises ContextOverflow for what cannot fit: encoding megabytes takes minutes, and
        nothing can stop it. Recognises the images, and raises as that does."""
        context, rows = self.info.context_tokens, 0
        shown, _ = last_images(messages, self._images_kept)
        for image_rows in self._pictures.rows(shown):
            rows += image_rows
            if rows > context:
                break
        least = rows + self._least_of(_texts(messages, tools), context - rows)
        if least > context:
            raise ContextOverflow(least, context, at_least=True, image_tokens=rows)

    def _least_of(self, texts: Iterable[str], room: int) -> int:
        """A lower bound of their tokens, 0 where they fit into `room` whatever they are."""
        stripped = [text.strip() for text in texts]  # as templates may have it
        if sum(map(len, stripped)) * _BYTES_MAX <= room:
            return 0
        return sum(map(self._least_tokens.of, stripped))

    def says_more(self, reply: Finished) -> bool:
        """Whether the ids of a reply say more than was shown."""
        silent = self.format.tokenizer.has_silent(reply.token_ids)
        return silent or reply.stop_string is not None

    def complete(
        self,
        text: str | tuple[int, ...],
        sampling: SamplingParams,
        listener: Listener,
        origin: Origin = "person",
    ) -> Job:
        """Continue `text`, or ids, as they stand, without a chat template."""
        if not isinstance(text, str):
            return self._submit(Timeline.of(text), sampling, listener, origin)
        context = self.info.context_tokens
        least = self._least_of([text], context)
        if least > context:
            raise ContextOverflow(least, context, at_least=True)
        ids = self.format.tokenizer.encode(text, add_bos=True)
        return self._submit(Timeline.of(ids), sampling, listener, origin)

    def _submit(
        self,
        timeline: Timeline,
        sampling: SamplingParams,
        listener: Listener,
        origin: Origin,
        outline: Outline = (),
        words: str = "",
        constraint: "Constraint | None" = None,
        pictures: "tuple[Picture, ...]" = (),
        images_left_out: int = 0,
    ) -> Job:
        stops = self.format.stop_token_ids
        request = GenerateRequest(
            timeline,
            sampling,
            origin,
            stops,
            outline,
            words,
            pictures=pictures,
            constraint=constraint,
            images_left_out=images_left_out,
        )
        return self._engine.submit(request, listener)

    def close(self, timeout_s: float = 10.0) -> None:
        self._engine.close(timeout_s)
        if self._replies is not None:
            self._replies.close()


def _first_words(messages: Sequence[Message]) -> str:
    """What a person first says in a conversation; "" where that is nothing, or a picture only."""
    return next((message.text for message in messages if message.role == "user"), "")


def _texts(messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[str]:
    """All that a template writes for sure; reasoning is often left out."""
    for message in messages:
        yield message.text
        yield from (call.arguments for call in message.tool_calls)
    yield from (tool.description for tool in tools)
