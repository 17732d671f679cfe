"""From what a person calls a model to its file."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from ds4tui.errors import ModelNotFound
from ds4tui.library.catalogue import CATALOGUE, CatalogueModel
from ds4tui.library.discover import PART, Found, survey
from ds4tui.library.hub_names import looks_like_hub_name, quant_of

MODELS_FOLDER = "models"
MIN_PREFIX = 3
SHOWN = 6  # models that an ambiguous name lists


class UnknownModel(ModelNotFound):
    """The name is wrong, which a person can correct; a known model may merely be missing."""

    exit_code = 2


def models_dir(data_dir: Path) -> Path:
    return data_dir / MODELS_FOLDER


def catalogued_path(model: CatalogueModel, data_dir: Path) -> Path:
    return models_dir(data_dir) / model.file_name


def resolve_model(name_or_path: str, data_dir: Path) -> Path:
    """The file of a catalogue name, of a file in the models folder (with or without .gguf), of a
    path, or of a model that another program holds, by its name or the beginning of one; the
    first that there is. Of a split model, its first part.

    Raises ModelNotFound saying what was tried; its hint is the command that helps. It is an
    UnknownModel if nothing, or more than one thing, goes by that name.
    """
    if known := CATALOGUE.get(name_or_path.lower()):
        return _catalogued(known, data_dir)
    if not name_or_path:
        raise UnknownModel("The model has an empty name.", "Give one with -m NAME.")
    folder = models_dir(data_dir)
    tried = [folder / name_or_path, folder / f"{name_or_path}.gguf", _as_path(name_or_path)]
    for path in tried:
        if _is(path, Path.is_file):
            return path
    found = survey(folder).models
    if (model := named(name_or_path, found)) is not None:
        return _usable(model)
    if _is(tried[-1], Path.is_dir):
        raise UnknownModel(
            f"{tried[-1]} is a folder, not a model file.", "Give the .gguf file inside it."
        )
    others = sum(model.source != "ds4tui" for model in found)
    models = "model" if others == 1 else "models"
    raise UnknownModel(
        f"There is no model {name_or_path!r}: it is neither a known name nor a file; "
        f"looked in {folder}, for the path {tried[-1]}, and among {others} {models} of other "
        f"programs.",
        _hint(name_or_path, folder, found),
    )


def named(text: str, models: list[Found]) -> Found | None:
    """The one model that goes by `text`, or else the one that has a name beginning with it; None
    if there is none. Raises ModelNotFound if there are several."""
    wanted = text.casefold()
    for matches in (str.__eq__, str.startswith):
        hits = [model for model in models if any(matches(name, wanted) for name in _names(model))]
        # A name that begins with a letter or two says nothing yet.
        if matches is str.startswith and len(wanted) < MIN_PREFIX:
            return None
        if len(hits) == 1:
            return hits[0]
        if hits:
            listed = "; ".join(f"{m.name} ({m.source}, {m.path})" for m in hits[:SHOWN])
            more = f"; and {len(hits) - SHOWN} more" if len(hits) > SHOWN else ""
            raise UnknownModel(
                f"{text!r} may be {len(hits)} models: {listed}{more}.",
                "Give the whole name, or the path.",
            )
    return None


def _names(model: Found) -> set[str]:
    """All that a model goes by: its name, with and without .gguf and part numbers; the last
    step of it; and OWNER/REPO:QUANT."""
    whole = model.name.casefold()
    bare = PART.sub(r"\g<stem>", whole).removesuffix(".gguf")
    names = {whole, bare, bare.rpartition("/")[2]}
    steps = whole.split("/")
    if len(steps) > 2 and (quant := quant_of(model.path.name)):
        names.add(f"{steps[0]}/{steps[1]}:{quant.casefold()}")
    return names


def _usable(model: Found) -> Path:
    if model.problem:
        raise ModelNotFound(
            f"{model.name} ({model.source}) cannot be opened: {model.problem}.",
            "Run: ds4tui models (lists what there is)",
        )
    return model.path


def display_name(path: Path, data_dir: Path) -> str:
    """How people and clients call the model in `path`: its catalogue name, else its stem."""
    for model in CATALOGUE.values():
        if path == catalogued_path(model, data_dir):
            return model.name
    if path.name.startswith("sha256-"):  # a blob of Ollama, whose name says nothing
        for found in survey(models_dir(data_dir)).models:
            if found.path == path:
                return found.name
    part = PART.match(path.name)
    return part["stem"] if part else path.stem


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


def _hint(name: str, folder: Path, found: list[Found]) -> str:
    close = get_close_matches(name.lower(), [*CATALOGUE, *(model.name for model in found)], n=1)
    if close:
        pulling = close[0] in CATALOGUE and not (folder / CATALOGUE[close[0]].file_name).exists()
        return f"Did you mean {close[0]}?" + (f" Run: ds4tui pull {close[0]}" if pulling else "")
    if looks_like_hub_name(name) and not name.endswith("/"):
        return f"If it is a model of the Hugging Face hub, run: ds4tui pull {name}"
    return "Run: ds4tui models (lists what there is), or: ds4tui pull smollm2"
