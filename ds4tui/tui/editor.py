"""Writing the prompt in a person's own editor ($VISUAL, $EDITOR), in a file that goes with it."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ds4tui.errors import UsageError

_HINT = "Set EDITOR to a program that edits a file and ends when it is done, as in EDITOR=nano."


def editor_command(environment: Mapping[str, str]) -> list[str]:
    """The person's editor, with its arguments; vi where none is set. Raises UsageError."""
    named = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    try:
        command = shlex.split(named)
    except ValueError as exc:
        raise UsageError(f"EDITOR cannot be read: {exc}.", _HINT) from exc
    return command or ["vi"]


def edited(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` as the editor leaves it. Blocks until that ends, and needs the terminal. Raises
    UsageError if it cannot be run or fails: what was written in it is not taken then."""
    command = editor_command(environment if environment is not None else os.environ)
    with tempfile.TemporaryDirectory(prefix="ds4tui-") as folder:  # for this user's eyes only
        path = Path(folder) / "prompt.md"
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            subprocess.run([*command, str(path)], check=True)
        except subprocess.CalledProcessError as exc:
            raise UsageError(
                f"{command[0]} ended with {exc.returncode}; the prompt is what it was.", _HINT
            ) from exc
        except OSError as exc:
            raise UsageError(f"{command[0]} could not be run: {exc.strerror}.", _HINT) from exc
        written = path.read_text(encoding="utf-8", errors="replace")
    # Editors end the last line of a file.
    return written if text.endswith("\n") else written.removesuffix("\n")
