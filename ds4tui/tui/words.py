"""How panels say numbers, sizes, times and shares, and the building blocks that they share.

Pure functions; nothing here knows the engine.
"""

import time
from collections.abc import Sequence

from textual.content import Content

HEADING = "bold $accent"
QUIET = "dim"
LABEL_CHARS = 10


def percent(part: float, whole: float) -> int:
    """Rounded down, so that 100 means all of it."""
    return int(100 * part / whole) if whole else 0


def rate_words(tokens_per_s: float) -> str:
    """`48.1 t/s`, `512 t/s`."""
    return f"{tokens_per_s:,.{0 if tokens_per_s >= 100 else 1}f} t/s"


def seconds_words(milliseconds: float) -> str:
    """`85 ms`, `0.85 s`, `12.3 s`."""
    if milliseconds < 100:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1e3
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def duration_words(seconds: float) -> str:
    """`10s`, `2m05s`, `1h03m`: rounded up, a wait is never shown as over before it is."""
    whole = int(seconds) + (seconds > int(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def size_words(count: float) -> str:
    """Bytes as `94.4 MB` (powers of ten, as downloads and disks are labelled)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit in ("B", "kB") else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("the loop returns")


def short_count(count: int) -> str:
    """`9,999`, then `12k` (rounded down), for columns."""
    return f"{count:,}" if count < 10_000 else f"{count // 1000:,}k"


def bar(fraction: float, width: int) -> Content:
    """A bar of `width` cells, filled in halves of a cell; it can be read without colour."""
    halves = round(max(0.0, min(1.0, fraction)) * width * 2)
    full, rest = divmod(halves, 2)
    filled = "━" * full + "╾" * rest
    return Content.assemble((filled, "$accent"), ("─" * (width - len(filled)), QUIET))


_SPARKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars over zero; the highest is the tallest."""
    shown = values[-width:] if width > 0 else ()
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    return "".join(_SPARKS[min(7, int(max(0.0, value) / top * 7.999))] for value in shown)


def section(title: str, *lines: Content) -> Content:
    return Content("\n").join([Content.styled(title, HEADING), *lines])


def row(label: str, value: str, style: str = "") -> Content:
    return Content.assemble((label.ljust(LABEL_CHARS), QUIET), (value, style))


def hanging_row(label: str, value: Content, width: int) -> Content:
    """A row whose further lines begin below its value; for text that is `width` cells wide."""
    first, *more = value.wrap(max(1, width - LABEL_CHARS)) or [Content("")]
    lines = [Content.assemble((label.ljust(LABEL_CHARS), QUIET), first)]
    return Content("\n").join([*lines, *(Content.assemble(" " * LABEL_CHARS, m) for m in more)])


def hanging(head: Sequence[tuple[str, str]], words: Content, indent: int, width: int) -> Content:
    """`head` in its styles, then `words` whose further lines begin below their first. A head that
    is longer than `indent` has a line of its own."""
    first, *more = words.wrap(max(1, width - indent)) or [Content("")]
    fits = sum(len(text) for text, _ in head) <= indent
    lines = [Content.assemble(*head, first)] if fits else [Content.assemble(*head)]
    below = more if fits else [first, *more]
    return Content("\n").join([*lines, *(Content.assemble(" " * indent, each) for each in below)])


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def counted(count: int, noun: str) -> str:
    """`1 branch`, `2 tokens`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def clock_words(time_s: float) -> str:
    """`14:03:22`, by this machine's clock; `time_s` in seconds since 1970."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def left_out_words(images: int) -> str:
    """Of a conversation with more pictures than the model is shown."""
    are = "is" if images == 1 else "are"
    return f"{counted(images, 'earlier picture')} {are} not shown to the model (images_kept)"
