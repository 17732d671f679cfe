"""Folders in MLX's own format (config.json with a quantization, and safetensors): not read here,
but named, with the GGUF to get instead."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ds4tui.library.recommended import TEXT, VISION

MAX_CONFIG_BYTES = 2**22

# What publishers put behind a model's name: -4bit, -8bit-DWQ, -bf16, -MLX-6bit, -mxfp4, ..
_ENDINGS = re.compile(
    r"(?:[-_.](?:mlx|\d+(?:\.\d+)?[-_]?bits?|q\d|bf16|fp16|mxfp[48]|nvfp4|dwq|hi|awq|qat)[\w.]*)+$",
    re.IGNORECASE,
)


def folders(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Folders of MLX models among `files`, and what to say of each."""
    by_folder: dict[Path, set[str]] = {}
    for path in files:
        by_folder.setdefault(path.parent, set()).add(path.name)
    for folder, names in sorted(by_folder.items()):
        has_weights = any(name.endswith(".safetensors") for name in names)
        if has_weights and "config.json" in names and _is_quantised(folder / "config.json"):
            yield folder, f"MLX format, not read; get GGUF: {advice(_repository(folder))}"


def _is_quantised(config: Path) -> bool:
    try:
        if config.stat().st_size > MAX_CONFIG_BYTES:
            return False
        keys = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    # transformers' own key is quantization_config; MLX writes "quantization" (and a copy).
    return isinstance(keys, dict) and isinstance(keys.get("quantization"), dict)


def _repository(folder: Path) -> str:
    """The repository's own name: of a snapshot of the hub's cache, the name in models--.. ."""
    for part in reversed(folder.parts):
        if part.startswith("models--"):
            return part.split("--")[-1]
    return folder.name


def advice(name: str) -> str:
    """The command that gets the same model as a GGUF if we know one, else what to look for."""
    base = _ENDINGS.sub("", name)
    for model in (*TEXT, *VISION):
        known = model.repo.rpartition("/")[2].removesuffix("-GGUF")
        if base.lower() in (known.lower(), known.rpartition("_")[2].lower()):
            return f"ds4tui pull {model.pull_name}"
    return f"a repository named {base}-GGUF (huggingface.co/models?search={base}-GGUF)"
