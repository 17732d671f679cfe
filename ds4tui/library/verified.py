"""What is known of a model's file: a marker beside it says when its checksum was found right.

A file is trusted without reading it only while its size and time are those that it had then.
Models of the hub need none: their blobs are named by their checksums and never written again.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ds4tui.errors import ModelError
from ds4tui.files import write_atomically
from ds4tui.library import checksum
from ds4tui.library.catalogue import CATALOGUE, CatalogueModel
from ds4tui.library.resolve import catalogued_path

WORK_FOLDER = ".pull"  # inside the models folder: the same disk, so that a rename is atomic


def require_sound(path: Path, data_dir: Path, say: Callable[[str], None]) -> None:
    """Raise ModelError if `path` is the place of a model of the catalogue and its content is not
    that model's. Reads the file, with words about it, only if it changed since it was verified or
    never was."""
    for model in CATALOGUE.values():
        if path == catalogued_path(model, data_dir) and not is_marked(path, model):
            _verify(path, model, say)


def _verify(path: Path, model: CatalogueModel, say: Callable[[str], None]) -> None:
    try:
        is_right = checksum.matches(path, model.sha256, lambda at: say(f"{model.name}: {at}"))
    except OSError as exc:
        raise ModelError(f"{path} cannot be read: {exc.strerror or exc}.") from exc
    if not is_right:
        raise ModelError(
            f"{model.name} is damaged: the content of {path} is not what its checksum says.",
            f"Run: ds4tui pull {model.name}",
        )
    mark(path, model)


def is_marked(path: Path, model: CatalogueModel) -> bool:
    try:
        return bool(json.loads(_marker(path).read_bytes()) == _verified_now(path, model))
    except (OSError, ValueError):
        return False


def has_changed(path: Path, model: CatalogueModel) -> bool:
    """Whether it was verified once and is not what it was then."""
    return _marker(path).exists() and not is_marked(path, model)


def mark(path: Path, model: CatalogueModel) -> None:
    """Remember that the content is right."""
    # A folder that we may only read costs the reading of the file each time, nothing else.
    with suppress(OSError):
        write_atomically(_marker(path), json.dumps(_verified_now(path, model)).encode())


def _marker(path: Path) -> Path:
    return path.parent / WORK_FOLDER / f"{path.name}.verified"


def _verified_now(path: Path, model: CatalogueModel) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": model.sha256, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
