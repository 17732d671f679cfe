"""The screen reader that comes with the package: an image encoder for the catalogue's smollm2, and
a screenshot to try it on. tools/screen_reader tells how it was trained and what it can read.

Its vectors mean something to the weights that it was trained with, and its marker ids to their
vocabulary. A fine-tune has the same width, and often the same words, so no header says whether it
still reads them: by itself it is found for that very file only, told by its checksum.
"""

from pathlib import Path

import xxhash

from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.verified import is_marked

FOLDER = Path(__file__).parent.parent / "assets" / "screens"
MMPROJ = FOLDER / "mmproj-smollm2-135m-screens-Q8_0.gguf"
MADE_FOR = CATALOGUE["smollm2"]

SAMPLE = FOLDER / "sample.png"
SAMPLE_NAME = "sample"  # what stands for it where a picture file is named
SAMPLE_QUESTION = "Which buttons are there?"

READS = "short English texts in screenshots, up to about 100 characters"
READS_NOT = (
    "it misreads much of real ones, so check what it says; full desktops, photos and other scripts "
    "are beyond it"
)

_ARCHITECTURE, _WIDTH = "llama", 576
# xxh3_128 of the whole file, a tenth of the time that its sha256 takes; and of its vocabulary, with
# zero bytes between the words.
_MADE_FOR = "1dff70ef9e211d0ab8951aa641e75aa1"
_VOCABULARY = "ff57de43db02113b8ff44163f17a8c6e"


def is_made_for(path: Path) -> bool:
    """Whether `path` holds the text model that the screen reader was trained with, to the last
    bit. Reads it only if it has that size, and is not known by a `pull`."""
    try:
        if path.stat().st_size != MADE_FOR.file_bytes:
            return False
        return is_marked(path, MADE_FOR) or _fingerprint(path) == _MADE_FOR
    except OSError:
        return False


def brought_for(path: Path) -> list[Path]:
    """The screen reader if it is for the text model in `path`, else nothing."""
    return [MMPROJ] if is_made_for(path) and MMPROJ.is_file() else []


def why_not(architecture: str, width: int, words: list[str]) -> str:
    """Of a text model that looks like the one that it is made for, in a sentence; "" for others,
    of which nobody would think so. `words` is the vocabulary."""
    if (architecture, width) != (_ARCHITECTURE, _WIDTH):
        return ""
    if vocabulary_of(words) != _VOCABULARY:
        return (
            "The screen reader that comes with ds4tui was trained with the vocabulary of "
            f"{MADE_FOR.title}, and this model has another."
        )
    return (
        f"The screen reader that comes with ds4tui was trained with {MADE_FOR.title} as "
        f"`ds4tui pull {MADE_FOR.name}` fetches it, and this is another file; what it reads in "
        f"its vectors is not known. To try: --mmproj {MMPROJ.name}"
    )


def _fingerprint(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            hasher.update(chunk)
    return hasher.hexdigest()


def vocabulary_of(words: list[str]) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join(words).encode("utf-8", "surrogatepass"))


def limits_of(mmproj: Path | str) -> str:
    """What an encoder reads and what not, in words; "" for one that we do not know."""
    return f"reads {READS}; {READS_NOT}" if Path(mmproj) == MMPROJ else ""


def sample_named(name: str) -> Path | None:
    """The screenshot that comes with the package, if `name` asks for it and is no file."""
    return SAMPLE if name.strip() == SAMPLE_NAME and not Path(name.strip()).exists() else None
