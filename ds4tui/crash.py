"""Reports of what ended ds4tui, and exceptions in words that may be written down.

An exception's words may hold what a person wrote (`KeyError('my question')`), and so may the
values of its variables. Neither is written to a report, to the log or to the terminal: only
types, places and the lines of code there, unless DS4TUI_REPORT_WORDS=1 asks for the words.
"""

import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from ds4tui import __version__
from ds4tui.config import log_path
from ds4tui.errors import (
    ConfigError,
    ContextOverflow,
    DownloadError,
    GGUFError,
    ModelNotFound,
    OutOfMemory,
    StoreError,
)
from ds4tui.files import write_atomically

log = logging.getLogger(__name__)

WORDS_VARIABLE = "DS4TUI_REPORT_WORDS"
# Enough to see what happens again and again.
REPORTS_KEPT = 20
FRAMES_MAX = 60  # of one exception; of more the middle is left out
_PACKAGES = ("textual", "mlx", "numpy", "starlette", "uvicorn", "tokenizers", "pillow")
# Whose words are about files, sizes and numbers.
_HARMLESS = (
    ConfigError,
    ContextOverflow,
    DownloadError,
    GGUFError,
    ModelNotFound,
    OutOfMemory,
    StoreError,
)
_LEFT_OUT = (
    "What exceptions say and the values of variables are left out: they may hold what was "
    f"written. {WORDS_VARIABLE}=1 puts in what exceptions say."
)

_model = ""


def note_model(name: str) -> None:
    """`name` is the model that reports are about from now on."""
    global _model
    _model = name


def are_words_wanted() -> bool:
    return os.environ.get(WORDS_VARIABLE) == "1"


# --- exceptions in words ---


def discreet(error: BaseException) -> str:
    """One line about `error` that holds nothing of what was written."""
    name = type(error).__name__
    if are_words_wanted():
        return f"{name}: {error}"
    if isinstance(error, _HARMLESS):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{name}: {os.strerror(error.errno) if error.errno else error.strerror}"
    return name


def traceback_text(error: BaseException) -> str:
    """Where `error`, and what led to it, was raised: files, lines, code, types."""
    parts = []
    for each, why in reversed(list(_chain(error))):
        parts.append("\n".join([*_frames(each.__traceback__), discreet(each)]))
        if why:
            parts.append(why)
    return "\n\n".join(parts)


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """The newest first, each with how it came to the one before it in this order."""
    seen: set[int] = set()
    waiting: list[tuple[BaseException, str]] = [(error, "")]
    while waiting:
        each, why = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each, why
        if isinstance(each, BaseExceptionGroup):
            waiting += [(one, "is one of the exceptions of:") for one in each.exceptions]
        inner = getattr(each, "error", None)  # Textual's WorkerFailed
        if isinstance(inner, BaseException):
            waiting.append((inner, "ended the worker:"))
        if each.__cause__ is not None:
            waiting.append((each.__cause__, "was the cause of:"))
        elif each.__context__ is not None and not each.__suppress_context__:
            waiting.append((each.__context__, "was being handled when there came:"))


def _frames(traceback: TracebackType | None) -> Iterator[str]:
    yield "Traceback (most recent call last):"
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    half = FRAMES_MAX // 2
    for place, (code, number) in enumerate(frames):
        if len(frames) > FRAMES_MAX and half <= place < len(frames) - half:
            if place == half:
                yield f"  ... {len(frames) - FRAMES_MAX} more"
            continue
        yield f"  {_short(code.co_filename)}, line {number}, in {code.co_name}"
        line = linecache.getline(code.co_filename, number).strip()
        if line:
            yield f"    {line}"


def _short(file: str) -> str:
    """A file's path without the folders of whoever runs it."""
    parts = Path(file).parts
    for root in ("site-packages", "ds4tui"):
        if root in parts[:-1]:
            at = len(parts) - 1 - parts[::-1].index(root)
            return "/".join(parts[at + (root == "site-packages") :])
    return Path(file).name


# --- reports ---


def write_report(error: BaseException, what: str) -> Path | None:
    """Write what is known of `error`, which ended `what`; the file, None if none can be written."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = log_path().parent / "crashes"
    path = folder / f"crash-{stamp}-{os.getpid()}-{threading.get_native_id()}.txt"
    try:
        write_atomically(path, report_text(error, what).encode("utf-8", "backslashreplace"))
        os.chmod(path, 0o600)
        for old in sorted(folder.glob("crash-*.txt"))[:-REPORTS_KEPT]:
            old.unlink(missing_ok=True)
    except OSError as exc:
        log.warning("no crash report could be written: %s", exc)
        return None
    return path


def report_text(error: BaseException, what: str) -> str:
    import platform  # as below: --help must not wait for it

    lines = [
        f"ds4tui {__version__}: {what} ended by an error that nobody expected.",
        f"time: {time.strftime('%Y-%m-%d %H:%M:%S %z')}",
        f"thread: {threading.current_thread().name}",
        f"model: {_model or 'none was open'}",
        f"Python: {platform.python_version()} ({platform.python_implementation()})",
        f"machine: {platform.platform()}, {platform.machine()}",
        f"packages: {', '.join(_versions())}",
        "" if are_words_wanted() else f"{_LEFT_OUT}\n",
        traceback_text(error),
    ]
    return "\n".join(lines) + "\n"


def _versions() -> Iterator[str]:
    import importlib.metadata

    for name in _PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def message(error: BaseException, what: str, path: Path | None) -> str:
    """What a person is told on the terminal: one paragraph."""
    where = f"A report of it is in {path}" if path else "No report of it could be written"
    more = " what exceptions say is in it." if are_words_wanted() else " it holds no text of yours."
    return (
        f"ds4tui: {what} ended by an error that nobody expected ({type(error).__name__}). "
        f"Conversations are kept. {where}{f';{more}' if path else '.'} "
        "Please attach it if you tell the makers."
    )


@contextmanager
def reporting_threads() -> Iterator[None]:
    """Inside, what ends a thread or is raised where nobody can catch it is logged and reported,
    in place of Python's own words on the terminal."""

    def of_thread(told: threading.ExceptHookArgs) -> None:
        if told.exc_value is not None and told.exc_type is not SystemExit:
            name = told.thread.name if told.thread is not None else "?"
            log.error("the thread %s ended by an error", name, exc_info=told.exc_value)
            write_report(told.exc_value, f"the thread {name}")

    def unraisable(told: Any) -> None:
        if told.exc_value is not None:
            log.error("an error where it cannot be raised", exc_info=told.exc_value)

    before = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = of_thread, unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = before
