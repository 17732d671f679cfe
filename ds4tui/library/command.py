"""`ds4tui pull NAME` in a terminal or in a script."""

import sys
from pathlib import Path
from typing import TextIO

from ds4tui.library.listing import megabytes
from ds4tui.library.progress import PullProgress, Report
from ds4tui.library.pull import pull

QUARTERS = 4


def pull_command(name: str, data_dir: Path, out: TextIO | None = None) -> int:
    """Exit code; progress on standard error, the finished file on `out` (standard output)."""
    reporter = line_reporter(sys.stderr) if sys.stderr.isatty() else plain_reporter(sys.stderr)
    try:
        path = pull(name, data_dir, reporter)
    except KeyboardInterrupt:
        print("\nStopped; what was fetched is kept: run the same command to go on.",
              file=sys.stderr)  # fmt: skip
        return 130
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    print(f"{name} is ready: {path} ({megabytes(path.stat().st_size)})", file=out or sys.stdout)
    return 0


def line_reporter(stream: TextIO) -> Report:
    """One line of the terminal, drawn anew."""

    def report(progress: PullProgress) -> None:
        end = "\n" if progress.lasting else ""
        print(f"\r\x1b[K{progress}", end=end, file=stream, flush=True)

    return report


def plain_reporter(stream: TextIO) -> Report:
    """A line for each new step and each quarter of it."""
    last = ("", -1)

    def report(progress: PullProgress) -> None:
        nonlocal last
        total = progress.total_bytes
        now = (progress.step, progress.done_bytes * QUARTERS // total if total else 0)
        if now != last:
            last = now
            print(progress, file=stream, flush=True)

    return report
