"""The folder of the disk tier: who may write in it, what lies in it, how much room there is.

One process writes: it holds a kernel lock on the file `lock`, which ends with it however it ends.
Every file in the folder counts, whoever put it there. Files that are not ours are never removed.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ds4tui.cache.kvfile import TEMPORARY_PREFIX, sync_folder
from ds4tui.cache.kvindex import INDEX_FILES

LOCK_NAME = "lock"
PINS_NAME = "pins"
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_RECORD_NAME = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{16}\.page|\.snapshot)")
_OURS = {LOCK_NAME, PINS_NAME, *INDEX_FILES}

FileKind = Literal["record", "temporary", "own", "foreign"]


@dataclass(frozen=True, slots=True)
class SeenFile:
    """`own` files are the lock, the pins and the index."""

    name: str
    kind: FileKind
    nbytes: int
    mtime_ns: int


class Folder:
    """`path` and, if this process may write there, its lock. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        """Make the folder if need be, for its owner only."""
        self.path = path
        self._lock = -1
        path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        found = path.stat()
        if found.st_mode & 0o077 and found.st_uid == os.getuid():
            path.chmod(_FOLDER_MODE)

    def take_lock(self) -> bool:
        """Whether this process alone writes here from now on; False if another one does."""
        self.give_lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(self.path / LOCK_NAME, flags, _FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        return True

    def give_lock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def is_ours(self) -> bool:
        """Whether the lock that this process holds is still that of the folder: both may have
        been deleted, and made anew by another process."""
        if self._lock < 0:
            return False
        try:
            there = os.stat(self.path / LOCK_NAME, follow_symlinks=False)
        except OSError:
            return False
        held = os.fstat(self._lock)
        return (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino)

    def files(self) -> tuple[SeenFile, ...]:
        """All files, those of folders in it included; links are not followed."""
        return tuple(_seen(self.path, ""))

    def space(self) -> tuple[int, int]:
        """Bytes that are free for this user, and all of the file system."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def index_bytes(self) -> int:
        """Of the files of the index."""
        total = 0
        for name in INDEX_FILES:
            with suppress(FileNotFoundError):
                total += (self.path / name).stat().st_size
        return total

    def changed_at(self) -> int:
        """When a name came or went, in ns."""
        return self.path.stat().st_mtime_ns

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already are no error."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def read_pins(self) -> frozenset[str]:
        """Names of the records that people pinned; those of no record are left out."""
        try:
            text = (self.path / PINS_NAME).read_text("ascii", errors="replace")
        except FileNotFoundError:
            return frozenset()
        return frozenset(filter(is_record_name, text.split("\n")))

    def write_pins(self, names: Iterable[str]) -> None:
        temporary = self.path / f"{TEMPORARY_PREFIX}{os.getpid()}-{PINS_NAME}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, _FILE_MODE), "w") as file:
            file.write("".join(f"{name}\n" for name in sorted(names)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path / PINS_NAME)
        sync_folder(self.path)


def is_record_name(name: str) -> bool:
    return _RECORD_NAME.fullmatch(name) is not None


def _seen(folder: Path, prefix: str) -> Iterator[SeenFile]:
    with os.scandir(folder) as found:
        for entry in found:
            name = prefix + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from _seen(folder / entry.name, f"{name}/")
                    continue
                state = entry.stat(follow_symlinks=False)
            except (FileNotFoundError, PermissionError):
                continue  # it went while we looked, or is not for our eyes
            nbytes = state.st_size if stat.S_ISREG(state.st_mode) else 0
            yield SeenFile(name, _kind(name), nbytes, state.st_mtime_ns)


def _kind(name: str) -> FileKind:
    if is_record_name(name):
        return "record"
    if name.startswith(TEMPORARY_PREFIX):
        return "temporary"
    return "own" if name in _OURS else "foreign"
