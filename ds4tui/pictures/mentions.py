"""@paths in a question: which picture files its words name, with any punctuation around them.

`@shot.png`, `@"two words.png"`, `@two\\ words.png`, `(@shot.png)`, `@a.png,@b.png's sky…`
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ds4tui.pictures.paths import SUFFIXES, named

# Not within a word (me@home.png), a path, or the label of a picture that is called so.
_AT = re.compile(r"""(?<![\w.+\-@/\\\[])@("(?:[^"\\]|\\.)+"|'[^'\n]+'|(?:[^\s\\"]|\\.)+)""")
# A name may end behind one of these, unless it goes on (a.png.txt, a.png/b).
_END = re.compile(
    rf"(?:{'|'.join(map(re.escape, sorted(SUFFIXES)))})(?![A-Za-z0-9_]|[./][A-Za-z0-9_])", re.I
)


@dataclass(frozen=True, slots=True)
class Mention:
    """Of a picture: text[start:end], the @ included. `path` is None where no file goes by the
    `name`."""

    start: int
    end: int
    name: str
    path: Path | None


def may_mention(text: str) -> bool:
    """Whether an @ stands before what is called like a picture; looks at no disk."""
    return any(_names(match[1]) for match in _AT.finditer(text))


def next_mention(text: str, start: int = 0) -> Mention | None:
    """The first one from character `start` on. Of names that may end at several places the
    longest that is a file. Looks at the disk."""
    at = start
    while match := _AT.search(text, at):
        at = match.start() + 1
        if names := _names(match[1]):
            found = ((name, _file(name)) for name in names)
            name, path = next((pair for pair in found if pair[1] is not None), (names[-1], None))
            return Mention(match.start(), at + len(name), name, path)
    return None


def _names(word: str) -> list[str]:
    """What of `word` may be the name of a picture, the longest first; all begin as it does."""
    if word[0] in "\"'" and word[-1] == word[0]:
        return [word] if Path(word[1:-1]).suffix.lower() in SUFFIXES else []
    return [word[: end.end()] for end in _END.finditer(word)][::-1]


def _file(name: str) -> Path | None:
    paths, missing = named(name)
    return paths[0] if len(paths) == 1 and not missing else None
