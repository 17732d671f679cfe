"""The language model's tokenizer, its prompt around a picture, and a sample as token rows.

    python -m tools.screen_reader.prompts TEXT_GGUF

writes the tokenizer where load_tokenizer() finds it.
"""

import json
import random
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tools.screen_reader.files import TOKENIZER
from tools.screen_reader.screens import choose

# <file_sep>, <filename> and a blank line stand for <fake_token_around_image>, <global-img> and
# the break that llama.cpp's idefics3 prompt has; SmolLM2 knows the first two by other names.
FAKE, GLOBAL, BLANK_LINE = 5, 6, 1116
END_OF_TURN, END_OF_TEXT = 2, 0
CONTROL = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
ROW = 128  # tokens of questions and answers in one training sample
IGNORE = -100  # torch's ignore_index


def write_tokenizer(text_gguf: Path, path: Path = TOKENIZER) -> None:
    from gguf import GGUFReader

    fields = GGUFReader(text_gguf).fields
    names = {"tokens": "tokens", "types": "token_type", "merges": "merges"}
    kept = {k: fields[f"tokenizer.ggml.{name}"].contents() for k, name in names.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept))


def load_tokenizer(path: Path = TOKENIZER) -> Tokenizer:
    """From the tokens, types and merges that write_tokenizer() took out of the GGUF."""
    d = json.loads(path.read_text())
    merges = [tuple(m.split(" ", 1)) for m in d["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocab={s: i for i, s in enumerate(d["tokens"])}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [d["tokens"][i] for i, kind in enumerate(d["types"]) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def around_images(tokenizer: Tokenizer, form: str) -> list[list[int]]:
    """Token ids before the first image block, between blocks, and after the last.

    form: "dup" is what llama.cpp makes (a tile, then the overview, the same picture twice),
    "single" the overview alone.
    """
    head = encode(tokenizer, f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n")
    if form == "single":
        return [[*head, BLANK_LINE, FAKE, GLOBAL], [FAKE]]
    tile = [*head, FAKE, *encode(tokenizer, "<row_1_col_1>")]
    return [tile, [BLANK_LINE, FAKE, GLOBAL], [FAKE]]


def turn(tokenizer: Tokenizer, question: str, *, first: bool) -> list[int]:
    """The ids from the end of the picture, or of the last answer, to where the answer begins."""
    opening = "" if first else "\n<|im_start|>user\n"
    return encode(tokenizer, f"{opening}{question}<|im_end|>\n<|im_start|>assistant\n")


def answer_ids(tokenizer: Tokenizer, answer: str) -> list[int]:
    return encode(tokenizer, answer + "<|im_end|>")


def sample_row(
    r: random.Random, tokenizer: Tokenizer, questions: list[tuple[str, str, float]], turns: int
) -> NDArray[np.int32] | None:
    """int32 [2, ROW]: token ids, and those to be learnt (else IGNORE); None if nothing fits."""
    ids: list[int] = []
    learnt: list[int] = []
    for question, answer in choose(r, questions, turns):
        asked = turn(tokenizer, question, first=not ids)
        said = answer_ids(tokenizer, answer)
        if len(ids) + len(asked) + len(said) > ROW:
            break
        ids += asked + said
        learnt += [IGNORE] * len(asked) + said
    if not ids:
        return None
    row = np.full((2, ROW), IGNORE, np.int32)
    row[0] = END_OF_TURN
    row[0, : len(ids)] = ids
    row[1, : len(learnt)] = learnt
    return row


if __name__ == "__main__":
    write_tokenizer(Path(sys.argv[1]))
