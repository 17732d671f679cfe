"""Text from models, people and files, made harmless for a terminal.

What reaches the screen must not steer the terminal: escape sequences and other control
characters become visible signs. The stored text stays as it was; only what is drawn changes.
"""

import re

# C0 controls but tab and newline, DEL, C1 controls.
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_CONTROLS[0x7F] = 0x2421
_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
# Overrides of the writing direction can make text read as what it is not.
_CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
# str.splitlines breaks at these, Markdown does not: Textual would count lines wrongly.
_CONTROLS |= dict.fromkeys((0x0B, 0x0C, 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029), 0x0A)
_SURROGATE = re.compile("[\ud800-\udfff]")
# ECMA-48: CSI sequences; OSC, DCS, SOS, PM, APC strings up to their terminator; two-byte escapes.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)


def harmless(text: str) -> str:
    """`text` with control characters shown as signs, ready for the screen."""
    plain = _SURROGATE.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))
    return plain.translate(_CONTROLS)


def one_line(text: str) -> str:
    """`text` on one line, for titles and lists."""
    return " ".join(harmless(text).split())


def pasted(text: str) -> str:
    """What a paste of `text` inserts: without escape sequences (the colours of copied terminal
    output), other control characters made visible."""
    return harmless(_ESCAPES.sub("", text))
