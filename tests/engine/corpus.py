"""A large and varied corpus that is there wherever Python is: its own library's sources, every
character that Unicode assigns, one scene after the other, and a book's beginning."""

import sysconfig
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from tests.engine.texts import FIXED, random_texts

_PROSE = Path(__file__).parent.parent / "data" / "alice.txt"
_SLICE = 20_000


def corpus(source_bytes: int, random_count: int, seed: int) -> Iterator[str]:
    """No NUL and no surrogates, as llama.cpp takes C strings of UTF-8."""
    yield from FIXED
    yield _PROSE.read_text(encoding="utf-8")
    yield from _every_character()
    yield from _sources(source_bytes)
    yield from random_texts(random_count, seed)


def _every_character() -> Iterator[str]:
    """256 at a time, bare, with blanks between and doubled; letters in words with neighbours."""
    assigned = [
        chr(code)
        for code in range(1, 0x110000)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co")
    ]
    for begin in range(0, len(assigned), 256):
        block = assigned[begin : begin + 256]
        yield "".join(block)
        if begin < 2**14:
            yield " ".join(block)
            yield "".join(f"{c}{c}a{c}1 " for c in block)


def _sources(count: int) -> Iterator[str]:
    """About `count` bytes of source files: an even choice of the whole library's."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = sorted(p for p in library.rglob("*.py") if "site-packages" not in p.parts)
    for path in paths[:: max(1, len(paths) * _SLICE // max(1, count))]:
        text = path.read_text(encoding="utf-8", errors="replace")[:_SLICE]
        yield text.replace("\0", "")
