"""Which images this terminal can show. It is asked only where nothing can go wrong by that.

A question is written to a terminal only if that is ours to read: standard input is one, and we
are in its foreground (in the background a change of its modes stops the process). The last
question is one that every terminal answers, so silence ends the wait. Sources: the kitty
graphics protocol's "Querying support"; xterm's ctlseqs, Primary Device Attributes (4 is sixel).
"""

import os
import re
import select
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ds4tui.doctor.findings import Finding

ANSWER_S = 1.0  # an answer through ssh takes a tenth of it
ANSWER_BYTES_MAX = 4096

KITTY_QUESTION = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\"
ERASE_LINE = b"\r\x1b[K"  # where an odd terminal has shown the question after all
INTERRUPT = b"\x03"
ATTRIBUTES_QUESTION = b"\x1b[c"
_ATTRIBUTES = re.compile(rb"\x1b\[\?([\d;]*)c")
_KITTY_OK = re.compile(rb"\x1b_Gi=31;OK\x1b\\")

# Terminals that would print the kitty question instead of ignoring it.
NO_KITTY_QUESTION = ("Apple_Terminal",)
NEVER_ASKED = ("", "dumb", "linux", "unknown")


@dataclass(frozen=True, slots=True)
class Answer:
    kitty: bool
    sixel: bool


def terminal(
    environment: Mapping[str, str] = os.environ, descriptor: int | None = None
) -> Iterator[Finding]:
    """`descriptor` is that of standard input, unless a test has another."""
    name = environment.get("TERM_PROGRAM") or environment.get("TERM") or "no terminal"
    answer, why = None, "standard input is no terminal"
    descriptor = _standard_input() if descriptor is None else descriptor
    if descriptor is not None:
        answer, why = ask(descriptor, environment)
    ways = [*_graphics(environment, answer), *_half_blocks(environment)]
    asked = "it was asked" if answer else f"it was not asked: {why}"
    text = f"{name}: {', '.join(ways) or 'no images'}; {asked}"
    facts = {"terminal": name, "images": ways, "asked": answer is not None}
    if environment.get("TMUX"):
        yield Finding("ok", f"{text}; inside tmux", "Images of kitty need in tmux: "
                      "set -g allow-passthrough on", facts)  # fmt: skip
        return
    yield Finding("ok", text, facts=facts)


def _graphics(environment: Mapping[str, str], answer: Answer | None) -> Iterator[str]:
    """What it answers counts more than what it is called."""
    program, kind = environment.get("TERM_PROGRAM", ""), environment.get("TERM", "")
    is_kitty = "KITTY_WINDOW_ID" in environment or "kitty" in kind or "ghostty" in kind
    if answer.kitty if answer else is_kitty or program in ("ghostty", "WezTerm"):
        yield "kitty graphics"
    if answer.sixel if answer else program in ("WezTerm", "mintty") or "foot" in kind:
        yield "sixel"
    if program in ("iTerm.app", "WezTerm") or environment.get("LC_TERMINAL") == "iTerm2":
        yield "iTerm images"


def _half_blocks(environment: Mapping[str, str]) -> Iterator[str]:
    locale = next((v for n in ("LC_ALL", "LC_CTYPE", "LANG") if (v := environment.get(n))), "")
    if "utf" not in locale.lower() or environment.get("TERM", "") in ("", "dumb"):
        return
    if environment.get("COLORTERM") in ("truecolor", "24bit"):
        yield "half blocks in true colour"
    elif "256color" in environment.get("TERM", ""):
        yield "half blocks in 256 colours"
    else:
        yield "half blocks in 16 colours"


def _standard_input() -> int | None:
    try:
        descriptor = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # none, closed, or not a file
        return None
    return descriptor if os.isatty(descriptor) else None


def ask(descriptor: int, environment: Mapping[str, str]) -> tuple[Answer | None, str]:
    """What the terminal behind `descriptor` says, or None and why it was not asked."""
    if environment.get("TERM", "") in NEVER_ASKED:
        return None, "a terminal of this kind does not answer"
    try:
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return None, "this runs in the background"
        question = ATTRIBUTES_QUESTION
        if environment.get("TERM_PROGRAM") not in NO_KITTY_QUESTION:
            question = KITTY_QUESTION + question
        with _silent(descriptor):
            os.write(descriptor, question)
            said = _read_answer(descriptor)
            os.write(descriptor, ERASE_LINE)
        if INTERRUPT in said:
            raise KeyboardInterrupt
    except (OSError, termios.error) as exc:
        return None, f"it cannot be asked ({exc})"
    attributes = _ATTRIBUTES.search(said)
    if attributes is None:
        return None, "it did not answer"
    return Answer(bool(_KITTY_OK.search(said)), b"4" in attributes[1].split(b";")[1:]), ""


@contextmanager
def _silent(descriptor: int) -> Iterator[None]:
    """Answers are neither shown nor waited for in lines; what comes late is thrown away. Ctrl-C
    is a character meanwhile: it would end the process with the terminal still silent."""
    before = termios.tcgetattr(descriptor)
    mode = [*before[:6], [*before[6]]]
    mode[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, mode)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)


def _read_answer(descriptor: int) -> bytes:
    """All up to the answer that comes last, or to ANSWER_S."""
    said, until_s = b"", time.monotonic() + ANSWER_S
    while not _ATTRIBUTES.search(said) and INTERRUPT not in said and len(said) < ANSWER_BYTES_MAX:
        left_s = until_s - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            break
        chunk = os.read(descriptor, ANSWER_BYTES_MAX)
        if not chunk:
            break
        said += chunk
    return said
