"""The picture on the clipboard, fetched with the platform's own programs.

Terminals paste text only: of a picture on the clipboard they send nothing. A program that may
reach this session's clipboard is asked: by OSC 52 a terminal would give text only.
"""

import base64
import binascii
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ds4tui.pictures.paths import named
from ds4tui.pictures.tools import ToolFailed, output_of

# A clipboard program that hangs (a dead X server, a selection whose owner is gone).
TOOL_TIMEOUT_S = 5.0
# As programs offer them, the one that keeps every pixel first.
_TYPES = (
    "image/png image/webp image/tiff image/bmp image/x-bmp image/jpeg image/jpg image/gif"
    " image/avif image/heic"
).split()
_FILES = ("text/uri-list", "x-special/gnome-copied-files")
_POWERSHELL = (
    "Add-Type -AssemblyName System.Windows.Forms,System.Drawing;"
    "$i=[Windows.Forms.Clipboard]::GetImage();"
    "if($i){$m=New-Object IO.MemoryStream;$i.Save($m,[Drawing.Imaging.ImageFormat]::Png);"
    "[Convert]::ToBase64String($m.ToArray())}"
)
_APPLE_HEX = re.compile(rb"\xc2\xabdata PNGf([0-9A-Fa-f]*)\xc2\xbb")

Which = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Clipboard:
    """What was found: the bytes of a picture, or files that were copied, or neither and why."""

    data: bytes = b""
    paths: tuple[Path, ...] = ()
    problem: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.data and not self.paths


def clipboard_picture(
    environment: Mapping[str, str] | None = None,
    system: str | None = None,
    which: Which = shutil.which,
) -> Clipboard:
    """Blocks for some seconds at worst: call it off the loop. Raises nothing."""
    environment = os.environ if environment is None else environment
    ways = tuple(_ways(environment, system or platform.system(), which))
    if not ways:
        return Clipboard(problem=_no_tool(environment, which))
    problems: list[str] = []
    for way in ways:
        try:
            found = way()
        except ToolFailed as exc:
            problems.append(str(exc))
            continue
        if not found.is_empty:
            return found
    return Clipboard(problem="; ".join(problems) or "There is no picture on the clipboard")


def _ways(
    environment: Mapping[str, str], system: str, which: Which
) -> Iterator[Callable[[], Clipboard]]:
    if system == "Darwin":
        if which("pngpaste"):
            yield _pngpaste
        if which("osascript"):
            yield _osascript
    if environment.get("WAYLAND_DISPLAY") and which("wl-paste"):
        yield lambda: _offered(("wl-paste", "--list-types"), ("wl-paste", "--no-newline", "--type"))
    if environment.get("DISPLAY") and which("xclip"):
        ask = ("xclip", "-selection", "clipboard", "-o", "-t")
        yield lambda: _offered((*ask, "TARGETS"), ask)
    if environment.get("WSL_DISTRO_NAME") and which("powershell.exe"):
        yield _powershell


def _no_tool(environment: Mapping[str, str], which: Which) -> str:
    if environment.get("WAYLAND_DISPLAY") and not which("wl-paste"):
        return "Pictures of the clipboard need wl-paste (package wl-clipboard), which is not here"
    if environment.get("DISPLAY") and not which("xclip"):
        return "Pictures of the clipboard need xclip, which is not here"
    if environment.get("SSH_CONNECTION"):
        return "The clipboard is on the machine that you come from: copy the picture here as a file"
    return "This session has no clipboard that can be asked for a picture"


def _offered(list_types: tuple[str, ...], fetch: tuple[str, ...]) -> Clipboard:
    """Of a clipboard that says in which forms it can give what it holds."""
    try:
        listed = output_of(list_types, TOOL_TIMEOUT_S)
    except ToolFailed as exc:
        if exc.is_refusal:  # so both programs say that it is empty
            return Clipboard()
        raise
    offered = set(os.fsdecode(listed).split())
    wanted = next((kind for kind in _TYPES if kind in offered), None)
    if wanted is not None:
        return Clipboard(output_of((*fetch, wanted), TOOL_TIMEOUT_S))
    files = next((kind for kind in _FILES if kind in offered), None)
    if files is None:
        return Clipboard()
    text = os.fsdecode(output_of((*fetch, files), TOOL_TIMEOUT_S))
    return Clipboard(paths=named("\n".join(text.removeprefix("copy\n").split("\r\n")))[0])


def _pngpaste() -> Clipboard:
    try:
        return Clipboard(output_of(("pngpaste", "-"), TOOL_TIMEOUT_S))
    except ToolFailed:  # it says no picture that way; osascript is asked next
        return Clipboard()


def _osascript() -> Clipboard:
    """Files first: of a file that was copied in the Finder the clipboard has the icon, too."""
    file = _apple("POSIX path of (the clipboard as «class furl»)")
    if file.startswith(b"/"):
        return Clipboard(paths=(Path(os.fsdecode(file.rstrip(b"\n"))),))
    found = _APPLE_HEX.search(_apple("the clipboard as «class PNGf»"))
    return Clipboard(binascii.unhexlify(found[1])) if found else Clipboard()


def _apple(script: str) -> bytes:
    try:
        return output_of(("osascript", "-e", script), TOOL_TIMEOUT_S)
    except ToolFailed as exc:
        if exc.is_refusal:
            return b""  # it has nothing of that kind
        raise


def _powershell() -> Clipboard:
    command = ("powershell.exe", "-NoProfile", "-NonInteractive", "-STA", "-Command", _POWERSHELL)
    said = output_of(command, TOOL_TIMEOUT_S)
    try:
        return Clipboard(base64.b64decode(b"".join(said.split()), validate=True))
    except binascii.Error as exc:
        raise ToolFailed("powershell.exe gave something that is no picture") from exc
