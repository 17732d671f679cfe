"""The manifests of llama.cpp's own cache: manifest=OWNER=REPO=TAG.json, with the name of the
file that the tag stands for (common/arg.cpp, `-hf`; until 2026-03, when it moved to the cache of
the Hugging Face hub)."""

import json
from collections.abc import Iterable
from pathlib import Path

MAX_MANIFEST_BYTES = 2**20


def manifest_names(files: Iterable[Path]) -> dict[str, str]:
    """From a file's name in the cache to OWNER/REPO:TAG."""
    names: dict[str, str] = {}
    for path in files:
        parts = path.name.removesuffix(".json").split("=")
        if len(parts) != 4 or parts[0] != "manifest" or not path.name.endswith(".json"):
            continue
        _, owner, repository, tag = parts
        if file := _file_of(path):
            names[f"{owner}_{repository}_{file}".replace("/", "_")] = f"{owner}/{repository}:{tag}"
    return names


def _file_of(manifest: Path) -> str:
    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            return ""
        name = json.loads(manifest.read_bytes())["ggufFile"]["rfilename"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return name if isinstance(name, str) else ""
