"""Copying text out of the app, and saying truthfully what came of it.

A clipboard program is asked first, because it answers whether it worked. Only without one is
the text sent to the terminal as an OSC 52 sequence, which no terminal confirms.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A clipboard program that hangs (a dead X server) must not hold the toast for long.
TOOL_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """`tool` took the text, or None: nobody did."""

    tool: str | None
    problem: str = ""


def clipboard_commands(environment: Mapping[str, str], system: str) -> tuple[tuple[str, ...], ...]:
    """The programs that may reach this session's clipboard, best first."""
    found: list[tuple[str, ...]] = []
    if system == "Darwin":
        found.append(("pbcopy",))
    if environment.get("WAYLAND_DISPLAY"):
        found.append(("wl-copy",))
    if environment.get("DISPLAY"):
        found.append(("xclip", "-selection", "clipboard"))
        found.append(("xsel", "--clipboard", "--input"))
    if environment.get("WSL_DISTRO_NAME"):
        found.append(("clip.exe",))
    if environment.get("TMUX"):
        # tmux keeps the text in its buffer and, with -w, hands it to its own terminal.
        found.append(("tmux", "load-buffer", "-w", "-"))
    return tuple(found)


def copy_with_tool(
    text: str,
    environment: Mapping[str, str] | None = None,
    system: str | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> CopyOutcome:
    """Hand `text` to the first clipboard program that takes it. Blocks; call it off the loop."""
    commands = clipboard_commands(environment or os.environ, system or platform.system())
    problem = ""
    for command in commands:
        if which(command[0]) is None:
            continue
        problem = _run(command, text)
        if not problem:
            return CopyOutcome(command[0])
    return CopyOutcome(None, problem)


def _run(command: tuple[str, ...], text: str) -> str:
    """Why `command` did not take `text`; "" if it did.

    The output goes nowhere: wl-copy and xclip stay behind to serve the clipboard and would
    hold a pipe open.
    """
    try:
        subprocess.run(
            command,
            input=text.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not answer"
    except subprocess.CalledProcessError as exc:
        return f"{command[0]} failed (exit {exc.returncode})"
    except OSError as exc:
        return f"{command[0]} could not be run: {exc.strerror}"
    return ""
