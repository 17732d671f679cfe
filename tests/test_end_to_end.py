"""The real model through the real program: pull, -p, serve, an Assistant of its own."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from ds4tui.chat.messages import Message
from ds4tui.config import Settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import ContextOverflow
from ds4tui.events import Decision, Failed, Finished, TokenText
from ds4tui.opening import open_assistant
from tests.fakes import EventLog

pytestmark = pytest.mark.real_model

CAPITAL = "What is the capital of France?"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)


@pytest.fixture(autouse=True)
def data_dir(smollm2_path: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, with the user's models."""
    folder = own_folders / "data"
    folder.mkdir()
    (folder / "models").symlink_to(smollm2_path.parent)
    monkeypatch.setenv("DS4TUI_DATA_DIR", str(folder))
    # The session's checks of every step belong to its own tests; here the product runs as it is.
    monkeypatch.delenv("DS4TUI_DEBUG")
    return folder


def ds4tui(*arguments: str, piped: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ds4tui", *arguments], input=piped, capture_output=True, text=True
    )


def test_a_model_that_is_there_is_pulled_at_once_and_offline(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    ran = ds4tui("pull", "smollm2")
    assert ran.returncode == 0 and smollm2_path.name in ran.stdout


def test_a_question_is_answered() -> None:
    ran = ds4tui("-p", CAPITAL, "--temperature", "0", "--max-tokens", "24")
    assert ran.returncode == 0, ran.stderr
    assert "Paris" in ran.stdout
    assert ran.stderr == "" and "\x1b" not in ran.stdout


def test_piped_text_is_part_of_the_question_and_json_tells_all() -> None:
    ran = ds4tui("-p", "", "--json", "--temperature", "0", "--max-tokens", "24", piped=CAPITAL)
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert "Paris" in "".join(e["text"] for e in events if e["type"] == "TokenText")
    decision = next(e for e in events if e["type"] == "Decision")
    usage = events[-1]["usage"]
    assert decision["kind"] == "cold"
    assert usage["evaluated_tokens"] == usage["prompt_tokens"] == decision["evaluated"]
    assert usage["completion_tokens"] >= len(events[-1]["token_ids"]) > 0


def test_a_context_that_is_too_small_is_told() -> None:
    ran = ds4tui("-p", "word " * 600, "--context-tokens", "512")
    assert ran.returncode == 2 and ran.stdout == ""
    assert "the context holds 512" in ran.stderr


@contextmanager
def serving(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A running `ds4tui serve` and its base URL."""
    command = [sys.executable, "-m", "ds4tui", "serve", "-m", "smollm2", "--port", "0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"is served on (http://\S+)", line):
                    yield process, found[1]
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            process.kill()
            process.stderr.read()


def test_serve_answers_the_openai_client_and_reuses_what_is_resident() -> None:
    with serving("--no-kv-disk", "--sessions", "1", "--api-key", "k") as (process, url):
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["smollm2"]
            messages = [{"role": "user", "content": CAPITAL}]
            first = client.chat.completions.create(
                model="smollm2", messages=messages, temperature=0, max_tokens=24
            )
            answer = first.choices[0].message.content
            assert "Paris" in answer
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": "And of Italy?"},
            ]
            second = client.chat.completions.create(
                model="smollm2", messages=messages, temperature=0, max_tokens=24
            )
            usage = second.usage
            cached = usage.prompt_tokens_details.cached_tokens
            resident = first.usage.prompt_tokens + first.usage.completion_tokens
            # All but the last sampled token or two is in the state: what follows is new.
            assert resident - 2 <= cached < usage.prompt_tokens
        with openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError):
                stranger.models.list()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_ctrl_c_ends_serve_with_130() -> None:
    with serving() as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_a_busy_port_is_a_usage_error() -> None:
    with serving() as (_, url):
        port = url.removesuffix("/v1").rpartition(":")[2]
        ran = ds4tui("serve", "--port", port)
        assert ran.returncode == 2 and f"Port {port} on 127.0.0.1 is busy" in ran.stderr


def test_a_second_turn_evaluates_only_what_is_new(data_dir: Path) -> None:
    settings = replace(Settings(), data_dir=data_dir)
    said: list[str] = []
    assistant = open_assistant("smollm2", settings, said.append)
    try:
        assert [words.split()[0] for words in said[:3]] == ["reading", "reading", "loading"]
        info = assistant.info
        assert (info.name, info.architecture, info.quantisation) == ("smollm2", "llama", "Q4_1")
        assert info.context_tokens == 8192 == assistant.stats.context_tokens
        messages = [Message("user", CAPITAL)]
        first = EventLog()
        assistant.chat(messages, GREEDY, first)
        ended = first.wait_end()
        assert isinstance(ended, Finished)
        messages += [Message("assistant", first.text), Message("user", "And of Italy?")]
        second = EventLog()
        assistant.chat(messages, GREEDY, second)
        assert isinstance(second.wait_end(), Finished)
        decision: Decision = second.of_type(Decision)[0]
        assert decision.kind == "extend" and decision.dropped == 0
        assert decision.live == decision.kept
        new = len(assistant.render(messages)) - decision.live
        assert decision.evaluated == new < 40
        with pytest.raises(ContextOverflow):
            assistant.chat([Message("user", "word " * 9000)], GREEDY, EventLog())
    finally:
        assistant.close()
    assert assistant.stats.state == "closed"


def test_the_same_seed_gives_the_same_answer(data_dir: Path) -> None:
    assistant = open_assistant("smollm2", replace(Settings(), data_dir=data_dir), print)
    try:
        answers = []
        for seed in (1, 1, 2):
            log = EventLog()
            sampling = SamplingParams(temperature=1.5, seed=seed, max_tokens=12)
            assistant.chat([Message("user", "Tell me a story.")], sampling, log)
            assert not isinstance(log.wait_end(), Failed)
            answers.append("".join(e.text for e in log.of_type(TokenText)))
        assert answers[0] == answers[1] != answers[2]
    finally:
        assistant.close()


def test_a_first_question_is_answered_well_whatever_the_seed(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is set: the model is sampled as this file should be."""
    settings = replace(Settings(), data_dir=data_dir)
    with caplog.at_level("INFO", "ds4tui.opening"):
        assistant = open_assistant("smollm2", settings, print)
    assert "sampling temperature 0.2, top_p 0.5 (chosen for this 4-bit file" in caplog.text
    defaults = settings.sampling(assistant.info.sampling)
    try:
        for seed in range(6):
            log = EventLog()
            sampling = defaults.params(seed=seed, max_tokens=16)
            assistant.chat([Message("user", CAPITAL)], sampling, log)
            assert isinstance(log.wait_end(), Finished)
            assert "Paris" in log.text, (seed, log.text)
    finally:
        assistant.close()
