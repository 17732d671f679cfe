"""The folders of other programs, as those lay them out, made of small files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType

from tests.engine.gguf_samples import write_gguf

KEYS: dict[str, Any] = {
    "llama.block_count": np.uint32(4),
    "llama.context_length": np.uint32(2048),
    "llama.embedding_length": np.uint32(64),
    "llama.attention.head_count": np.uint32(8),
    "llama.attention.head_count_kv": np.uint32(2),
    "general.file_type": np.uint32(2),
}


def model_file(
    path: Path,
    seed: int = 0,
    architecture: str = "llama",
    tensor: str = "token_embd.weight",
    **more: Any,
) -> Path:
    """A GGUF with a header that says something, and one tensor of 64 x 256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = np.random.default_rng(seed).integers(0, 256, (64, 144), np.uint8)
    keys = {name.replace("llama.", f"{architecture}."): v for name, v in KEYS.items()} | more
    tensors = {tensor: (raw, GGMLQuantizationType.Q4_0)}
    return write_gguf(path, tensors, keys, architecture)


def hub_file(cache: Path, repo: str, file: str, commit: str = "c1", seed: int = 0) -> Path:
    """As huggingface_hub keeps it: a blob and a link in the snapshot."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    blob = model_file(folder / "blobs" / f"{commit}{seed}{file.replace('/', '-')}", seed)
    link = folder / "snapshots" / commit / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(blob)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(commit)
    return link


def ollama_model(folder: Path, name: str, seed: int = 0, eyes: bool = False) -> Path:
    """`name` is HOST/NAMESPACE/MODEL/TAG; the blob's path."""
    blob = model_file(folder / "blobs" / f"sha256-{seed:064x}", seed)
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{seed:064x}"}]
    if eyes:
        digest = f"sha256:{seed + 1000:064x}"
        layers.append({"mediaType": "application/vnd.ollama.image.projector", "digest": digest})
        model_file(folder / "blobs" / digest.replace(":", "-"), seed + 1000, "clip")
    layers.append({"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0"})
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return blob


def mlx_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    config = {"model_type": "qwen3", "quantization": {"group_size": 64, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"x")
    return folder
