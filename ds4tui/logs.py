"""Where log lines go: a file that rotates, and standard error for `serve`.

What people type and what models answer is never logged.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler

from ds4tui.config import log_path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# Some days of ordinary use; a request is one line of about 200 bytes.
MAX_FILE_BYTES = 2 * 2**20
OLD_FILES = 3


@contextmanager
def logging_set_up(level: str, to_stderr: bool = False) -> Iterator[None]:
    """Log ds4tui from `level` (debug, info, warning, error) up, all else from warning up.

    A log file that cannot be written is told on standard error and done without.
    """
    handlers = [handler for handler in (_file(), _stderr(to_stderr)) if handler is not None]
    root, own = logging.getLogger(), logging.getLogger("ds4tui")
    before = own.level
    own.setLevel(level.upper())
    logging.captureWarnings(True)
    for handler in handlers:
        handler.setFormatter(logging.Formatter(FORMAT))
        root.addHandler(handler)
    try:
        yield
    finally:
        own.setLevel(before)
        logging.captureWarnings(False)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _file() -> logging.Handler | None:
    path = log_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return RotatingFileHandler(
            path,
            maxBytes=MAX_FILE_BYTES,
            backupCount=OLD_FILES,
            encoding="utf-8",
            errors="backslashreplace",
        )
    except OSError as exc:
        print(f"ds4tui: {path} cannot be written ({exc.strerror}): no log file", file=sys.stderr)
        return None


def _stderr(wanted: bool) -> logging.Handler | None:
    return logging.StreamHandler(sys.stderr) if wanted else None
