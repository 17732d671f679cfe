"""What Ollama holds: manifests/HOST/NAMESPACE/MODEL/TAG, small JSON files whose layers name blobs
by digest; the layer of type image.model is a GGUF. Source: its server/internal/manifest and
docs/faq. Names are shown as Ollama shows them: the default host and namespace are left out."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL, PROJECTOR, TENSOR = (
    f"application/vnd.ollama.image.{kind}" for kind in ("model", "projector", "tensor")
)
HOST, NAMESPACE = "registry.ollama.ai", "library"
MAX_MANIFESTS = 5000
MAX_MANIFEST_BYTES = 2**20

_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class OllamaModel:
    name: str
    path: Path
    vision_part: Path | None = None
    problem: str = ""


def models(folder: Path, problems: list[str]) -> Iterator[OllamaModel]:
    """Of a models folder (OLLAMA_MODELS); sentences about what cannot be read go to `problems`."""
    for manifest in _manifests(folder / "manifests", problems):
        host, namespace, model, tag = manifest.parts[-4:]
        name = f"{model}:{tag}"
        if namespace != NAMESPACE or host != HOST:
            name = f"{namespace}/{name}"
        if host != HOST:
            name = f"{host}/{name}"
        if (found := _read(name, manifest, folder / "blobs", problems)) is not None:
            yield found


def _manifests(top: Path, problems: list[str]) -> list[Path]:
    """Files four levels below `top`."""
    try:
        top.stat()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as exc:
        problems.append(f"{top} cannot be read: {exc.strerror or exc}.")
        return []
    level = [top]
    for depth in range(4):
        below: list[Path] = []
        for folder in level:
            try:
                below += [Path(e.path) for e in os.scandir(folder) if e.is_dir() == (depth < 3)]
            except OSError as exc:
                problems.append(f"{folder} cannot be read: {exc.strerror or exc}.")
        level = sorted(path for path in below if not path.name.startswith("."))[:MAX_MANIFESTS]
    return level


def _read(name: str, manifest: Path, blobs: Path, problems: list[str]) -> OllamaModel | None:
    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError("it is too large")
        layers = json.loads(manifest.read_bytes())["layers"]
        blob = _blob(layers, MODEL, blobs)
        kinds = [str(layer["mediaType"]).partition(";")[0] for layer in layers]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        problems.append(f"Ollama's manifest {manifest} cannot be read: {exc!r}.")
        return None
    if blob is None:
        if TENSOR in kinds:
            what = "not a GGUF: Ollama holds it as single tensors"
            return OllamaModel(name, manifest, problem=what)
        return None  # a model of the cloud, or only an adapter
    if not os.path.isfile(blob):
        return OllamaModel(name, blob, problem=f"its file is gone: ollama pull {name}")
    return OllamaModel(name, blob, _blob(layers, PROJECTOR, blobs))


def _blob(layers: list[dict[str, Any]], kind: str, blobs: Path) -> Path | None:
    for layer in layers:
        if layer["mediaType"] == kind:
            digest = _DIGEST.fullmatch(layer["digest"])
            if digest is None:
                raise ValueError(f"{layer['digest']!r} is no digest")
            return blobs / f"sha256-{digest[1]}"
    return None
