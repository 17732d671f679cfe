"""The `ds4tui` command, which is `python -m ds4tui` too: takes the signals, then loads the rest.

Importing the command line takes a moment in which Python would answer Ctrl-C with a traceback and
a supervisor's SIGTERM by dying of it. Nothing has begun yet, and so nothing is lost: end at once.
"""

import os
import signal
import sys

from ds4tui.interrupts import INTERRUPTED, exit_interrupted


def main() -> int:
    """The exit code; whoever is interrupted before and after the work itself exits with 130."""
    # Shells start what runs in the background with Ctrl-C ignored: that stays so.
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, exit_interrupted)
    if "serve" in sys.argv[1:]:
        signal.signal(signal.SIGTERM, _exit_stopped)
    from ds4tui.cli import main as run

    try:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # beside the work: while its end was told
        return INTERRUPTED
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, exit_interrupted)


def _exit_stopped(*_: object) -> None:
    os._exit(0)  # a service manager's SIGTERM is an ordinary end


if __name__ == "__main__":
    raise SystemExit(main())
