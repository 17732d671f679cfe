"""Completions without a template, tokens and their texts, and the metrics."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest

from ds4tui.cache.kvtally import DiskStats
from ds4tui.engine.stats import EngineStats
from ds4tui.server.metrics import lines
from tests.fakes import FakeAssistant
from tests.server.conftest import Running

Serve = Callable[..., Running]


def complete(running: Running, **fields: Any) -> Any:
    fields = {"model": "fake", "prompt": "Once", "max_tokens": 40, **fields}
    return running.client.completions.create(**fields)


def test_a_completion_is_of_the_text_as_it_stands(serve: Serve) -> None:
    running = serve(FakeAssistant(" upon a time."))
    reply = complete(running)
    [choice] = reply.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == (" upon a time.", "stop", None)
    assert running.prompts == ["Once"]
    assert reply.usage.prompt_tokens == 4
    assert complete(running, max_tokens=None).choices[0].finish_reason in ("stop", "length")
    short = complete(running, max_tokens=3).choices[0]
    assert (short.text, short.finish_reason) == (" up", "length")


def test_a_prompt_of_ids(serve: Serve) -> None:
    running = serve(FakeAssistant("!"))
    ids = json.loads(running.post("/tokenize", b'{"content": "Hi"}').body)["tokens"]
    for prompt in (ids, [ids], ["Hi"]):
        complete(running, prompt=prompt)
    assert [r.timeline.ids.tolist() for r in running.engine.requests] == [ids] * 3


def test_a_streamed_completion(serve: Serve) -> None:
    running = serve(FakeAssistant(" upon a time."))
    options = {"stream": True, "stream_options": {"include_usage": True}, "n": 2, "logprobs": 0}
    chunks = list(complete(running, **options))
    texts = ["", ""]
    told: list[list[str]] = [[], []]
    for choice in (c for chunk in chunks for c in chunk.choices):
        texts[choice.index] += choice.text
        if choice.logprobs is not None:
            told[choice.index] += choice.logprobs.tokens
    assert texts == [" upon a time."] * 2
    assert ["".join(tokens) for tokens in told] == texts
    assert chunks[-1].usage.completion_tokens == 2 * len(" upon a time.")


def test_offsets_of_tokens(serve: Serve) -> None:
    running = serve(FakeAssistant("abc"))
    logprobs = complete(running, logprobs=2).choices[0].logprobs
    assert (logprobs.tokens, logprobs.text_offset) == (["a", "b", "c"], [0, 1, 2])
    assert len(logprobs.top_logprobs) == 3


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 99}, "n"),
    ],
)
def test_what_cannot_be_had(serve: Serve, wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        complete(serve(), **wrong)
    assert raised.value.param == param


def test_text_to_tokens_and_back(serve: Serve) -> None:
    running = serve()
    told = running.post("/tokenize", '{"content": "é!", "with_pieces": true}'.encode()).json
    assert [one["piece"] for one in told["tokens"]][-1] == "!"
    ids = [one["id"] for one in told["tokens"]]
    back = running.post("/detokenize", json.dumps({"tokens": ids}).encode()).json
    assert back == {"content": "é!"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"content": 5}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["x"]}),
        ("/detokenize", {"tokens": [True]}),
    ],
)
def test_wrong_texts_and_tokens(serve: Serve, path: str, body: Any) -> None:
    answer = serve().post(path, json.dumps(body).encode())
    assert answer.status == 400 and answer.json["error"]["param"] in ("content", "tokens")


def test_metrics_are_what_the_stats_say(serve: Serve) -> None:
    running = serve(FakeAssistant("Yes."))
    complete(running)
    answer = running.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    told = dict(
        line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if line[:1] != "#"
    )
    stats = running.assistant.stats
    assert float(told["ds4tui_context_tokens"]) == stats.context_tokens
    assert told[f'ds4tui_engine_state{{state="{stats.state}"}}'] == "1"


def test_labels_are_escaped_and_every_metric_has_its_type() -> None:
    disk = replace(DiskStats(), evictions=(('a "quoted"\nword\\', 3),), used_bytes=7)
    text = "".join(lines(replace(EngineStats(), disk=disk)))
    assert 'ds4tui_disk_evictions_total{reason="a \\"quoted\\"\\nword\\\\"} 3\n' in text
    assert "ds4tui_disk_used_bytes 7\n" in text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[:1] != "#"}
    typed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names == typed


def test_an_empty_prompt_needs_a_token_to_begin_with(serve: Serve) -> None:
    running = serve()
    refused = running.post("/v1/completions", b'{"prompt": ""}')
    assert refused.status == 400 and refused.json["error"]["param"] == "prompt"
    running.assistant.format.tokenizer.add_bos = True
    assert running.post("/v1/completions", b'{"prompt": ""}').status == 200
