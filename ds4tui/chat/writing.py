"""Which replies are being written, also by other processes, and which were left by one that died.

A reply that is partial has a file beside the database, on which whoever writes it holds a lock. The
system drops that however the process ends, so a file that can be locked says: nobody goes on with
this one. Where there is no file, or files cannot be locked, nothing is known.
"""

import fcntl
import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)

# What a dead process left is of use while its reply is fresh; after that nobody asks any more.
LEFT_S = 600.0


class Writing:
    """Of the replies of one database; ":memory:" has one process only. Thread-safe."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._held: dict[int, int] = {}  # open files by reply
        self._lock = threading.Lock()

    def hold(self, reply_id: int) -> None:
        """This process writes that reply. To be called before others can see it."""
        if self._database == ":memory:":
            return
        path = self._path(reply_id)
        with self._lock:
            self._let_go(reply_id)
            try:
                file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except OSError as exc:
                log.debug("%s: others learn late if this process dies: %s", path, exc)
                return
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                log.debug("%s: others learn late if this process dies: %s", path, exc)
                path.unlink(missing_ok=True)
                os.close(file)
                return
            self._held[reply_id] = file

    def release(self, reply_id: int) -> None:
        """It is over. Nothing happens if it was not held."""
        with self._lock:
            self._let_go(reply_id)

    def is_held(self, reply_id: int) -> bool | None:
        """Whether a process writes that reply; None if it cannot be told."""
        with self._lock:
            if reply_id in self._held:
                return True
        try:
            file = os.open(self._path(reply_id), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return None
        finally:
            os.close(file)  # with the lock, if it was got
        return False

    def close(self) -> None:
        with self._lock:
            for reply_id in tuple(self._held):
                self._let_go(reply_id)

    def tidy(self) -> None:
        """Remove the files that dead processes left some time ago."""
        if self._database == ":memory:":
            return
        before_number = f"{os.path.basename(self._database)}.writing-"
        try:
            for path in Path(self._database).parent.iterdir():
                number = path.name.removeprefix(before_number)
                if number == path.name or not number.isdecimal():
                    continue
                is_old = time.time() - path.stat().st_mtime > LEFT_S
                if is_old and self.is_held(int(number)) is False:
                    path.unlink(missing_ok=True)
        except OSError as exc:
            log.debug("what dead processes left stays: %s", exc)

    def _let_go(self, reply_id: int) -> None:
        file = self._held.pop(reply_id, None)
        if file is not None:
            self._path(reply_id).unlink(missing_ok=True)
            os.close(file)

    def _path(self, reply_id: int) -> Path:
        return Path(f"{self._database}.writing-{reply_id}")
