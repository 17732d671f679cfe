"""`ds4tui pull` and `ds4tui models` in a terminal or in a script."""

import shutil
import sys
from pathlib import Path
from typing import TextIO

from ds4tui.library.discover import PART
from ds4tui.library.headers import ARCHITECTURES
from ds4tui.library.listing import list_models, listing_json, listing_text, megabytes
from ds4tui.library.progress import PullProgress, Report
from ds4tui.library.pull import pull
from ds4tui.library.recommended import catalogue_text

QUARTERS = 4


def pull_command(name: str | None, data_dir: Path, out: TextIO | None = None) -> int:
    """Exit code; progress on standard error, the finished file on `out` (standard output).
    Without a name, what there is to pull."""
    if name is None:
        print(catalogue_text(ARCHITECTURES), file=out or sys.stdout)
        return 0
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
    print(f"{name} is ready: {path} ({megabytes(_size_bytes(path))})", file=out or sys.stdout)
    return 0


def _size_bytes(path: Path) -> int:
    """Of a split model, of all its parts."""
    part = PART.match(path.name)
    parts = path.parent.glob(f"*-of-{part['count']}.gguf") if part else [path]
    stem = part["stem"] if part else ""
    return sum(p.stat().st_size for p in parts if p.name.startswith(stem))


def models_command(data_dir: Path, as_json: bool, catalogue: bool) -> int:
    """The exit code; a model that cannot be read is no failure of the list."""
    if catalogue:
        print(catalogue_text(ARCHITECTURES))
        return 0
    listing = list_models(data_dir)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(listing_json(listing) if as_json else listing_text(listing, width))
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
