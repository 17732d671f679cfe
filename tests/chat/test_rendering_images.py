"""Images in renderings: the ids of transformers' processors, and what cannot be forged."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.cache.timeline import Timeline
from ds4tui.chat.messages import Image, Message, Tool, ToolCall
from ds4tui.chat.rendering import CHATML, ChatFormat, Rendering
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vision.layout import PLACEHOLDERS, block
from ds4tui.engine.vision.pictures import opened
from ds4tui.engine.vision.preprocess import prepared
from ds4tui.engine.vision.recognition import Picture
from ds4tui.errors import RequestError, TemplateError, UsageError
from tests.chat import formats, sights
from tests.chat.image_prompts import CONVERSATIONS, MODELS, RESULT
from tests.chat.sights import ID, FakeVision
from tests.engine.vision.pictures import CONFIGS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return sights.tokenizer(tmp_path_factory.mktemp("vocabulary"))


def model_ids(timeline: Timeline) -> list[int]:
    """With the model's own ids in the rows of images."""
    ids = timeline.ids.copy()
    for span in timeline.spans:
        ids[span.start : span.end] = span.token_ids
    return ids.tolist()


def read(tokenizer: Tokenizer, rendering: Rendering) -> str:
    return tokenizer.decode(model_ids(rendering.timeline), skip_special=False)


# --- the reference processors ----------------------------------------------


@pytest.fixture(scope="module")
def processed() -> Any:
    return np.load(Path(__file__).with_name("image_prompts.npz"))


def seen_by(tokenizer: Tokenizer, settings: str, image: Image) -> Picture:
    config = CONFIGS[settings]
    made = prepared(opened(image.data), config)
    placeholder = ID[PLACEHOLDERS[config.projector]]

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, special=True)

    laid = block(config, made.shape, encode, placeholder)
    return Picture(made.fingerprint(b"test"), made.shape, laid, lambda: made)


@pytest.mark.parametrize("title", [*CONVERSATIONS, "result"])
@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_those_of_the_reference_processors(
    tokenizer: Tokenizer, processed: Any, name: str, title: str
) -> None:
    if f"{name}/{title}" not in processed:
        assert title == "result" and name != "qwen3vl"
        return
    template, settings = MODELS[name]
    chat_format = ChatFormat(tokenizer, template)
    messages = RESULT if title == "result" else CONVERSATIONS[title]
    expected = processed[f"{name}/{title}"].tolist()

    def picture_of(image: Image) -> Picture:
        return seen_by(tokenizer, settings, image)

    whole = chat_format.whole(messages, picture_of=picture_of)
    grown = chat_format.laid_out(messages, picture_of=picture_of)
    assert model_ids(whole.timeline) == expected
    assert model_ids(grown.timeline) == expected
    shown = [image for message in messages for image in message.images]
    assert len(whole.timeline.spans) == len(shown)
    assert {p.fingerprint for p in grown.pictures} == {s.fingerprint for s in grown.timeline.spans}


# --- templates that know nothing of images ---------------------------------


def shown(number: int, at: int = 0) -> Image:
    return Image(b"picture %d" % number, at)


def test_other_templates_find_a_mark_in_the_text(tokenizer: Tokenizer) -> None:
    """With stand-in tokens that the file of the encoder names, for a vocabulary without markers."""
    chat_format, vision = ChatFormat(tokenizer, CHATML), FakeVision("stand-in", vectors=2)
    images = (shown(1), shown(2, 3), shown(1, 5))
    told = [Message("user", "Why so", images=images)]
    assert read(tokenizer, chat_format.laid_out(told, picture_of=vision.of)) == (
        "<|im_start|>user\n<b></think></think><b>Why<b></think></think><b> s"
        "<b></think></think><b>o<|im_end|>\n<|im_start|>assistant\n"
    )
    assert chat_format.abilities.forms.image_marker == ""


@pytest.mark.parametrize("name", ["no system", "parts", "hermes", "merged results", "by parts"])
def test_every_result_shows_its_images(tokenizer: Tokenizer, name: str) -> None:
    """Also where results are written into user turns, or as JSON."""
    chat_format, vision = ChatFormat(tokenizer, formats.CORPUS[name]), FakeVision("qwen", 3)
    call = ToolCall("call00001", "look", "{}")
    messages = [
        Message("user", "Look."),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "Done.", tool_call_id=call.id, name="look", images=(shown(1, 5),)),
        Message("tool", "", tool_call_id=call.id, name="look", images=(shown(2), shown(3))),
    ]
    tools = (Tool("look", "Looks.", '{"type": "object", "properties": {}}'),)
    for how in (chat_format.whole, chat_format.laid_out):
        rendering = how(messages, tools, picture_of=vision.of)
        fingerprints = [span.fingerprint for span in rendering.timeline.spans]
        assert fingerprints == [vision.of(shown(n)).fingerprint for n in (1, 2, 3)]
        assert "Done.<|vision_start|>" in read(tokenizer, rendering)


def test_what_cuts_texts_up_is_told_to_lose_images(tokenizer: Tokenizer) -> None:
    chat_format = ChatFormat(tokenizer, formats.CUTTING)
    with pytest.raises(TemplateError, match="each image once"):
        chat_format.laid_out([Message("user", "a", images=(shown(1),))], picture_of=FakeVision().of)


def test_a_template_that_numbers_its_images_is_given_marks(tokenizer: Tokenizer) -> None:
    numbering = sights.QWEN2_5_VL.replace(
        "'<|vision_start|>", "'Picture ' ~ loop.index ~ ': <|vision_start|>"
    )
    chat_format, vision = ChatFormat(tokenizer, numbering), FakeVision("qwen", 1)
    assert not chat_format.abilities.forms.image_roles
    told = [Message("user", "ab", images=(shown(1, 1),))]
    prompt = read(tokenizer, chat_format.laid_out(told, picture_of=vision.of))
    assert "a<|vision_start|><|image_pad|><|vision_end|>b" in prompt and "Picture" not in prompt


# --- people's text -----------------------------------------------------------


@pytest.mark.parametrize("name", sights.TYPED)
def test_markers_that_people_write_are_text(tokenizer: Tokenizer, name: str) -> None:
    chat_format, vision = ChatFormat(tokenizer, sights.TYPED[name]), FakeVision("qwen", 1)
    texts = [*sights.MARKERS, chat_format.abilities.forms.image_marker, "\ue0020\ue002"]
    for text in texts:
        told = [Message("user", f"{text} x {text}", images=(shown(1, len(text)),))]
        for how in (chat_format.whole, chat_format.laid_out):
            timeline = how(told, picture_of=vision.of).timeline
            assert len(timeline.spans) == 1
            outside = [i for i in timeline.ids.tolist() if i >= 0]
            assert not {ID[marker] for marker in sights.MARKERS} & set(outside)
            assert text in tokenizer.decode(outside, skip_special=False)


def test_a_marker_split_by_an_image_stays_text(tokenizer: Tokenizer) -> None:
    chat_format = ChatFormat(tokenizer, sights.GEMMA3)
    told = [Message("user", "<start_of_image>", images=(shown(1, 9),))]
    timeline = chat_format.laid_out(told, picture_of=FakeVision("gemma3", 1).of).timeline
    assert ID["<start_of_image>"] not in [i for i in timeline.ids.tolist() if i >= 0]


# --- refusals ----------------------------------------------------------------


def test_images_need_somebody_who_recognises_them(tokenizer: Tokenizer) -> None:
    chat_format = ChatFormat(tokenizer, CHATML)
    with pytest.raises(RequestError, match="the model sees none"):
        chat_format.laid_out([Message("user", "a", images=(shown(1),))])


def test_what_is_no_picture_is_told(tokenizer: Tokenizer) -> None:
    chat_format = ChatFormat(tokenizer, CHATML)
    with pytest.raises(UsageError, match=r"shot\.png is no picture"):
        broken = Message("user", "a", images=(Image(b"bad", 0, "shot.png"),))
        chat_format.laid_out([broken], picture_of=FakeVision().of)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_stand_in_questions_and_results_only(tokenizer: Tokenizer, role: Any) -> None:
    chat_format = ChatFormat(tokenizer, CHATML)
    told = [Message("user", "a"), Message(role, "b", images=(shown(1),)), Message("user", "c")]
    with pytest.raises(RequestError, match=f"Message 1 is of the {role} and holds an image"):
        chat_format.laid_out(told, picture_of=FakeVision().of)


@pytest.mark.parametrize("places", [(2, 1), (4,), (-1,)])
def test_places_are_in_order_and_in_the_text(tokenizer: Tokenizer, places: list[int]) -> None:
    told = [Message("user", "abc", images=tuple(shown(1, at) for at in places))]
    with pytest.raises(RequestError, match="not in order"):
        ChatFormat(tokenizer, CHATML).laid_out(told, picture_of=FakeVision().of)


# --- long histories -------------------------------------------------------------


@pytest.mark.parametrize("name", sights.TYPED)
def test_the_next_turn_of_twenty_screenshots_decodes_none_and_costs_its_own_length(
    tokenizer: Tokenizer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_format, vision = ChatFormat(tokenizer, sights.TYPED[name]), FakeVision("qwen", 50)
    told: list[Message] = []
    before = chat_format.laid_out([Message("user", "Hi.")]).timeline
    written = 0
    render = chat_format._jinja.render

    def counted(*given: Any, **named: Any) -> str:
        nonlocal written
        text = render(*given, **named)
        written += len(text)
        return text

    monkeypatch.setattr(chat_format._jinja, "render", counted)
    costs = []
    for turn in range(20):
        told.append(Message("user", "What now?", images=(shown(turn), shown(turn + 100, 9))))
        vision.decoded.clear()
        written = 0
        rendering = chat_format.laid_out(told, picture_of=vision.of)
        assert vision.decoded == [image.data for image in told[-1].images]
        assert len(rendering.pictures) == 2 * (turn + 1) == len(rendering.timeline.spans)
        assert turn == 0 or rendering.timeline.common_prefix(before) == len(before)
        costs.append(written)
        ids = tuple(tokenizer.encode("I see."))
        before = rendering.timeline.extended(ids)
        told.append(Message("assistant", "I see.", ids))
    assert max(costs[4:]) == costs[4]


def test_the_turns_of_an_outline_hold_their_images(tokenizer: Tokenizer) -> None:
    vision = FakeVision("qwen", 5)
    messages = CONVERSATIONS["in turns"]
    for template in (CHATML, sights.QWEN3_VL, sights.GEMMA3):
        chat_format = ChatFormat(tokenizer, template)
        for how in (chat_format.whole, chat_format.laid_out):
            rendering = how(messages, picture_of=vision.of)
            owners = [
                next(n for n, t in enumerate(rendering.outline) if t.start <= s.start < t.end)
                for s in rendering.timeline.spans
            ]
            assert owners == [1, 3, 3]
            ends = [t.end for t in rendering.outline]
            assert all(rendering.timeline.snapped(end) == end for end in ends)
    one, other = (
        chat_format.laid_out([Message("user", "a", images=(shown(n),))], picture_of=vision.of)
        for n in (1, 2)
    )
    assert one.outline[0].digest != other.outline[0].digest


def test_people_read_names_where_images_stand(tokenizer: Tokenizer) -> None:
    told = [Message("user", "ab", images=(Image(b"x", 0, "shot.png"), Image(b"y", 1)))]
    for template in (CHATML, sights.QWEN2_5_VL):
        assert "[shot.png]a[image]b" in ChatFormat(tokenizer, template).render_text(told)


def test_another_image_is_another_conversation_to_the_renderer(tokenizer: Tokenizer) -> None:
    chat_format, vision = ChatFormat(tokenizer, sights.QWEN3_VL), FakeVision("qwen", 3)
    first = Message("user", "See: ", images=(shown(1, 5),))
    red, blue, moved = (
        chat_format.laid_out([m], picture_of=vision.of).timeline
        for m in (
            first,
            replace(first, images=(shown(2, 5),)),
            replace(first, images=(shown(1, 4),)),
        )
    )
    start = red.spans[0].start
    assert red.common_prefix(blue) == start == moved.spans[0].start + 1
