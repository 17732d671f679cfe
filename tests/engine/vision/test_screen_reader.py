"""The real vision model answers about screenshots through our text engine.

tools/screen_reader/README.md says what it can read. `expected` is what it answers: of these samples
it misreads one, whose `truth` is beside that. llama.cpp gives the same answers
(tests/parity/test_real_vision.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import Model
from ds4tui.engine.session import Session
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.engine.vision.recognition import Picture, Recogniser
from ds4tui.kernels import choice
from tests.engine.vision.asking import greedy, timeline_of
from tests.parity.ours import load
from tests.screens import QUESTIONS, WEIGHTS, screen

pytestmark = pytest.mark.real_model

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
END_OF_TURN, END_OF_TEXT = 2, 0


@dataclass
class Reader:
    model: Model
    tokenizer: Tokenizer
    images: HeldImages
    recognise: Recogniser
    session: Session

    def picture(self, name: str) -> Picture:
        picture = self.recognise(screen(name).read_bytes(), name)
        self.images.give(picture)
        return picture

    def ask(self, picture: Picture, question: str) -> str:
        before = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
        after = f"{question}<|im_end|>\n<|im_start|>assistant\n"
        opening, closing = (self.tokenizer.encode(t, special=True) for t in (before, after))
        wanted = timeline_of(opening, picture, closing)
        return self.tokenizer.decode(greedy(self.session, wanted, (END_OF_TURN, END_OF_TEXT)))


@pytest.fixture(scope="module")
def reader(smollm2_path: Path) -> Iterator[Reader]:
    model = load(smollm2_path)
    with GGUFFile.open(smollm2_path) as text:
        tokenizer = Tokenizer.from_gguf(text)
    with GGUFFile.open(WEIGHTS) as file:
        images = HeldImages(Encoder(file, choice.current().path(False)))
        recognise = Recogniser(file, lambda text: tokenizer.encode(text, special=True))
        yield Reader(model, tokenizer, images, recognise, Session(model, images=images))


def test_the_file_names_the_tokens_around_a_picture(reader: Reader) -> None:
    """SmolLM2 has no markers of idefics3: a blank line, <file_sep> and <filename> stand before it,
    <file_sep> behind."""
    block = reader.picture("sample.png").block
    assert block.token_ids[:3] == (1116, 5, 6) and block.token_ids[-1:] == (5,)
    assert block.rows == 260 and int(block.is_vector.sum()) == 256
    assert reader.tokenizer.decode([1116, 5, 6], skip_special=False) == "\n\n<file_sep><filename>"


@pytest.mark.parametrize(
    "sample", QUESTIONS, ids=[f"{q['png']}-{q['expected'][:8]}" for q in QUESTIONS]
)
def test_screenshots_are_read(reader: Reader, sample: dict[str, str]) -> None:
    assert reader.ask(reader.picture(sample["png"]), sample["question"]) == sample["expected"]


def test_another_picture_gets_another_answer_from_a_warm_session(reader: Reader) -> None:
    question = "Which colour is the background?"
    one, other = reader.picture("sample_01.png"), reader.picture("sample_03.png")
    first = reader.ask(one, question)
    assert first == "Pink"
    assert reader.ask(other, question) != first
    encoded = reader.images.encoded
    assert reader.ask(one, question) == first
    assert reader.images.encoded == encoded  # its vectors were held


def test_a_second_question_evaluates_no_row_of_the_picture(reader: Reader) -> None:
    picture = reader.picture("sample_11.png")
    assert reader.ask(picture, "What does the error say?") == "OSError: division by zero"
    span = reader.session.timeline.spans[0]
    asked = reader.tokenizer.encode("What kind of screen is this?")
    again = reader.session.timeline.prefix(span.end).extended(asked)
    assert reader.session.plan(again).kept >= span.end  # "What" is common, too
