"""Chat completions as the real openai client sees them, over a real socket."""

import asyncio
import concurrent.futures
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.sampling_defaults import SamplingDefaults
from ds4tui.errors import EngineError, OutOfMemory, TemplateError
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]
HELLO: list[Any] = [{"role": "user", "content": "Hello?"}]


def chunks_of(stream: Any) -> list[Any]:
    with stream:
        return list(stream)


def test_whole_reply(serve: Serve) -> None:
    running = serve(FakeAssistant("Bonjour, été 🙂"))
    reply = running.client.chat.completions.create(model="fake", messages=HELLO)
    assert reply.id.startswith("chatcmpl-")
    assert (reply.object, reply.model) == ("chat.completion", "fake")
    [choice] = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "Bonjour, été 🙂"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(running.engine.requests[0].timeline)
    assert reply.usage.completion_tokens == len("Bonjour, été 🙂".encode())
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_the_reply_says_what_was_kept_and_why(serve: Serve) -> None:
    running = serve(FakeAssistant("Fine."))
    first = running.client.chat.completions.create(model="fake", messages=HELLO)
    longer = [*HELLO, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "?"}]
    second = running.client.chat.completions.create(model="fake", messages=longer)
    kv = second.model_extra["kv"]
    assert second.usage.prompt_tokens_details.cached_tokens == kv["kept"] > 0
    assert kv["kept"] + kv["evaluated"] == kv["prompt"] == second.usage.prompt_tokens
    assert kv["kind"] == "extend"
    assert kv["kept"] == first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert kv["reason"]
    assert first.model_extra["kv"]["kind"] == "cold"


def test_stream(serve: Serve) -> None:
    running = serve(FakeAssistant("One two."))
    chunks = chunks_of(
        running.client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    )
    deltas = [c.choices[0].delta for c in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert all(d.role is None and d.content for d in deltas[1:-1])
    assert "".join(d.content or "" for d in deltas) == "One two."
    assert [c.choices[0].finish_reason for c in chunks[-2:]] == [None, "stop"]
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert all(c.usage is None for c in chunks)


def test_stream_with_usage(serve: Serve) -> None:
    running = serve(FakeAssistant("One."))
    chunks = chunks_of(
        running.client.chat.completions.create(
            model="fake", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    *others, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == 4
    assert last.usage.prompt_tokens == last.model_extra["kv"]["prompt"]
    assert last.model_extra["kv"]["reason"]
    assert all(c.usage is None and "usage" in c.model_fields_set for c in others)


@pytest.mark.parametrize("stream", [False, True])
def test_max_tokens_end_a_reply_with_length(serve: Serve, stream: bool) -> None:
    running = serve(FakeAssistant("A long reply."))
    reply = running.client.chat.completions.create(
        model="fake", messages=HELLO, max_completion_tokens=6, stream=stream
    )
    if stream:
        chunks = chunks_of(reply)
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        assert (text, chunks[-1].choices[0].finish_reason) == ("A long", "length")
    else:
        assert reply.choices[0].message.content == "A long"
        assert reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stop", ["long", ["nowhere", "long", "reply"]])
def test_stop_strings(serve: Serve, stop: Any) -> None:
    running = serve(FakeAssistant("A long reply."))
    reply = running.client.chat.completions.create(model="fake", messages=HELLO, stop=stop)
    assert reply.choices[0].message.content == "A "
    assert reply.choices[0].finish_reason == "stop"


def test_sampling_reaches_the_engine_and_defaults_fill_the_rest(serve: Serve) -> None:
    running = serve(defaults=SamplingDefaults({"temperature": 0.3, "top_k": 7, "max_tokens": 99}))
    running.client.chat.completions.create(
        model="fake",
        messages=HELLO,
        top_p=0.5,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        seed=-1,
        logit_bias={"65": -100},
        user="somebody",
        max_tokens=5,
        extra_body={"min_p": 0.05, "repetition_penalty": 1.5, "a_new_field": {"x": 1}},
    )
    [request] = running.engine.requests
    assert request.origin == "agent"
    assert request.sampling == SamplingParams(
        temperature=0.3,
        top_k=7,
        top_p=0.5,
        min_p=0.05,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        seed=2**64 - 1,
        logit_bias=((65, -100.0),),
        max_tokens=5,
    )


def test_logprobs(serve: Serve) -> None:
    running = serve(FakeAssistant("Né"))
    reply = running.client.chat.completions.create(
        model="fake", messages=HELLO, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert [one.bytes for one in content] == [[0x4E], [0xC3], [0xA9]]
    assert [one.token for one in content] == ["N", "\ufffd", "\ufffd"]
    assert all(len(one.top_logprobs) == 2 and one.logprob == -0.25 for one in content)


def test_streamed_logprobs_belong_to_the_text_they_come_with(serve: Serve) -> None:
    running = serve(FakeAssistant("Né"))
    chunks = chunks_of(
        running.client.chat.completions.create(
            model="fake", messages=HELLO, logprobs=True, stream=True
        )
    )
    told = [
        (c.choices[0].delta.content, [one.bytes for one in c.choices[0].logprobs.content])
        for c in chunks
        if c.choices[0].logprobs
    ]
    assert told == [("N", [[0x4E]]), ("é", [[0xC3], [0xA9]])]


def test_streamed_logprobs_hold_the_tokens_of_a_stop_string_too(serve: Serve) -> None:
    running = serve(FakeAssistant("Say no more"))
    wanted: Any = {"model": "fake", "messages": HELLO, "logprobs": True, "stop": "no"}
    whole = running.client.chat.completions.create(**wanted)
    chunks = chunks_of(running.client.chat.completions.create(**wanted, stream=True))
    choices = [chunk.choices[0] for chunk in chunks]
    told = [one for choice in choices if choice.logprobs for one in choice.logprobs.content]
    assert told == whole.choices[0].logprobs.content
    assert b"".join(bytes(one.bytes) for one in told) == b"Say no"
    assert "".join(c.delta.content or "" for c in choices) == "Say "


def test_text_with_unicode_line_ends_survives_a_stream(serve: Serve) -> None:
    text = "a\u2028b\u2029c\x85d\r\ne\n\nf\x00g\x0b\x1c"
    running = serve(FakeAssistant(text))
    chunks = chunks_of(
        running.client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text


def test_roles_and_content_forms(serve: Serve) -> None:
    running = serve()
    messages: list[Any] = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "half an emoji: \ud83d"},
    ]
    body = json.dumps({"messages": messages}).encode()
    assert running.post("/v1/chat/completions", body).status == 200
    assert running.prompts == [
        "<system>Be kind.<end><user>a\nb<end><assistant><end>"
        "<user>half an emoji: \ufffd<end><assistant>"
    ]


def test_an_unknown_model_is_named_with_the_known_one(serve: Serve) -> None:
    running = serve()
    with pytest.raises(openai.NotFoundError) as raised:
        running.client.chat.completions.create(model="gpt-5", messages=HELLO)
    assert raised.value.code == "model_not_found"
    assert raised.value.param == "model"
    assert "'gpt-5'" in str(raised.value) and "'fake'" in str(raised.value)
    assert running.engine.requests == []


def test_an_empty_model_means_the_loaded_one(serve: Serve) -> None:
    reply = serve().client.chat.completions.create(model="", messages=HELLO)
    assert reply.model == "fake"


def test_context_overflow_has_its_code_and_both_numbers(serve: Serve) -> None:
    running = serve(FakeAssistant(context_tokens=64))
    with pytest.raises(openai.BadRequestError) as raised:
        running.client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x" * 100}], stream=True
        )
    assert raised.value.code == "context_length_exceeded"
    assert raised.value.body["context_tokens"] == 64
    assert raised.value.body["prompt_tokens"] >= 100


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TemplateError("Line 3 of the template failed."), 400, "template_error"),
        (EngineError("The device failed."), 500, None),
        (OutOfMemory("The KV state", 2**30, 2**20), 507, "out_of_memory"),
        (RuntimeError("a bug"), 500, None),
    ],
)
def test_errors_at_submission_are_http_errors(
    serve: Serve, error: Exception, status: int, code: str | None
) -> None:
    running = serve(FakeAssistant(submit_error=error))
    with pytest.raises(openai.APIStatusError) as raised:
        running.client.chat.completions.create(model="fake", messages=HELLO, stream=True)
    assert raised.value.status_code == status
    assert raised.value.code == code
    assert raised.value.body["message"]


def test_out_of_memory_is_not_tried_again(serve: Serve) -> None:
    running = serve(FakeAssistant(error=OutOfMemory("The prompt", 2**30, 2**20)))
    with running.client.with_options(max_retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="fake", messages=HELLO)
    assert len(running.engine.requests) == 1


def test_a_job_that_fails_before_its_reply(serve: Serve) -> None:
    running = serve(FakeAssistant(error=EngineError("The device failed.", "Restart.")))
    with pytest.raises(openai.InternalServerError) as raised:
        running.client.chat.completions.create(model="fake", messages=HELLO)
    assert raised.value.body["message"] == "The device failed. Restart."


def test_a_job_that_fails_in_its_stream(serve: Serve) -> None:
    running = serve(FakeAssistant("Hello", error=EngineError("The device failed."), fail_after=3))
    text = ""
    with running.client.chat.completions.create(
        model="fake", messages=HELLO, stream=True
    ) as stream:
        with pytest.raises(openai.APIError) as raised:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                assert chunk.choices[0].finish_reason is None
    assert text == "Hel"
    assert "The device failed." in raised.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_cancelled_elsewhere_never_looks_complete(serve: Serve, stream: bool) -> None:
    running = serve(FakeAssistant("Hello"))
    running.engine.hold()

    def ask() -> Any:
        reply = running.client.chat.completions.create(model="fake", messages=HELLO, stream=stream)
        return chunks_of(reply) if stream else reply

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        running.wait_for_jobs(1)
        running.engine.jobs[0].cancel()
        with pytest.raises(openai.APIError) as raised:
            asked.result(20)
    assert "cancelled" in raised.value.message


def test_two_overlapping_requests_both_finish(serve: Serve) -> None:
    running = serve(FakeAssistant(lambda r: f"{len(r.timeline)} tokens"))
    running.engine.hold()

    def ask(content: str, stream: bool) -> str:
        messages: Any = [{"role": "user", "content": content}]
        reply = running.client.chat.completions.create(
            model="fake", messages=messages, stream=stream
        )
        if not stream:
            return str(reply.choices[0].message.content)
        return "".join(c.choices[0].delta.content or "" for c in chunks_of(reply))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, "short", True)
        running.wait_for_jobs(1)
        second = pool.submit(ask, "somewhat longer", False)
        running.wait_for_jobs(2)
        running.engine.release()
        assert first.result(20) == f"{len(running.engine.requests[0].timeline)} tokens"
        assert second.result(20) == f"{len(running.engine.requests[1].timeline)} tokens"
    assert first.result() != second.result()


def test_models(serve: Serve) -> None:
    client = serve().client
    [model] = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("fake", "model", "ds4tui")
    assert model.model_extra["context_tokens"] == 4096
    assert client.models.retrieve("fake") == model
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("an/other")
    assert raised.value.code == "model_not_found"


def test_an_api_key_is_asked_for(serve: Serve) -> None:
    running = serve(api_key="sëcret")
    with pytest.raises(openai.AuthenticationError) as raised:
        with running.client.with_options(api_key="wrong") as other:
            other.models.list()
    assert raised.value.code == "invalid_api_key"
    headers = {"Authorization": "Bearer sëcret".encode()}
    assert running.get("/v1/models", headers=headers).status == 200
    assert running.get("/v1/models").status == 401
    headers = {"Authorization": "Basic sëcret".encode()}
    assert running.get("/v1/models", headers=headers).status == 401
    assert running.get("/v1/nowhere").status == 401
    assert running.get("/health").status == 200


def test_the_async_client(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))

    async def ask() -> str:
        async with openai.AsyncOpenAI(
            base_url=running.handle.url + "/v1", api_key="none", max_retries=0
        ) as client:
            stream = await client.chat.completions.create(model="fake", messages=HELLO, stream=True)
            async with stream:
                return "".join([c.choices[0].delta.content or "" async for c in stream])

    assert asyncio.run(ask()) == "Yes."


def test_several_replies_differ_by_their_seeds_and_share_the_prompt(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    fields: dict[str, Any] = {"model": "", "messages": HELLO, "n": 3, "seed": 5}
    answer = running.client.chat.completions.create(**fields)
    assert [(c.index, c.message.content) for c in answer.choices] == [(n, "Yes.") for n in range(3)]
    assert [request.sampling.seed for request in running.engine.requests] == [5, 6, 7]
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    chunks = list(running.client.chat.completions.create(**fields, stream=True))
    texts = ["", "", ""]
    for choice in (c for chunk in chunks for c in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert texts == ["Yes."] * 3
    ends = [c.index for chunk in chunks for c in chunk.choices if c.finish_reason == "stop"]
    assert ends == [0, 1, 2]


def test_a_header_says_what_was_kept_and_why(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    raw = running.client.chat.completions.with_raw_response.create(model="", messages=HELLO)
    kv = json.loads(raw.content)["kv"]
    told = raw.headers["x-ds4tui-cache"]
    assert told.startswith(f"{kv['kind']}; kept={kv['kept']}; evaluated={kv['evaluated']}; reason=")
