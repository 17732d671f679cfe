"""What `ds4tui models` shows: known models and the files of the models folder."""

from dataclasses import dataclass
from pathlib import Path

from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.resolve import catalogued_path, models_dir


@dataclass(frozen=True, slots=True)
class LocalModel:
    """`file_bytes` is what is on disk, 0 if nothing is; `state` is in words."""

    name: str
    path: Path
    file_bytes: int
    state: str
    about: str = ""


def local_models(data_dir: Path) -> list[LocalModel]:
    """Catalogue models first, present or not, then the other .gguf files of the folder."""
    found = []
    for model in CATALOGUE.values():
        path = catalogued_path(model, data_dir)
        size = path.stat().st_size if path.is_file() else 0
        state = f"not here: ds4tui pull {model.name}"
        if size:
            state = "ready" if size == model.file_bytes else f"damaged: ds4tui pull {model.name}"
        about = f"{model.title}, {model.licence}"
        found.append(LocalModel(model.name, path, size, state, about))
    known = {model.path for model in found}
    for path in sorted(models_dir(data_dir).glob("*.gguf")):
        if path not in known and path.is_file():
            found.append(LocalModel(path.stem, path, path.stat().st_size, "ready"))
    return found


def listing(data_dir: Path) -> str:
    """The table as text."""
    models = local_models(data_dir)
    width = max(len(model.name) for model in models)
    lines = [
        f"{m.name:<{width}}  {megabytes(m.file_bytes) if m.file_bytes else '-':>10}  {m.state}"
        + (f"  ({m.about})" if m.about else "")
        for m in models
    ]
    return "\n".join([*lines, "", f"Models are kept in {models_dir(data_dir)}"])


def megabytes(count: float) -> str:
    """Bytes as people read them; 1 MB is 1,000,000 bytes, as download sizes are given."""
    return f"{count / 1e6:,.1f} MB"
