"""Pictures as the real openai client sends them."""

import base64
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.chat.sights import FakeVision
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]


def picture(name: bytes) -> dict[str, Any]:
    uri = f"data:image/png;base64,{base64.b64encode(name).decode()}"
    return {"type": "image_url", "image_url": {"url": uri, "detail": "auto"}}


def asked(*files: bytes, text: str = "What is it?") -> dict[str, Any]:
    parts = [picture(data) for data in files]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def ask(running: Running, *messages: dict[str, Any]) -> Any:
    told: list[Any] = list(messages)
    return running.client.chat.completions.create(model="fake", messages=told)


def test_a_history_of_pictures_is_kept_and_a_swapped_one_is_not(serve: Serve) -> None:
    vision = FakeVision(vectors=20)
    running = serve(FakeAssistant("A cat.", vision=vision))
    first = ask(running, asked(b"red", b"blue"))
    told = [asked(b"red", b"blue"), {"role": "assistant", "content": "A cat."}]
    second = ask(running, *told, asked(text="And now?"))
    kept = second.usage.prompt_tokens_details.cached_tokens
    assert kept >= first.usage.prompt_tokens and vision.decoded == [b"red", b"blue"]
    assert second.model_extra["kv"]["images"] == "match"
    told[0] = asked(b"red", b"green")
    third = ask(running, *told, asked(text="And now?"))
    spans = running.engine.requests[0].timeline.spans
    assert third.usage.prompt_tokens_details.cached_tokens == spans[1].start
    assert third.model_extra["kv"]["images"] == "changed"


def test_pictures_in_results_of_tools_reach_the_model(serve: Serve) -> None:
    running = serve(FakeAssistant("A cat.", vision=FakeVision()))
    call = {"id": "c1", "type": "function", "function": {"name": "shot", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": [picture(b"red")]}
    ask(running, asked(), {"role": "assistant", "tool_calls": [call]}, result)
    assert len(running.engine.requests[0].timeline.spans) == 1


def refused(running: Running, *messages: dict[str, Any]) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as raised:
        ask(running, *messages)
    assert running.engine.requests == []
    return raised.value


def test_a_text_only_model_says_so_and_what_to_load(serve: Serve) -> None:
    refusal = "fake sees no pictures: load SmolVLM."
    error = refused(serve(FakeAssistant("No.", vision_refusal=refusal)), asked(b"red"))
    assert refusal in error.message and error.param == "messages"


def test_a_bad_picture_is_named_by_its_field(serve: Serve) -> None:
    error = refused(serve(FakeAssistant("No.", vision=FakeVision())), asked(b"red", b"bad"))
    assert "messages[0].content[1].image_url.url is no picture" in error.message
    assert error.param == "messages[0].content[1].image_url.url"
    assert "JSON" not in error.message


def test_pictures_from_the_network_are_refused_with_the_reason(serve: Serve) -> None:
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}
    running = serve(FakeAssistant("No.", vision=FakeVision()))
    error = refused(running, {"role": "user", "content": [part]})
    assert "not fetched from the network" in error.message
    assert error.param == "messages[0].content[0].image_url.url"


def test_more_images_than_the_context_takes_are_told_with_numbers_and_what_to_do(
    serve: Serve,
) -> None:
    assistant = FakeAssistant("No.", vision=FakeVision(vectors=100), context_tokens=250)
    error = refused(serve(assistant), asked(*(b"%d" % number for number in range(5))))
    assert "the context holds 250" in error.message and "images_kept" in error.message


def test_a_long_history_goes_on_where_the_last_images_are_kept(serve: Serve) -> None:
    vision = FakeVision(vectors=50)
    assistant = FakeAssistant("Ok.", vision=vision, context_tokens=2000, images_kept=4)
    running = serve(assistant)
    told: list[dict[str, Any]] = []
    left_out: list[int] = []
    for number in range(12):
        told.append(asked(b"%d" % number))
        answer = ask(running, *told)
        left_out.append(answer.model_extra["kv"]["images_left_out"])
        told.append({"role": "assistant", "content": "Ok."})
    shown = [len(request.timeline.spans) for request in running.engine.requests]
    assert shown == [1, 2, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4]
    assert left_out == [0, 0, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


def test_models_say_whether_they_see(serve: Serve) -> None:
    for vision, wanted in ((FakeVision(), ["text", "image"]), (None, ["text"])):
        running = serve(FakeAssistant("Ok.", vision=vision))
        model = running.client.models.retrieve("fake")
        assert model.model_extra is not None
        assert model.model_extra["input_modalities"] == wanted
