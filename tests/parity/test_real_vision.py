"""The real vision model as llama.cpp runs it: greedy answers about one screenshot.

llama.cpp refuses SmolLM2 with this mmproj, whose markers its vocabulary lacks: it reads a copy in
which two tokens have their names. It puts each picture down twice, as a tile and as overview, and
so do we here. It rounds activations to 8 bits, so near-ties may change places.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.session import Session
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.vision.layout import ImageBlock
from ds4tui.engine.vision.preprocess import Prepared, prepared
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.engine.vision.recognition import Picture
from ds4tui.kernels import choice
from tests.engine.vision.asking import answered, timeline_of
from tests.engine.vision.test_screen_reader import SYSTEM
from tests.parity.images import GoldenImage
from tests.parity.llamacpp import Choice, LlamaCpp
from tests.parity.ours import load
from tests.screens import QUESTIONS, WEIGHTS, screen
from tools.screen_reader.llamacpp import rename
from tools.screen_reader.prompts import BLANK_LINE, FAKE, GLOBAL

pytestmark = pytest.mark.real_model

QUESTION = next(q for q in QUESTIONS if q["png"] == "sample_09.png")
NEAR_TIE = 0.5  # nats
BEFORE = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
AFTER = f"{QUESTION['question']}<|im_end|>\n<|im_start|>assistant\n"


class Shown(GoldenImage):
    """Whatever its fingerprint."""

    def block(self, span: object) -> ImageBlock:
        return self.of


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaCpp]:
    folder = tmp_path_factory.mktemp("llamacpp")
    rename(smollm2_path, folder / "text.gguf")
    with LlamaCpp(folder / "text.gguf", folder / "log", WEIGHTS) as started:
        yield started
    (folder / "text.gguf").unlink()


def asked(server: LlamaCpp, sample: dict[str, str]) -> list[Choice]:
    image = np.asarray(Image.open(screen(sample["png"])).convert("RGB"))
    after = f"{sample['question']}<|im_end|>\n<|im_start|>assistant\n"
    prompt = server.about_image(BEFORE, image, after)
    return server._complete(prompt, 40, 2, cache_prompt=False)


@pytest.fixture(scope="module")
def choices(server: LlamaCpp) -> list[Choice]:
    return asked(server, QUESTION)


def check(text_model: Path, picture: Image.Image, choices: list[Choice]) -> None:
    """At every step of llama.cpp's answer our best token is its token, or both see a near-tie."""
    with GGUFFile.open(text_model) as file:
        tokenizer = Tokenizer.from_gguf(file)
    with GGUFFile.open(WEIGHTS) as file:
        encoder = Encoder(file, choice.current().path(False))
    one = prepared(picture, encoder.config)
    vectors = encoder(Prepared(np.concatenate([one.pixels, one.pixels]), one.shape))
    session = Session(load(text_model), images=Shown(_block(tokenizer), vectors))
    opening, closing = (tokenizer.encode(text, special=True) for text in (BEFORE, AFTER))
    shown = Picture(b"f" * 16, one.shape, _block(tokenizer), lambda: one)
    logits = answered(session, timeline_of(opening, shown, closing))
    for step, theirs in enumerate(choices):
        ours = int(logits.argmax())
        gap = float(logits[ours] - logits[theirs.token_id])
        near = max(gap, theirs.gap) <= NEAR_TIE
        assert ours == theirs.token_id or near, f"step {step}: we take {ours}, {gap:.2g} ahead"
        logits = session.append(theirs.token_id)


def _block(tokenizer: Tokenizer) -> ImageBlock:
    tile = [FAKE, *tokenizer.encode("<row_1_col_1>")]
    ids = [*tile, *[-1] * 256, BLANK_LINE, FAKE, GLOBAL, *[-1] * 256, FAKE]
    return ImageBlock(tuple(ids), np.array(ids) < 0, len(ids))


def test_the_answer_is_llama_cpps(smollm2_path: Path, choices: list[Choice]) -> None:
    assert len(choices) >= 10
    check(smollm2_path, Image.open(screen(QUESTION["png"])).convert("RGB"), choices)


def test_another_picture_is_seen(smollm2_path: Path, choices: list[Choice]) -> None:
    other = Image.open(screen("sample_11.png")).convert("RGB")
    with pytest.raises(AssertionError, match="we take"):
        check(smollm2_path, other, choices)


@pytest.mark.parametrize("sample", QUESTIONS, ids=lambda q: f"{q['png']}-{q['expected'][:8]}")
def test_llama_cpp_says_the_same(
    server: LlamaCpp, smollm2_path: Path, sample: dict[str, str]
) -> None:
    """What test_screen_reader.py holds our answers to, in the picture's short form."""
    with GGUFFile.open(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file)
    ids = [choice.token_id for choice in asked(server, sample)]
    assert tokenizer.decode(ids) == sample["expected"]
