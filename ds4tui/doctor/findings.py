"""What a check of this machine found, as values, and how they are told."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# ok; note: not there, or could be better; warn: wrong, but the rest can be used; BAD: stops use.
Level = Literal["ok", "note", "warn", "BAD"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; `facts` are JSON values for programs."""

    level: Level
    text: str
    advice: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


Check = Callable[[], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    findings: tuple[Finding, ...]


def is_usable(sections: Iterable[Section]) -> bool:
    return all(finding.level != "BAD" for s in sections for finding in s.findings)


def section_lines(section: Section) -> Iterator[str]:
    yield section.title
    for finding in section.findings:
        yield f"  {finding.level:<4}  {one_line(finding.text)}"
        if finding.advice:
            yield f"        -> {one_line(finding.advice)}"


def verdict(sections: Iterable[Section]) -> str:
    levels = [finding.level for s in sections for finding in s.findings]
    if "BAD" in levels:
        return "something is wrong that stops use: see BAD above"
    if "warn" in levels:
        return "something is wrong, the rest can be used: see warn above"
    return "nothing is wrong"


def sections_json(sections: Iterable[Section]) -> list[dict[str, Any]]:
    return [asdict(section) for section in sections]


def one_line(text: str) -> str:
    """Names and messages come out of files: nothing of them may steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
