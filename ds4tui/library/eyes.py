"""Which mmproj file belongs to a model: those that lie beside it and the one that comes with the
package, and whether they fit it, told from the headers. Brings neither mlx nor Pillow."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from ds4tui.errors import GGUFError, ModelError
from ds4tui.library import screens
from ds4tui.library.discover import survey
from ds4tui.library.hub_names import is_vision_part

if TYPE_CHECKING:
    from ds4tui.engine.vision.config import VisionConfig

# Vectors that these projectors make are of use to these text models only: rows that see each
# other, and positions in three directions. Those of others go into any model of their width.
_FAMILIES = {
    "gemma3": ("gemma3",),
    "qwen2vl_merger": ("qwen2vl",),
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen3vl_merger": ("qwen3vl", "qwen35"),
}


# What their text models would need.
_UNREAD = {
    "deepseek4v": "deepseek4 does not route their rows by the bias that its file has for them, and "
    "does not let them see each other"
}


@dataclass(frozen=True, slots=True)
class Text:
    """What of a text model decides which vectors it takes."""

    architecture: str
    width: int


def beside(model: Path, models_folder: Path) -> list[Path]:
    """mmproj files in the model's folder; if there is none, in the folder above it (a repository
    keeps one for all quantisations), but for `models_folder`, which may hold any. What Ollama
    keeps is found by its manifests. The likeliest by name first."""
    if model.name.startswith("sha256-"):
        parts = (m.vision_part for m in survey(models_folder).models if m.path == model)
        return [part for part in parts if part is not None]
    found = _in_folder(model.parent)
    if not found and models_folder not in (model.parent, model.parent.parent):
        found = _in_folder(model.parent.parent)
    return sorted(found, key=lambda path: (-likeness(path.name, model.name), path.name))


def found_for(model: Path, models_folder: Path) -> list[Path]:
    """What is tried for a model when no mmproj is named, the likeliest first: what somebody put
    beside it counts more than what we bring."""
    return [*beside(model, models_folder), *screens.brought_for(model)]


def _in_folder(folder: Path) -> list[Path]:
    try:
        return [
            path
            for path in folder.glob("*.[gG][gG][uU][fF]")
            if is_vision_part(path.name) and path.is_file()
        ]
    except OSError:
        return []


def likeness(mmproj: str, model: str) -> int:
    """Letters and digits that both names share in runs of three and more."""
    a, b = ("".join(filter(str.isalnum, name.lower())) for name in (mmproj, model))
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks if block.size >= 3)


def require_fitting(name: str, config: "VisionConfig", text: Text) -> None:
    """Raises GGUFError, saying why, if vectors of the encoder in the file `name` cannot be rows
    of such a text model."""
    if config.text_width != text.width:
        raise GGUFError(
            f"{name} does not belong to this model: it makes vectors of {config.text_width:,} "
            f"numbers, and the model takes {text.width:,}.",
            "Choose the mmproj file that was made with the model.",
        )
    if config.projector in _UNREAD:
        raise GGUFError(
            f"{name} has the projector {config.projector}, whose vectors no text model that is "
            f"read takes: {_UNREAD[config.projector]}.",
            "Open the model without its mmproj (--mmproj none).",
        )
    families = _FAMILIES.get(config.projector)
    if families is not None and not text.architecture.startswith(families):
        raise GGUFError(
            f"{name} does not belong to this model: its projector {config.projector} is made for "
            f"{' or '.join(families)}, not for {text.architecture}.",
            "Choose the mmproj file that was made with the model.",
        )


def first_fitting(paths: Iterable[Path], text: Text) -> Path | None:
    """By their headers alone."""
    from ds4tui.engine.gguf import GGUFFile
    from ds4tui.engine.vision.config import VisionConfig

    for path in paths:
        try:
            with GGUFFile.open(path) as gguf:
                require_fitting(path.name, VisionConfig.of(gguf), text)
        except (ModelError, OSError):
            continue
        return path
    return None
