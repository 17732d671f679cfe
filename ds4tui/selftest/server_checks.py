"""The tiny model behind the engine thread, the chat template and the HTTP server."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ds4tui.selftest.checks import Check, expect
from ds4tui.selftest.engine_checks import TinyModel

if TYPE_CHECKING:
    from ds4tui.assistant import Assistant

HOST = "127.0.0.1"
ANSWER_S = 30.0
MAX_TOKENS = 8
QUESTION = {
    "messages": [{"role": "user", "content": "the thing"}],
    "max_tokens": MAX_TOKENS,
    "temperature": 0,
}


def server_checks(tiny: TinyModel) -> Iterator[Check]:
    yield Check("the server answers on a free port", lambda: _answers(tiny))


def _answers(tiny: TinyModel) -> str:
    from ds4tui.server.runner import ServerHandle

    with _assistant(tiny) as assistant:
        server = ServerHandle.start(assistant, HOST, 0)
        try:
            words = _ask(server.port)
        finally:
            stopped = server.stop()
    expect(stopped, "the server did not stop")
    return words


def _ask(port: int) -> str:
    health = json.loads(_request(port, "GET", "/health"))
    expect(isinstance(health, dict), f"/health said {health!r}")
    first, second = (_completion(port) for _ in range(2))
    texts = [answer["choices"][0]["message"]["content"] for answer in (first, second)]
    expect(texts[0] == texts[1], f"the same question got {texts}")
    prompt = first["usage"]["prompt_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    expect(cached == prompt - 1, f"only {cached} of {prompt} tokens were reused")
    stream = _request(port, "POST", "/v1/chat/completions", QUESTION | {"stream": True})
    chunks = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    expect(chunks[-1:] == ["[DONE]"], "the stream did not end")
    return f"{prompt} prompt tokens, {cached} reused the second time, {len(chunks)} events streamed"


def _completion(port: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_request(port, "POST", "/v1/chat/completions", QUESTION))
    return answer


def _request(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> str:
    """The text of a 200. Proxies of the environment have no say in it."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    expect(answer.status == http.client.OK, f"{path} said {answer.status}: {text[:200]}")
    return text


@contextmanager
def _assistant(tiny: TinyModel) -> "Iterator[Assistant]":
    """As opening.py makes one, without its cache of vocabularies: nothing is left behind."""
    from ds4tui.assistant import Assistant, ModelInfo
    from ds4tui.chat.rendering import ChatFormat
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.loaded import LoadedModel
    from ds4tui.engine.models.registry import load_model
    from ds4tui.engine.paging import LEFT_OPEN
    from ds4tui.engine.tokenizer import Tokenizer
    from ds4tui.engine.worker import Engine

    with GGUFFile.open(tiny.path) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        engine = Engine(lambda: LoadedModel("tiny", load_model(gguf, LEFT_OPEN), tokenizer))
        try:
            engine.start()
            engine.wait_ready(ANSWER_S)
            info = ModelInfo(
                name="tiny",
                path=str(tiny.path),
                architecture=gguf.architecture,
                quantisation=gguf.quantisation_label,
                parameters=gguf.parameters,
                file_bytes=gguf.file_bytes,
                context_tokens=engine.stats.context_tokens,
            )
            yield Assistant(info, engine, ChatFormat.from_gguf(gguf, tokenizer))
        finally:
            engine.close()
