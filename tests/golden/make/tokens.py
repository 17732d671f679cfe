"""The tiny vocabulary: id i is byte i, then one merged pair, then special tokens."""

VOCAB = 288
BOS, EOS = 257, 258
SPECIALS = [
    "<|bos|>",
    "<|eos|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<start_of_image>",
    "<end_of_image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<row_1_col_1>",
    "\n\n",
    "<image>",
    "<video>",
]
ID = {text: BOS + i for i, text in enumerate(SPECIALS)}
MERGED = "th"  # llama.cpp refuses a tokenizer without merges; one is enough


def letters(text: str) -> list[int]:
    """Ids of `text`, which must not contain the merged pair."""
    if MERGED in text:
        raise ValueError(f"{text!r} contains {MERGED!r}")
    return list(text.encode())


def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    return table | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def vocabulary() -> list[str]:
    """All VOCAB token texts, in GPT-2's spelling."""
    table = byte_characters()
    texts = [table[byte] for byte in range(256)] + [MERGED]
    texts += [text.replace("\n", table[10]) for text in SPECIALS]
    return texts + [f"<|s{i}|>" for i in range(len(texts), VOCAB)]
