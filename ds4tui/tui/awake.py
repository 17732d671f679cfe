"""Keeps the machine from falling asleep while a long prompt is read: nobody touches it meanwhile.

By the system's own program for that, which ends with this process, whatever happens to it.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from ds4tui.engine.stats import EngineStats

log = logging.getLogger(__name__)

# A prefill that takes longer is left alone by people, and machines sleep from a minute on.
LONG_S = 20.0


def command() -> Sequence[str] | None:
    """What keeps this machine awake as long as it runs; None where there is no such program."""
    if caffeinate := shutil.which("caffeinate"):  # macOS
        return (caffeinate, "-i", "-w", str(os.getpid()))
    if inhibit := shutil.which("systemd-inhibit"):
        why = "--why=A long prompt is read"
        # cat ends when its input does, which is ours.
        return (inhibit, "--what=idle:sleep", "--who=ds4tui", why, "--mode=block", "cat")
    return None


class KeepAwake:
    """Belongs to the UI loop; told of the stats while the engine is at work, and once after."""

    def __init__(self, command: Callable[[], Sequence[str] | None] = command) -> None:
        self._command = command
        self._running: subprocess.Popen[bytes] | None = None

    def follow(self, stats: EngineStats | None) -> None:
        """From a long prefill on until the engine rests. Never raises: it is a courtesy."""
        is_at_work = stats is not None and stats.state in ("prefilling", "decoding")
        if self._running is not None and not is_at_work:
            self.release()
        elif self._running is None and stats is not None and _is_long(stats):
            self._hold()

    def release(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.kill()
            running.communicate()  # closes its input, and takes note of its end

    def _hold(self) -> None:
        found = self._command()
        if found is None:
            return
        try:
            self._running = subprocess.Popen(
                found,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C is not for it
            )
        except OSError as exc:
            log.info("the machine may fall asleep: %s", exc)


def _is_long(stats: EngineStats) -> bool:
    progress = stats.prefill
    return stats.state == "prefilling" and progress is not None and progress.eta_s >= LONG_S
