"""Where log lines go: a file that rotates, and standard error for `serve`.

What people type and what models answer is never logged, nor what exceptions say, which may hold
it (crash.py).
"""

import copy
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from types import TracebackType
from typing import Any

from ds4tui.config import log_path
from ds4tui.crash import are_words_wanted, discreet, traceback_text

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# Some days of ordinary use; a request is one line of about 200 bytes.
MAX_FILE_BYTES = 2 * 2**20
OLD_FILES = 3


class DiscreetFormatter(logging.Formatter):
    """Writes of exceptions, as arguments or with a traceback, what crash.py lets through."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)
        record.exc_text = None  # as another handler may have written it
        if isinstance(record.args, tuple):
            record.args = tuple(map(_discreet, record.args))
        elif isinstance(record.args, Mapping):
            record.args = {name: _discreet(value) for name, value in record.args.items()}
        if record.name == "asyncio" and record.exc_info and not are_words_wanted():
            # Its own words spell out tasks and the arguments of callbacks.
            record.msg, record.args = "a task or callback failed", ()
        return super().format(record)

    def formatException(
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        return traceback_text(ei[1]) if ei[1] is not None else ""


def _discreet(value: Any) -> Any:
    return discreet(value) if isinstance(value, BaseException) else value


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
        handler.setFormatter(DiscreetFormatter(FORMAT))
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
