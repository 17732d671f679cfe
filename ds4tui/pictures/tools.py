"""Running the system's own programs for pictures: bounded in time, with the reason in words."""

import os
import subprocess
from collections.abc import Mapping, Sequence


class ToolFailed(Exception):
    """A program did not do its work; the text says which and why. `is_refusal`: it ran, and
    ended with an exit code that says no."""

    def __init__(self, text: str, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


def output_of(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> bytes:
    """What `command` writes to its standard output. Raises ToolFailed."""
    name = command[0]
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=None if environment is None else dict(environment),
            check=False,
            # A program of its own session draws nothing on our terminal.
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as exc:
        raise ToolFailed(f"{name} did not answer within {timeout_s:g} s") from exc
    except OSError as exc:
        raise ToolFailed(f"{name} could not be run: {exc.strerror}") from exc
    if ran.returncode:
        said = os.fsdecode(ran.stderr).strip().splitlines()
        why = f": {said[-1][:200]}" if said else ""
        raise ToolFailed(f"{name} failed (exit {ran.returncode}){why}", is_refusal=True)
    return ran.stdout
