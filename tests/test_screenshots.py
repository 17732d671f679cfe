"""Questions about screenshots through the whole program: SmolLM2 with the screen reader."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Image, Message
from ds4tui.config import Settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.errors import RequestError
from ds4tui.events import Decision, EncodingProgress, Finished, TokenText
from ds4tui.opening import open_assistant
from tests.fakes import EventLog
from tests.screens import QUESTIONS, WEIGHTS, screen

pytestmark = pytest.mark.real_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
BACKGROUND = "Which colour is the background?"


@pytest.fixture
def folder(smollm2_path: Path, tmp_path: Path) -> Path:
    """Of data, with the model as `ds4tui pull` leaves it: its eyes come with the package."""
    models = tmp_path / "data" / "models"
    models.mkdir(parents=True)
    (models / smollm2_path.name).symlink_to(smollm2_path)
    return tmp_path / "data"


@pytest.fixture
def assistant(folder: Path) -> Iterator[Assistant]:
    opened = opened_in(folder)
    yield opened
    opened.close()


def opened_in(folder: Path, **changed: str) -> Assistant:
    settings = replace(Settings(), data_dir=folder, **changed)
    return open_assistant("smollm2", settings, lambda words: None)


def shot(name: str, at: int = 0) -> Image:
    return Image(screen(name).read_bytes(), at, name)


def about(name: str, question: str) -> Message:
    return Message("user", question, images=(shot(name),))


@dataclass(frozen=True)
class Answer:
    text: str
    decision: Decision
    finished: Finished
    encoded: int


def ask(assistant: Assistant, *messages: Message) -> Answer:
    log = EventLog()
    assert assistant.chat(messages, GREEDY, log).wait(300)
    events = list(log.events)
    (finished,) = [event for event in events if isinstance(event, Finished)]
    (decision,) = [event for event in events if isinstance(event, Decision)]
    text = "".join(event.text for event in events if isinstance(event, TokenText))
    encoded = sum(isinstance(event, EncodingProgress) for event in events)
    return Answer(text, decision, finished, encoded)


def test_screenshots_are_read(assistant: Assistant) -> None:
    assert assistant.info.vision == WEIGHTS.name == assistant.stats.encoder
    for sample in QUESTIONS:
        answer = ask(assistant, about(sample["png"], sample["question"]))
        assert answer.text == sample["expected"]
    assert assistant.stats.images_encoded == len({sample["png"] for sample in QUESTIONS})


def test_a_picture_that_is_swapped_under_a_warm_cache_changes_the_answer(
    assistant: Assistant,
) -> None:
    first = ask(assistant, about("sample_01.png", BACKGROUND))
    second = ask(assistant, about("sample_03.png", BACKGROUND))
    assert first.text == "Pink" != second.text
    rows = assistant.vision.tokens_of((1, 1)) if assistant.vision else 0
    assert second.decision.images == "changed" and second.decision.cause == "image replaced"
    assert second.decision.common == second.decision.kept  # all that stands before the picture
    assert second.decision.evaluated > rows
    back = ask(assistant, about("sample_01.png", BACKGROUND))
    assert back.text == "Pink" and back.encoded == 0 and back.decision.evaluated == 1


def test_the_next_turn_evaluates_no_row_of_the_picture(assistant: Assistant) -> None:
    question = about("sample.png", "Which buttons are there?")
    first = ask(assistant, question)
    reply = Message("assistant", first.text)
    second = ask(assistant, question, reply, Message("user", "What is the title of the window?"))
    assert second.encoded == 0 and second.decision.images == "match"
    assert second.decision.kept >= first.decision.prompt
    assert second.decision.evaluated < 30


def test_after_a_restart_nothing_is_encoded(folder: Path) -> None:
    question = about("sample_11.png", "What does the error say?")
    before = opened_in(folder)
    first = ask(before, question)
    before.close()
    after = opened_in(folder)
    try:
        reply, more = Message("assistant", first.text), Message("user", "What is the background?")
        second = ask(after, question, reply, more)
        assert "disk" in second.decision.source and second.encoded == 0
        assert second.decision.kept >= first.decision.prompt
    finally:
        after.close()


def test_without_eyes_a_picture_is_refused_and_the_session_goes_on(folder: Path) -> None:
    blind = opened_in(folder, mmproj="none")
    try:
        with pytest.raises(RequestError, match="sees no pictures"):
            ask(blind, about("sample.png", "Which buttons are there?"))
        assert ask(blind, Message("user", "What is the capital of France?")).text
    finally:
        blind.close()
