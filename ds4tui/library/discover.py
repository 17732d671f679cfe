"""Which models are on this machine: our own folder, and what other programs hold.

Nothing is opened here; folders are listed, and small manifests read. A folder that cannot be
read is told and passed over, a link that leads nowhere is no model, and walks are bounded in
depth, number and time.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from ds4tui.library import mlx_format, ollama
from ds4tui.library.hub_names import is_vision_part
from ds4tui.library.llama_cpp import manifest_names
from ds4tui.library.places import (
    hub_cache,
    llama_cpp_caches,
    lm_studio_models,
    ollama_models,
)

MAX_DEPTH = 8
MAX_ENTRIES = 50_000
MAX_SECONDS = 5.0

PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """A model by the name that `-m` takes. `path` is its (first) file; `source` the program that
    holds it; `vision_part` its image encoder; `problem` says why it cannot be opened, if that is
    known without looking into the file."""

    name: str
    path: Path
    source: str
    vision_part: Path | None = None
    problem: str = ""


@dataclass(slots=True)
class Survey:
    """`problems` are sentences about places that could not be searched."""

    models: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def survey(own_folder: Path) -> Survey:
    """Everything there is, our own folder first; a file that several places show is theirs who
    come first."""
    found = Survey()
    walk = _Walk(found.problems)
    found.models += _own(own_folder, walk)
    found.models += _hub(hub_cache(), walk)
    for folder in lm_studio_models():
        found.models += _by_folder(folder, "LM Studio", walk, flat=folder)
    for folder in llama_cpp_caches():
        found.models += _llama_cpp(folder, walk)
    for folder in ollama_models():
        found.models += [
            Found(m.name, m.path, "Ollama", m.vision_part, m.problem)
            for m in ollama.models(folder, found.problems)
        ]
    found.models = _once(found.models)
    return found


def _once(models: list[Found]) -> list[Found]:
    seen: set[tuple[int, int]] = set()
    kept = []
    for model in models:
        try:
            status = model.path.stat()
        except OSError:
            if model.problem:
                kept.append(model)
            continue
        key = (status.st_dev, status.st_ino)
        if key not in seen:
            seen.add(key)
            kept.append(model)
    return kept


# -- walking -----------------------------------------------------------------------------------


class _Walk:
    """Lists files below folders, all walks together within the bounds."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems
        self._entries_left = MAX_ENTRIES
        self._until_s = time.monotonic() + MAX_SECONDS
        self._is_told = False

    def files(self, top: Path) -> Iterator[Path]:
        """Regular files, through links too, each folder once."""
        waiting = [(top, 0)]
        visited: set[tuple[int, int]] = set()
        while waiting:
            folder, depth = waiting.pop()
            identity = self._identity(folder)
            if identity is None or identity in visited:
                continue
            visited.add(identity)
            for path, is_folder in self.entries(folder):
                if not is_folder:
                    yield path
                elif depth < MAX_DEPTH and not path.name.startswith("."):
                    waiting.append((path, depth + 1))

    def _identity(self, folder: Path) -> tuple[int, int] | None:
        """None if it is not there, or cannot be looked at, which is told."""
        try:
            status = folder.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            self._problems.append(f"{folder} cannot be read: {exc.strerror or exc}.")
            return None
        return status.st_dev, status.st_ino

    def entries(self, folder: Path) -> list[tuple[Path, bool]]:
        """What is in a folder (nothing, if it is not there), and whether each is a folder."""
        found: list[tuple[Path, bool]] = []
        if self._identity(folder) is None:
            return found
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not self._may_go_on(folder):
                        break
                    kind = _kind(entry)
                    if kind is not None:
                        found.append((Path(entry.path), kind is Kind.FOLDER))
        except OSError as exc:
            self._problems.append(f"{folder} cannot be read: {exc.strerror or exc}.")
        return sorted(found)

    def _may_go_on(self, folder: Path) -> bool:
        self._entries_left -= 1
        if self._entries_left > 0 and time.monotonic() < self._until_s:
            return True
        if not self._is_told:
            self._is_told = True
            self._problems.append(f"The search was cut short at {folder}: too much is there.")
        return False


class Kind(Enum):
    FOLDER, FILE = range(2)


def _kind(entry: "os.DirEntry[str]") -> Kind | None:
    """Through links; None for what is neither, and for links that lead nowhere or in circles."""
    try:
        if entry.is_dir():
            return Kind.FOLDER
        return Kind.FILE if entry.is_file() else None
    except OSError:
        return None


# -- what the files of a folder are ------------------------------------------------------------


def _own(folder: Path, walk: _Walk) -> list[Found]:
    models = _grouped([p for p in walk.files(folder) if _is_gguf(p)], "ds4tui")
    named = [replace(model, name=_plain_name(model.path, folder)) for model in models]
    return _with_eyes(named, flat=folder)


def _plain_name(path: Path, folder: Path) -> str:
    """Of a file right in the models folder its stem, else its path there."""
    part = PART.match(path.name)
    stem = part["stem"] if part else path.name.removesuffix(".gguf")
    return (path.parent.relative_to(folder) / stem).as_posix()


def _by_folder(top: Path, source: str, walk: _Walk, flat: Path | None) -> list[Found]:
    """Models by their paths below `top`: OWNER/REPO/FILE.gguf, as LM Studio keeps them."""
    files = list(walk.files(top))
    models = _grouped([path for path in files if _is_gguf(path)], source)
    named = [replace(m, name=m.path.relative_to(top).as_posix()) for m in models]
    named += [
        Found(folder.relative_to(top).as_posix(), folder, source, problem=problem)
        for folder, problem in mlx_format.folders(files)
    ]
    return _with_eyes(named, flat)


def _hub(cache: Path, walk: _Walk) -> list[Found]:
    found: list[Found] = []
    for repository in _folders(cache, walk):
        owner_and_name = repository.name.removeprefix("models--").split("--", 1)
        if not repository.name.startswith("models--") or len(owner_and_name) != 2:
            continue
        names: set[str] = set()
        for snapshot in snapshots(repository):
            for model in _by_folder(snapshot, "Hugging Face", walk, flat=None):
                inside = "" if model.name == "." else f"/{model.name}"
                name = "/".join(owner_and_name) + inside
                if name not in names:  # older snapshots say it again
                    names.add(name)
                    found.append(replace(model, name=name))
    return found


def _folders(top: Path, walk: _Walk) -> list[Path]:
    return [path for path, is_folder in walk.entries(top) if is_folder]


def snapshots(repository: Path) -> list[Path]:
    """The one that `main` points to first, then the newest."""
    try:
        main = (repository / "refs" / "main").read_text().strip()
    except (OSError, ValueError):
        main = ""
    try:
        found = [path for path in (repository / "snapshots").iterdir() if path.is_dir()]
        return sorted(found, key=lambda p: (p.name != main, -p.stat().st_mtime))
    except OSError:
        return []


def _llama_cpp(cache: Path, walk: _Walk) -> list[Found]:
    """A flat folder: OWNER_REPO_FILE.gguf, and manifests that tell the names apart. With
    LLAMA_CACHE set it has the layout of the hub's cache instead."""
    if any(path.name.startswith("models--") for path in _folders(cache, walk)):
        return [replace(model, source="llama.cpp") for model in _hub(cache, walk)]
    files = [p for p, is_folder in walk.entries(cache) if not is_folder]
    names = manifest_names(files)
    models = _grouped([path for path in files if _is_gguf(path)], "llama.cpp")
    named = [replace(m, name=names.get(m.path.name) or _plain_name(m.path, cache)) for m in models]
    return _with_eyes(named, flat=cache)


def _is_gguf(path: Path) -> bool:
    return path.name.lower().endswith(".gguf")


def _grouped(paths: list[Path], source: str) -> list[Found]:
    """One model for all parts of a split one: the first part that is there."""
    seen: set[tuple[Path, str, str]] = set()
    found = []
    for path in sorted(paths):
        if part := PART.match(path.name):
            key = (path.parent, part["stem"], part["count"])
            if key in seen:
                continue
            seen.add(key)
        found.append(Found(path.name, path, source))
    return found


def _with_eyes(models: list[Found], flat: Path | None) -> list[Found]:
    """Image encoders are no models; each goes to the models beside it and below. In the folder
    `flat`, which holds many models, it goes to those whose names begin as its own does."""
    eyes = [m.path for m in models if is_vision_part(m.path.name)]
    return [
        replace(model, vision_part=_eyes_of(model.path, eyes, flat))
        for model in models
        if model.path not in eyes
    ]


def _eyes_of(path: Path, eyes: list[Path], flat: Path | None) -> Path | None:
    for candidate in eyes:
        if candidate.parent == flat:
            before = candidate.name[: candidate.name.lower().index("mmproj")]
            if path.parent == flat and before and path.name.startswith(before):
                return candidate
        elif candidate.parent in path.parents:
            return candidate
    return None
