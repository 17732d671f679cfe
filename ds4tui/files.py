"""Writing files so that a reader never sees half of one, whenever the writer is killed."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; the folder is made if need be. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        move_into_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def move_into_place(temporary: Path, path: Path) -> None:
    """Rename a finished, synced file over `path` and sync the folder: after a power cut the
    name stands for the old bytes or the new ones."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
