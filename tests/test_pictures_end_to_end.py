"""The real vision model through the real program: asked, asked on, swapped."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Image, Message
from ds4tui.config import Settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import RequestError
from ds4tui.events import Decision, Finished
from ds4tui.library.screens import SAMPLE_QUESTION
from ds4tui.opening import open_assistant
from tests.fakes import EventLog
from tests.screens import WEIGHTS, screen

pytestmark = pytest.mark.real_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
COLOUR, BUTTON = "Which colour is the background?", "Which button is highlighted?"


@pytest.fixture
def settings(smollm2_path: Path, own_folders: Path) -> Settings:
    return replace(Settings(), data_dir=own_folders, mmproj=str(WEIGHTS), kv_disk="off")


@pytest.fixture
def seeing(smollm2_path: Path, settings: Settings) -> Iterator[Assistant]:
    assistant = open_assistant(str(smollm2_path), settings, lambda words: None)
    yield assistant
    assistant.close()


def asked(name: str, question: str) -> Message:
    return Message("user", question, images=(Image(screen(name).read_bytes(), 0, name),))


def reply(assistant: Assistant, *messages: Message) -> tuple[str, Decision, Finished]:
    log = EventLog()
    assistant.chat(messages, GREEDY, log)
    end = log.wait_end(120)
    assert isinstance(end, Finished)
    [decision] = log.of_type(Decision)
    return log.text.strip(), decision, end


def test_a_conversation_about_a_picture_is_kept_and_another_picture_is_another_answer(
    seeing: Assistant,
) -> None:
    pink = asked("sample_01.png", COLOUR)
    first, _, first_end = reply(seeing, pink)
    assert first == "Pink" and seeing.stats.images_encoded == 1

    more = (pink, Message("assistant", first), Message("user", "Are you sure?"))
    _, decision, _ = reply(seeing, *more)
    was = first_end.usage.prompt_tokens + first_end.usage.completion_tokens - 1
    assert (decision.kind, decision.images, decision.kept) == ("extend", "match", was)
    assert seeing.stats.images_encoded == 1

    # Swapped under the warm cache, same question: nothing of the old picture is left.
    told = asked("sample_03.png", COLOUR)
    swapped, decision, _ = reply(seeing, told)
    assert swapped != "Pink" and decision.images == "changed"
    assert seeing.stats.images_encoded == 2
    again, decision, _ = reply(seeing, pink)
    assert again == "Pink" and decision.evaluated <= 2 and seeing.stats.images_encoded == 2


def test_two_pictures_are_told_apart_in_one_conversation(seeing: Assistant) -> None:
    one = asked("sample_01.png", COLOUR)
    first, *_ = reply(seeing, one)
    second, decision, _ = reply(
        seeing, one, Message("assistant", first), asked("sample_03.png", BUTTON)
    )
    assert (first, second) == ("Pink", "Next") and decision.kind == "extend"


def test_the_command_line_asks_about_pictures(smollm2_path: Path) -> None:
    model = ["-m", str(smollm2_path), "--mmproj", str(WEIGHTS)]
    settings = ["--no-kv-disk", "--temperature", "0"]
    question = ["-p", COLOUR, "-i", str(screen("sample_01.png")), "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "ds4tui", *model, *settings, *question],
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert "".join(e["text"] for e in events if e["type"] == "TokenText").strip() == "Pink"
    encoded = [(e["done"], e["total"]) for e in events if e["type"] == "EncodingProgress"]
    assert encoded == [(1, 1)]


def test_the_sample_is_read_by_what_comes_with_the_package(smollm2_path: Path) -> None:
    """No mmproj is named and none lies beside the model, which is named by its path."""
    asked = ["-m", str(smollm2_path), "-p", SAMPLE_QUESTION, "-i", "sample"]
    settings = ["--no-kv-disk", "--temperature", "0"]
    ran = subprocess.run(
        [sys.executable, "-m", "ds4tui", *asked, *settings], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "Save, Discard\n"), ran.stderr


def test_without_its_encoder_the_model_refuses(smollm2_path: Path, settings: Settings) -> None:
    blind = replace(settings, mmproj="none")
    assistant = open_assistant(str(smollm2_path), blind, lambda words: None)
    try:
        with pytest.raises(RequestError, match="sees no pictures"):
            assistant.chat([asked("sample_01.png", COLOUR)], GREEDY, EventLog())
    finally:
        assistant.close()
