"""Where setup.sh puts what training needs and git does not keep: fonts, words, tokenizer."""

import os
from pathlib import Path

DATA = Path(os.environ.get("SCREEN_READER_DATA", "build/screen_reader"))
FONTS = DATA / "fonts"
WORDS = DATA / "words.txt"
TOKENIZER = DATA / "tokenizer.json"
