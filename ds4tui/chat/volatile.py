"""Parts of a system text that clients change from request to request, though nothing is meant.

A header that is for somebody's accounts, and the time of day. What they stood for when a
conversation began is kept for it: one changed character there costs all that comes after it.
Only a line that tells the time and nothing else counts, and only while it is about now: a date that
a text is about stays what it is.
"""

import re
from collections.abc import Iterator
from datetime import date, datetime, timedelta

# Claude Code's, whose "cch" is another one at each request in versions up to 2.1.180.
_ACCOUNTING = re.compile(r"(?m)^x-anthropic-billing-header:.*$")

_MONTHS = "January February March April May June July August September October November December"
_MONTH_NUMBERS = {name[:3]: number for number, name in enumerate(_MONTHS.split(), start=1)}
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS.split())
_DATES = (
    re.compile(r"\b(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"),
    re.compile(r"\b(?P<year>\d{4})/(?P<month>\d\d)/(?P<day>\d\d)\b"),
    re.compile(rf"\b(?P<month>{_MONTH})\.? (?P<day>\d\d?)(?:st|nd|rd|th)?,? (?P<year>\d{{4}})\b"),
    re.compile(rf"\b(?P<day>\d\d?) (?P<month>{_MONTH})\.? (?P<year>\d{{4}})\b"),
)
_TIME = re.compile(
    r"(?:T|\b)\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: ?[AaPp][Mm]\b)?(?:Z\b| ?[+-]\d\d:?\d\d\b)?"
)
_DAY = re.compile(r"\b(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?\b")
_WORD = re.compile(r"[^\W\d_]+")
# What a line may say beside a date and a time to be a clock's.
_CLOCK_WORDS = frozenset(
    "a and as at current currently date datetime day gmt is it local now of on s the time "
    "timestamp timezone today todays utc zone".split()
)
# Clocks of clients stand in any zone, and conversations outlive midnight.
_ABOUT_NOW = timedelta(days=2)
_CLOCK = "\0clock"


def without_accounting(text: str) -> str:
    """The text without headers that are nothing to a model."""
    return _ACCOUNTING.sub("", text)


def without_clocks(text: str, now: datetime | None) -> str:
    """The text with its dates and times, where they tell what the time is, all alike; without a
    `now` whatever time they tell."""
    return "".join(_line(line, now) for line in text.splitlines(keepends=True))


def _line(line: str, now: datetime | None) -> str:
    if not any(now is None or _is_about(d, now) for d in _dates(line)):
        return line
    alike = line
    for pattern in (*_DATES, _TIME, _DAY):
        alike = pattern.sub(_CLOCK, alike)
    words = _WORD.findall(alike.replace(_CLOCK, " ").lower())
    return alike if _CLOCK_WORDS.issuperset(words) else line


def _is_about(day: date, now: datetime) -> bool:
    return abs(day - now.date()) <= _ABOUT_NOW


def _dates(line: str) -> Iterator[date]:
    for pattern in _DATES:
        for found in pattern.finditer(line):
            month = found["month"]
            number = int(month) if month.isdigit() else _MONTH_NUMBERS[month[:3]]
            try:
                yield date(int(found["year"]), number, int(found["day"]))
            except ValueError:  # no day of the calendar
                continue
