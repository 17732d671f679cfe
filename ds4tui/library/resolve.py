"""From what a person calls a model to its file."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from ds4tui.errors import ModelNotFound
from ds4tui.library.catalogue import CATALOGUE, CatalogueModel

MODELS_FOLDER = "models"


def models_dir(data_dir: Path) -> Path:
    return data_dir / MODELS_FOLDER


def catalogued_path(model: CatalogueModel, data_dir: Path) -> Path:
    return models_dir(data_dir) / model.file_name


def resolve_model(name_or_path: str, data_dir: Path) -> Path:
    """The file of a catalogue name, of a file in the models folder (with or without .gguf), or
    of a path; the first that there is.

    Raises ModelNotFound saying what was tried; its hint is the command that helps.
    """
    if known := CATALOGUE.get(name_or_path.lower()):
        return _catalogued(known, data_dir)
    if not name_or_path:
        raise ModelNotFound("The model has an empty name.", "Give one with -m NAME.")
    folder = models_dir(data_dir)
    tried = [folder / name_or_path, folder / f"{name_or_path}.gguf", _as_path(name_or_path)]
    for path in tried:
        if _is(path, Path.is_file):
            return path
    if _is(tried[-1], Path.is_dir):
        raise ModelNotFound(
            f"{tried[-1]} is a folder, not a model file.", "Give the .gguf file inside it."
        )
    raise ModelNotFound(
        f"There is no model {name_or_path!r}: it is neither a known name nor a file; "
        f"looked in {folder} and for the path {tried[-1]}.",
        _hint(name_or_path, folder),
    )


def display_name(path: Path, data_dir: Path) -> str:
    """How people and clients call the model in `path`: its catalogue name, else its stem."""
    for model in CATALOGUE.values():
        if path == catalogued_path(model, data_dir):
            return model.name
    return path.stem


def _catalogued(model: CatalogueModel, data_dir: Path) -> Path:
    path = catalogued_path(model, data_dir)
    command = f"Run: ds4tui pull {model.name}"
    try:
        found_bytes = path.stat().st_size
    except FileNotFoundError:
        raise ModelNotFound(
            f"The model {model.name} is not on this machine yet ({path} does not exist).", command
        ) from None
    if found_bytes != model.file_bytes:
        raise ModelNotFound(
            f"{path} is damaged: it has {found_bytes:,} bytes instead of {model.file_bytes:,}.",
            command,
        )
    return path


def _is(path: Path, test: Callable[[Path], bool]) -> bool:
    try:
        return test(path)
    except (OSError, ValueError):  # a name that no file can have, a folder we may not enter
        return False


def _as_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~somebody who is not there
        return Path(text)


def _hint(name: str, folder: Path) -> str:
    local = [path.stem for path in sorted(folder.glob("*.gguf"))]
    close = get_close_matches(name.lower(), [*CATALOGUE, *local], n=1)
    if close:
        pulling = close[0] in CATALOGUE and not (folder / CATALOGUE[close[0]].file_name).exists()
        return f"Did you mean {close[0]}?" + (f" Run: ds4tui pull {close[0]}" if pulling else "")
    return "Run: ds4tui models (lists what there is), or: ds4tui pull smollm2"
