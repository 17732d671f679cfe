"""Taking a screenshot with the system's own program: a person chooses the part with the mouse."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ds4tui.pictures.clipboard import Which
from ds4tui.pictures.tools import ToolFailed, output_of

# People look for the window first; after this nobody is choosing any more.
CHOOSE_S = 120.0


@dataclass(frozen=True, slots=True)
class Capture:
    """The bytes of the screenshot, or why there is none. `was_left`: the person chose nothing."""

    data: bytes = b""
    tool: str = ""
    problem: str = ""
    was_left: bool = False


def capture_commands(
    environment: Mapping[str, str], system: str, target: str
) -> Iterator[tuple[str, ...]]:
    """What may take a screenshot of a chosen part into the file `target`, best first."""
    if system == "Darwin":
        yield ("screencapture", "-i", "-x", target)
        return
    desktop = environment.get("XDG_CURRENT_DESKTOP", "").lower()
    if environment.get("WAYLAND_DISPLAY"):
        if "gnome" in desktop:
            yield ("gnome-screenshot", "-a", "-f", target)
        if "kde" in desktop:
            yield ("spectacle", "-r", "-b", "-n", "-o", target)
        yield ("grim", "-g", "SLURP", target)  # SLURP: what slurp says first
        yield ("spectacle", "-r", "-b", "-n", "-o", target)
        yield ("gnome-screenshot", "-a", "-f", target)
    elif environment.get("DISPLAY"):
        yield ("maim", "-s", "-u", target)
        yield ("scrot", "-s", "-o", target)
        yield ("gnome-screenshot", "-a", "-f", target)
        yield ("spectacle", "-r", "-b", "-n", "-o", target)
        yield ("xfce4-screenshooter", "-r", "-s", target)
        yield ("import", target)


def capture(
    environment: Mapping[str, str] | None = None,
    system: str | None = None,
    which: Which = shutil.which,
) -> Capture:
    """Blocks until the person has chosen: call it off the loop. Raises nothing."""
    environment = os.environ if environment is None else environment
    with tempfile.TemporaryDirectory(prefix="ds4tui-") as folder:
        target = Path(folder) / "screenshot.png"
        commands = capture_commands(environment, system or platform.system(), str(target))
        command = next((c for c in commands if _is_there(c, which)), None)
        if command is None:
            return Capture(problem=_no_tool(environment))
        try:
            _take(command)
        except ToolFailed as exc:
            # Most programs end with an error when a person presses Escape.
            return Capture(tool=command[0], problem=str(exc), was_left=exc.is_refusal)
        try:
            data = target.read_bytes()
        except OSError:
            data = b""
        return Capture(data, command[0], was_left=not data)


def _is_there(command: tuple[str, ...], which: Which) -> bool:
    needed = [command[0], *(["slurp"] if "SLURP" in command else [])]
    return all(which(name) for name in needed)


def _take(command: tuple[str, ...]) -> None:
    if "SLURP" in command:
        chosen = os.fsdecode(output_of(("slurp",), CHOOSE_S)).strip()
        command = tuple(chosen if part == "SLURP" else part for part in command)
    output_of(command, CHOOSE_S)


def _no_tool(environment: Mapping[str, str]) -> str:
    if environment.get("WAYLAND_DISPLAY"):
        return "No program for screenshots is here: grim with slurp, gnome-screenshot or spectacle"
    if environment.get("DISPLAY"):
        return "No program for screenshots is here: maim, scrot, gnome-screenshot or spectacle"
    return "This session has no screen to take a screenshot of"
