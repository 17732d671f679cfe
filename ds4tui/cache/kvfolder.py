"""The folder of the disk tier: who may write in it, what lies in it, how much room there is.

One process writes: it holds a kernel lock on the file `lock`, which ends with it however it ends.
Every file in the folder counts, whoever put it there. Files that are not ours are never removed.
"""

import errno
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
# As `kvfile` and `write_pins` make them: another file that begins like them is somebody's.
_TEMPORARY_NAME = re.compile(re.escape(TEMPORARY_PREFIX) + r"\d+-(\d+-\d+|pins)")
_INDEX_NAMES = frozenset(INDEX_FILES)
_OURS = {LOCK_NAME, PINS_NAME, *INDEX_FILES}
_PINS_BYTES_MAX = 64 << 20

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

    def __init__(self, path: Path, *, is_made: bool = True) -> None:
        """Make the folder if need be and `is_made`, for its owner only. One that is there stays
        as it is: it may be another's, and our files are their owner's only."""
        self.path = path
        self._lock = -1
        if is_made:
            path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)

    def is_open_to_others(self) -> bool:
        """Whether others may put files there and take ours away."""
        return bool(self.path.stat().st_mode & 0o022)

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
        return tuple(_seen(self.path))

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

    def names(self) -> frozenset[str]:
        """Of what lies in it, but for the index, which has files now and then."""
        return frozenset(os.listdir(self.path)) - _INDEX_NAMES

    def changed_at(self) -> int:
        """When a name came or went, in ns."""
        return self.path.stat().st_mtime_ns

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already are no error."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def read_pins(self) -> frozenset[str]:
        """Names of the records that people pinned; those of no record are left out."""
        return frozenset(filter(is_record_name, self._pin_lines()))

    def write_pins(self, names: Iterable[str]) -> None:
        """OSError, too, if what is there is not a list that we wrote: it stays as it is."""
        if any(line and not is_record_name(line) for line in self._pin_lines()):
            raise OSError(errno.EEXIST, f"the file {PINS_NAME} in it is not ours and stays")
        temporary = self.path / f"{TEMPORARY_PREFIX}{os.getpid()}-{PINS_NAME}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, _FILE_MODE), "w") as file:
                file.write("".join(f"{name}\n" for name in sorted(names)))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path / PINS_NAME)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(self.path)

    def _pin_lines(self) -> list[str]:
        # Not through a link; and a pipe must not make us wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            opened = os.open(self.path / PINS_NAME, flags)
        except FileNotFoundError:
            return []
        with os.fdopen(opened, "rb") as file:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode) or found.st_size > _PINS_BYTES_MAX:
                raise OSError(errno.EINVAL, f"{PINS_NAME} is no list of pins")
            return file.read().decode("ascii", errors="replace").split("\n")


def is_record_name(name: str) -> bool:
    return _RECORD_NAME.fullmatch(name) is not None


def _seen(folder: Path) -> Iterator[SeenFile]:
    found = list(os.scandir(folder))
    prefixes = [""] * len(found)
    while found:
        entry, prefix = found.pop(), prefixes.pop()
        name = prefix + entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                inside = list(os.scandir(entry.path))
                found += inside
                prefixes += [f"{name}/"] * len(inside)
                continue
            state = entry.stat(follow_symlinks=False)
        except OSError:
            continue  # it went while we looked, is not for our eyes, or lies too deep
        nbytes = state.st_size if stat.S_ISREG(state.st_mode) else 0
        yield SeenFile(name, _kind(name), nbytes, state.st_mtime_ns)


def _kind(name: str) -> FileKind:
    if is_record_name(name):
        return "record"
    if _TEMPORARY_NAME.fullmatch(name) is not None:
        return "temporary"
    return "own" if name in _OURS else "foreign"
