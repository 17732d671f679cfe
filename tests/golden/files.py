"""The golden files, as tests read them; needs neither torch nor mlx.

    golden_path("llama")    the GGUF, unpacked on first use
    golden("llama")         its arrays: ids, logits, ..

GGUF files are kept as .xz. They are unpacked to `unpacked/` beside them (git ignores it), under
a name that holds the content's hash, so that a changed file is never mistaken for the old one.
"""

import hashlib
import json
import lzma
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
MANIFEST = FOLDER / "manifest.json"
UNPACKED = FOLDER / "unpacked"

# lp and pb of 2: literals are told apart by their place in a 4-byte float, which is what makes
# the zero bytes of coarse weights free.
FLOAT32_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 2, "lp": 2, "pb": 2}]


# Prompts of families that see: texts, and which of two pictures (make/scenes.py).
SCENES: dict[str, list[str | int]] = {
    "start": [0, " so?"],
    "two": ["a ", 0, " and ", 1, " differ?"],
    "twice": ["a ", 0, " and ", 0, " differ?"],
    "swapped": ["a ", 1, " and ", 0, " differ?"],
    "touching": ["a", 0, 1, "!"],
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def manifest() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(MANIFEST.read_text())
    return content


def families() -> dict[str, dict[str, Any]]:
    """Rows of the manifest by family name."""
    rows: dict[str, dict[str, Any]] = manifest()["families"]
    return rows


def row(name: str) -> dict[str, Any]:
    return families()[name]


def golden_path(name: str) -> Path:
    """The GGUF file of family `name`."""
    return unpack(f"{name}.gguf", row(name)["sha256"][f"{name}.gguf"])


def projector_path(name: str) -> Path:
    """The mmproj file of vision family `name`."""
    return unpack(f"{name}.mmproj.gguf", row(name)["sha256"][f"{name}.mmproj.gguf"])


def unpack(name: str, digest: str) -> Path:
    """`name`.xz as a plain file. Raises ValueError when it is not what the manifest says."""
    path = UNPACKED / digest[:12] / name
    if path.exists():
        return path
    content = lzma.decompress((FOLDER / f"{name}.xz").read_bytes())
    if sha256(content) != digest:
        raise ValueError(f"{name}.xz does not hold what manifest.json says: write both again")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)  # another test process may be doing the same
    return path


@cache
def scenes(name: str) -> dict[str, np.ndarray]:
    """What make/scenes.py wrote of family `name`."""
    with np.load(FOLDER / "scenes" / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    """Arrays of family `name`, read-only.

    ids           int32 [T], the prompt (a vision prompt holds the image token once a row)
    logits        float32 [T, 288] of the untouched transformers class
    mimic_logits  the same of the class made to round as llama.cpp does; some families
    image         uint8 [height, width, 3], with `before` and `after`, the texts around it, and
                  the transformers model's other inputs by their own names; vision families
    """
    with np.load(FOLDER / f"{name}.npz") as arrays:
        loaded = {key: arrays[key] for key in arrays.files}
    for array in loaded.values():
        array.flags.writeable = False
    return loaded
