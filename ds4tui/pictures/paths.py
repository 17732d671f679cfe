"""Text that stands for picture files: what terminals paste when files are dropped on them, and
what people type after /image and @.

Terminals quote in their own ways: Terminal.app, iTerm and kitty put a backslash before what a
shell would read, GNOME's and Konsole put single quotes around, others double quotes, nothing at
all, or file:// addresses; several files come side by side or one a line. macOS puts a U+202F
before the AM of a screenshot's name (some languages a U+00A0), which what is copied or typed
rarely keeps.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

SUFFIXES = frozenset(
    ".png .apng .jpg .jpeg .jpe .jfif .webp .gif .bmp .dib .tif .tiff .heic .heif .avif .ico .ppm"
    " .pgm .pbm .qoi .jp2".split()
)
# What is longer is no drop: a hundred files of ordinary names.
DROP_CHARS_MAX = 16_384
# The first bytes of pictures whose names do not say so.
_BEGINNINGS = (
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
)
_WINDOWS = re.compile(r"(?P<drive>[A-Za-z]):[\\/]|\\\\wsl(?:\.localhost|\$)\\[^\\]+")
# Where a path begins that follows another one without quotes.
_NEXT_PATH = re.compile(r"\s+(?=/|~/|file:|[A-Za-z]:[\\/]|['\"])")
_BEGIN = re.compile(r"\s*(?:['\"]?(?:/|~|file:|[A-Za-z]:[\\/]|\\\\wsl)|\\?~)", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MORE_THAN_SPACES = re.compile(r"\s+")


def may_be_a_drop(text: str) -> bool:
    """Whether `text` looks like paths of dropped files; looks at no disk."""
    return len(text) <= DROP_CHARS_MAX and bool(_BEGIN.match(text))


def dropped(text: str, environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The picture files that `text` is about, if it is about nothing else: absolute paths of
    existing ones, in whatever quoting. Else (). Looks at the disk: call it off the loop."""
    if not may_be_a_drop(text):
        return ()
    for words in _ways(text):
        if paths := _pictures(words, environment):
            return paths
    return ()


def named(
    text: str, folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[tuple[Path, ...], str]:
    """The files that `text` names, relative ones in `folder` (the working folder), and the first
    name that is no file ("" if all are). They need not be pictures. Looks at the disk."""
    folder = folder or Path.cwd()
    missing = ""
    for words in _ways(text):
        found = [(word, _file(word, folder, environment)) for word in words]
        lacking = [word for word, path in found if path is None]
        if found and not lacking:
            return tuple(path for _, path in found if path is not None), ""
        missing = lacking[0] if lacking else missing
    return (), missing or text.strip()


def is_picture(path: Path) -> bool:
    """Whether the name of a file says that it is a picture, or else its first bytes do."""
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        with open(path, "rb") as file:
            begin = file.read(16)
    except OSError:
        return False
    return begin.startswith(_BEGINNINGS) or (begin[:4] == b"RIFF" and begin[8:12] == b"WEBP")


def quoted(path: str) -> str:
    """`path` as `named` reads it back, whatever is in it; plain where it can be."""
    if path and not set(path) & set(" \t\n'\"\\") and path == _squeezed(path):
        return path
    return '"' + re.sub(r'(["\\])', r"\\\1", path) + '"'


def completions(word: str, folder: Path | None = None, most: int = 50) -> tuple[str, ...]:
    """What may stand in the place of `word`, the beginning of a path: the folders (with a slash
    at their end) and the pictures that begin like it, as they are written. Looks at the disk."""
    head, slash, begun = word.rpartition("/")
    base = Path(os.path.expanduser(head + slash)) if slash else Path()
    wanted = _squeezed(begun).casefold()
    found: list[tuple[bool, str]] = []
    try:
        with os.scandir((folder or Path.cwd()) / base) as entries:
            for entry in entries:
                is_hidden = entry.name.startswith(".") and not begun.startswith(".")
                if not is_hidden and _squeezed(entry.name).casefold().startswith(wanted):
                    found += _offered(entry)
    except OSError:
        return ()
    return tuple(f"{head}{slash}{name}" for _, name in sorted(found, key=_order)[:most])


def _offered(entry: os.DirEntry[str]) -> Iterator[tuple[bool, str]]:
    try:
        is_folder = entry.is_dir()
    except OSError:
        return
    if is_folder:
        yield True, entry.name + "/"
    elif Path(entry.name).suffix.lower() in SUFFIXES:
        yield False, entry.name


def _order(item: tuple[bool, str]) -> tuple[bool, str]:
    is_folder, name = item
    return is_folder, name.casefold()  # pictures first: they are what is looked for


# -- how a text may be cut into paths ------------------------------------------------------------


def _ways(text: str) -> Iterator[list[str]]:
    """The readings of `text` as names of files, the likelier ones first."""
    text = text.strip()
    if not text:
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    yield from (list(words) for words in ([text], lines) if words)
    for parts in ([text], lines):
        cut = [word for part in parts for word in _NEXT_PATH.split(part)]
        yield cut
    shell = [_shell_words(line) for line in lines]
    if None not in shell:
        yield [word for words in shell if words is not None for word in words]


def _shell_words(line: str) -> list[str] | None:
    """`line` as a shell cuts it, with its quotes kept (`_readings` takes them off); None if a
    quote is not closed."""
    words: list[str] = []
    word, quote, at = "", "", 0
    while at < len(line):
        character = line[at]
        if character == "\\" and quote != "'" and at + 1 < len(line):
            word += line[at : at + 2]
            at += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in " \t":
            words, word = [*words, word] if word else words, ""
            at += 1
            continue
        word += character
        at += 1
    return None if quote else [*words, *([word] if word else [])]


def _readings(word: str) -> Iterator[str]:
    """The paths that `word` may stand for, as it is first: a backslash may be part of a name."""
    yield word
    if word[:5].lower() == "file:":
        yield from _of_address(word)
        return
    if len(word) >= 2 and word[0] == word[-1] == "'":
        yield word[1:-1].replace("'\\''", "'").replace("'\"'\"'", "'")
    elif len(word) >= 2 and word[0] == word[-1] == '"':
        yield word[1:-1]
        yield re.sub(r'\\(["\\$`])', r"\1", word[1:-1])
    elif "\\" in word:
        yield _ESCAPED.sub(r"\1", word)
    inner = word.strip("'\"")
    if inner[:5].lower() == "file:":
        yield from _of_address(inner)


def _of_address(word: str) -> Iterator[str]:
    try:
        parts = urlsplit(word.replace("\\ ", "%20"))
    except ValueError:
        return
    if parts.netloc in ("", "localhost", os.uname().nodename):
        # A "?" or "#" that was not escaped is part of the name: nobody asks a file questions.
        rest = word[5:].removeprefix("//" + parts.netloc) if word[5:7] == "//" else word[5:]
        yield unquote(rest)
        yield rest


def _pictures(words: Iterable[str], environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The pictures that all of `words` name; () at the first one that names none: a log of paths
    that somebody pastes may have thousands, and folders may be slow."""
    paths = []
    for word in words:
        path = _file(word, None, environment)
        if path is None or not is_picture(path):
            return ()
        paths.append(path)
    return tuple(paths)


def _file(word: str, folder: Path | None, environment: Mapping[str, str]) -> Path | None:
    """The file that `word` names; relative ones only if a `folder` is given."""
    tried = [_placed(reading, folder, environment) for reading in _readings(word)]
    places = [place for place in tried if place is not None]
    return _first(_is_file, places) or _first(None, map(_by_look, places))


def _placed(text: str, folder: Path | None, environment: Mapping[str, str]) -> Path | None:
    if not text or "\0" in text:
        return None
    windows = _WINDOWS.match(text)
    if windows and environment.get("WSL_DISTRO_NAME"):
        rest = text[windows.end() :].replace("\\", "/").lstrip("/")
        root = f"/mnt/{windows['drive'].lower()}" if windows["drive"] else ""
        return Path(f"{root}/{rest}")
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # a home that nobody has
        path = Path(text)
    if path.is_absolute():
        return path
    return folder / path if folder is not None else None


def _first(holds: Callable[[Path], bool] | None, paths: Iterable[Path | None]) -> Path | None:
    return next((p for p in paths if p is not None and (holds is None or holds(p))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _by_look(path: Path) -> Path | None:
    """The one file in the folder of `path` whose name looks the same: with other spaces, or
    accents put together otherwise. None if there is none, or more than one."""
    wanted = _squeezed(path.name)
    try:
        found = [name for name in os.listdir(path.parent) if _squeezed(name) == wanted]
    except (OSError, ValueError):
        return None
    only = path.parent / found[0] if len(found) == 1 else None
    return only if only is not None and _is_file(only) else None


def _squeezed(name: str) -> str:
    # NFKC makes U+00A0, U+202F and their like spaces, and puts accents together.
    return _MORE_THAN_SPACES.sub(" ", unicodedata.normalize("NFKC", name)).strip()
