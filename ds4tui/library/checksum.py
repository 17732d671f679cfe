"""Digests of files, with progress."""

import hashlib
from pathlib import Path

from ds4tui.library.progress import Meter, Report

CHUNK_BYTES = 2**20


def is_checksum(text: str) -> bool:
    """Whether `text` is a sha256 or a git blob id, in hexadecimal."""
    return len(text) in (40, 64) and all(digit in "0123456789abcdef" for digit in text)


def matches(path: Path, checksum: str, report: Report, step: str = "checking") -> bool:
    """Whether the file is what `checksum` says: a sha256 (64 digits; what Git LFS uses), or a
    git blob id (40 digits; sha1 over "blob", the length, and the content)."""
    size = path.stat().st_size
    if len(checksum) == 40:
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    meter = Meter(step, size, report)
    meter.start(0)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            meter.add(len(chunk))
    return digest.hexdigest() == checksum
