"""Random conversations with images: text and images come in, early images are replaced, dropped
or written anew, and what was seen stays what it was."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.causes import Cause, Side, divergence_cause
from ds4tui.chat.messages import Image, Message, Tool, ToolCall
from ds4tui.chat.rendering import CHATML, ChatFormat, Rendering
from ds4tui.chat.replay import ReplayMemory
from ds4tui.engine.tokenizer import Tokenizer
from tests.chat import formats, sights
from tests.chat.sights import FakeVision
from tests.scale import scaled

STABLE = {
    "chatml": CHATML,
    "trimming": formats.TRIMMING,
    "hermes": formats.HERMES,
    "no system": formats.NO_SYSTEM,
    "gemma3": sights.GEMMA3,
    "qwen2.5vl": sights.QWEN2_5_VL,
    "qwen3vl": sights.QWEN3_VL,
}
LOOK = (Tool("look", "Looks.", '{"type": "object", "properties": {"at": {"type": "integer"}}}'),)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return sights.tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def chat_formats(tokenizer: Tokenizer) -> dict[str, ChatFormat]:
    made = {name: ChatFormat(tokenizer, template) for name, template in STABLE.items()}
    assert all(f.prefix_stable for f in made.values())
    return made


files = st.sampled_from([b"red", b"green", b"blue"])
texts = st.sampled_from(["", "a", "What now?", " x ", "<image>", "a\n\nb", "<|vision_start|>"])


@st.composite
def questions(draw: st.DrawFn) -> Message:
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    images = tuple(Image(draw(files), at) for at in places)
    return Message("user", text or ("" if images else "Hm?"), images=images)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Questions and replies, rounds of tools between some of them, whose results show images."""
    told = [Message("system", "Be brief.")] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        told.append(draw(questions()))
        for round_ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            told += draw(rounds(f"call{number}{round_}"))
        told.append(Message("assistant", draw(st.sampled_from(["Ok.", "th"]))))
    return [*told, draw(questions())]


@st.composite
def rounds(draw: st.DrawFn, name: str) -> list[Message]:
    calls = [
        ToolCall(f"{name}{place:03}", "look", f'{{"at": {place}}}')
        for place in range(draw(st.integers(1, 2)))
    ]
    results = [
        replace(draw(questions()), role="tool", tool_call_id=call.id, name=call.name)
        for call in calls
    ]
    return [Message("assistant", "", tool_calls=tuple(calls)), *results]


@given(told=conversations(), name=st.sampled_from([*STABLE]), sampled=st.booleans())
@settings(max_examples=scaled(120), deadline=None)
def test_turn_by_turn_is_the_whole_with_images_in_it(
    tokenizer: Tokenizer,
    chat_formats: dict[str, ChatFormat],
    told: list[Message],
    name: str,
    sampled: bool,
) -> None:
    chat_format, vision = chat_formats[name], FakeVision("gemma3" if name == "gemma3" else "qwen")
    if sampled:
        told = [with_ids(tokenizer, m) for m in told]
    before: Rendering | None = None
    for number, message in enumerate(told):
        if message.role == "assistant":
            continue
        if number + 1 < len(told) and told[number + 1].role != "assistant":
            continue
        grown = chat_format.laid_out(told[: number + 1], LOOK, picture_of=vision.of)
        whole = chat_format.whole(told[: number + 1], LOOK, picture_of=vision.of)
        assert grown.timeline == whole.timeline
        shown = [vision.of(i).fingerprint for m in told[: number + 1] for i in m.images]
        assert [span.fingerprint for span in grown.timeline.spans] == shown
        assert {p.fingerprint for p in grown.pictures} == set(shown)
        if before is not None:  # all that was there stays
            settled = before.outline[-1].start
            assert grown.timeline.common_prefix(before.timeline) >= settled
        before = grown


def with_ids(tokenizer: Tokenizer, message: Message) -> Message:
    if message.role != "assistant" or message.tool_calls:
        return message
    return replace(message, sampled_ids=tuple(tokenizer.encode(message.text)))


@given(
    told=conversations(),
    name=st.sampled_from([*STABLE]),
    pick=st.integers(0, 99),
    drops=st.booleans(),
)
@settings(max_examples=scaled(120), deadline=None)
def test_a_changed_image_parts_two_timelines_just_before_it(
    chat_formats: dict[str, ChatFormat],
    told: list[Message],
    name: str,
    pick: int,
    drops: bool,
) -> None:
    places = [(n, i) for n, m in enumerate(told) for i in range(len(m.images))]
    if not places:
        return
    chat_format, vision = chat_formats[name], FakeVision("gemma3" if name == "gemma3" else "qwen")
    number, index = places[pick % len(places)]
    changed = list(told)
    images = list(told[number].images)
    if drops:
        del images[index]
    else:
        images[index] = Image(b"yellow", images[index].at)
    changed[number] = replace(told[number], images=tuple(images))
    if not (images or told[number].text):
        return
    was = chat_format.laid_out(told, picture_of=vision.of)
    now = chat_format.laid_out(changed, picture_of=vision.of)
    span = was.timeline.spans[places.index((number, index))]
    common = was.timeline.common_prefix(now.timeline)
    if drops:
        # The text around it, or the same picture right behind it, may go on the same way.
        assert common >= span.start - 1 and now.timeline.snapped(common) == common
        return
    assert common == span.start
    sides = (Side(len(r.timeline), r.outline, r.timeline.spans) for r in (was, now))
    assert divergence_cause(*sides, common) is Cause.IMAGE_REPLACED


@given(told=conversations(), ways=st.lists(st.integers(0, 9), min_size=12, max_size=12))
@settings(max_examples=scaled(60), deadline=None)
def test_a_picture_written_anew_is_the_same(
    tokenizer: Tokenizer,
    chat_formats: dict[str, ChatFormat],
    told: list[Message],
    ways: Sequence[int],
) -> None:
    """Another file of the same pixels: the replies behind it are still what was sampled."""
    chat_format, vision = chat_formats["qwen3vl"], FakeVision("qwen")
    replay = ReplayMemory(identity=lambda image: vision.of(image).fingerprint)
    ids = tuple(tokenizer.encode("O")) + tuple(tokenizer.encode("k."))
    said: list[Message] = []
    for message in told:
        if message.role == "assistant" and not message.tool_calls:
            replay.recall(said, note=True)
            replay.remember(said, "Ok.", ids)
            message = Message("assistant", "Ok.")
        said.append(message)
    again, way = [], iter(ways)
    for message in said:
        images = (replace_file(i, b"!%d" % next(way, 0)) for i in message.images)
        again.append(replace(message, text=message.text + " ", images=tuple(images)))
    first, second = (
        chat_format.laid_out(replay.recall(messages), picture_of=vision.of)
        for messages in (said, again)
    )
    replies = sum(m.role == "assistant" and not m.tool_calls for m in told)
    assert sum(m.sampled_ids == ids for m in replay.recall(again)) == replies
    ends = [turn.start for turn in first.outline if turn.role == "user"]
    assert first.timeline.common_prefix(second.timeline) >= ends[-1]


def replace_file(image: Image, way: bytes) -> Image:
    return Image(image.data + way, image.at)
