"""One file over HTTP into a .part file, going on where an earlier try stopped."""

import errno
import re
import shutil
import time
import urllib.error
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path
from typing import BinaryIO, cast

from ds4tui.errors import DownloadError
from ds4tui.library import web
from ds4tui.library.progress import Meter, Report

CHUNK_BYTES = 256 * 2**10

# Tries in a row that bring nothing; a try that brings bytes starts the count anew.
FRUITLESS_TRIES = 3

# Networks that deliver files refuse to send more than 50 GB in one answer: more is asked for in
# pieces.
PIECE_BYTES = 32 * 10**9

# Beside what is written there must be room for everybody else.
SPARE_BYTES = 16 * 2**20

MOVED_BY = "DS4TUI_DATA_DIR (models of the hub: HF_HUB_CACHE)"


class _Broken(Exception):
    """The connection ended before the file did."""


def download(
    address: web.Address,
    part: Path,
    expected_bytes: int,
    report: Report,
    pause: Callable[[float], None] = time.sleep,
    *,
    step: str = "fetching",
) -> None:
    """Bring `part` to its full length. What was fetched stays there whatever happens.

    Whether the bytes are the right ones is not known here. Raises DownloadError.
    """
    fruitless = 0
    while True:
        before = length_of(part)
        try:
            _fetch(address, part, expected_bytes, report, step)
            is_one_of_pieces = expected_bytes > PIECE_BYTES
            if not (is_one_of_pieces and before < length_of(part) < expected_bytes):
                return
        except _Broken as exc:
            fruitless = 0 if length_of(part) > before else fruitless + 1
            if fruitless >= FRUITLESS_TRIES:
                raise web.unreachable(address.url, exc.__cause__ or exc) from exc
            pause(float(fruitless))


def length_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raises DownloadError, with both numbers, if the disk has too little room."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + SPARE_BYTES:
        raise DownloadError(
            f"The disk of {folder} has {free / 1e6:,.0f} MB free, "
            f"{(needed_bytes + SPARE_BYTES) / 1e6:,.0f} MB are needed.",
            f"Make room, or choose another folder with {MOVED_BY}.",
        )


def disk_error(path: Path, exc: OSError) -> DownloadError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(
            f"The disk is full: {path} could not be written.",
            "Make room and run the same command again; what was fetched is kept.",
        )
    return DownloadError(
        f"{exc.filename or path} cannot be used: {exc.strerror or exc}.",
        f"Check who owns the folder, or choose another one with {MOVED_BY}.",
    )


def _fetch(
    address: web.Address, part: Path, expected_bytes: int, report: Report, step: str
) -> None:
    start = length_of(part)
    in_pieces = expected_bytes > PIECE_BYTES
    last = str(min(start + PIECE_BYTES, expected_bytes) - 1) if in_pieces else ""
    try:
        asks = {"Range": f"bytes={start}-{last}"} if start or in_pieces else {}
        response = web.get(address, asks)
    except urllib.error.HTTPError as exc:  # 416: nothing is left to fetch
        exc.close()
        return
    with response:
        if start and not _goes_on_at(response, start):
            start = 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else 0
        meter = Meter(step, expected_bytes if in_pieces or not total else total, report)
        meter.start(start)
        with _opened(part, "ab" if start else "wb") as file:
            _copy(response, file, part, meter)
    if total and meter.done_bytes != total:
        raise _Broken(f"the connection ended after {meter.done_bytes:,} of {total:,} bytes")


def _goes_on_at(response: HTTPResponse, start: int) -> bool:
    """False if the server sends the whole file, as one that knows no ranges does."""
    begins = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return response.status == 206 and begins is not None and int(begins[1]) == start


def _opened(part: Path, mode: str) -> BinaryIO:
    try:
        # Unbuffered: what has arrived is in the file when the process is killed.
        return cast(BinaryIO, open(part, mode, buffering=0))
    except OSError as exc:
        raise disk_error(part, exc) from exc


def _copy(response: HTTPResponse, file: BinaryIO, part: Path, meter: Meter) -> None:
    while True:
        try:
            chunk = response.read(CHUNK_BYTES)
        except web.BROKEN as exc:
            raise _Broken("the connection broke") from exc
        if not chunk:
            return
        try:
            _write_all(file, chunk)
        except OSError as exc:
            raise disk_error(part, exc) from exc
        meter.add(len(chunk))


def _write_all(file: BinaryIO, chunk: bytes) -> None:
    """A raw write may take only a part, just before the disk is full."""
    left = memoryview(chunk)
    while left:
        left = left[file.write(left) :]
