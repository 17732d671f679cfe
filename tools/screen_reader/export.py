"""The mmproj: weights to a GGUF (arch clip, projector idefics3) and back, and fp16 parts.

    python -m tools.screen_reader.export WEIGHTS OUT.gguf

WEIGHTS is another mmproj GGUF or a folder of fp16 parts. Matrices become Q8_0, the patch
convolution F16, the rest stays F32; names are those of llama.cpp's SmolVLM.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor

from tools.screen_reader.keys import add_own_keys
from tools.screen_reader.model import Shape, gguf_reader

Weights = dict[str, Tensor]
PART = 8_000_000  # fp16 numbers in one file: below 16 MiB
Q8_0 = gguf.GGMLQuantizationType.Q8_0
# (ours, the GGUF's) within one layer; q, k and v are apart.
LAYER = [("o", "attn_out"), ("up", "ffn_up"), ("down", "ffn_down"), ("ln1", "ln1"), ("ln2", "ln2")]


def save_parts(weights: Weights, folder: Path) -> None:
    """fp16, in files small enough to carry: w0.npy, w1.npy, ... and their names in w.json."""
    flat = torch.cat([v.detach().half().cpu().flatten() for v in weights.values()]).numpy()
    for i, start in enumerate(range(0, len(flat), PART)):
        np.save(folder / f"w{i}.npy", flat[start : start + PART])
    shapes = [[k, list(v.shape)] for k, v in weights.items()]
    (folder / "w.json").write_text(json.dumps(shapes))


def load_parts(folder: Path) -> Weights:
    parts = sorted(folder.glob("w[0-9].npy"))
    flat = np.concatenate([np.load(p) for p in parts]).astype(np.float32)
    weights, start = {}, 0
    for name, shape in json.loads((folder / "w.json").read_text()):
        end = start + int(np.prod(shape))
        weights[name] = torch.from_numpy(flat[start:end].reshape(shape).copy())
        start = end
    if start != len(flat):
        raise ValueError(f"{folder}: {len(flat)} numbers, but w.json names {start}")
    return weights


def load_gguf(path: Path) -> Weights:
    read, shape = gguf_reader(path), Shape()
    weights = {
        "patch.weight": read("v.patch_embd.weight").reshape(shape.width, -1),
        "patch.bias": read("v.patch_embd.bias"),
        "pos": read("v.position_embd.weight"),
        "post.weight": read("v.post_ln.weight"),
        "post.bias": read("v.post_ln.bias"),
        "fc.weight": read("mm.model.fc.weight"),
    }
    for i in range(shape.layers):
        for kind in ("weight", "bias"):
            ours, theirs = f"blocks.{i}.", f"v.blk.{i}."
            weights[f"{ours}qkv.{kind}"] = torch.cat(
                [read(f"{theirs}attn_{n}.{kind}") for n in "qkv"]
            )
            for a, b in LAYER:
                weights[f"{ours}{a}.{kind}"] = read(f"{theirs}{b}.{kind}")
    return weights


def load(source: Path) -> Weights:
    """Either kind: a folder of parts or a GGUF."""
    return load_parts(source) if source.is_dir() else load_gguf(source)


def add_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_type("mmproj")
    writer.add_name("SmolLM2-135M screenshot reader mmproj")
    writer.add_description(
        "vision encoder trained from scratch on synthetic screenshots "
        "for the frozen SmolLM2-135M-Instruct"
    )
    writer.add_license("apache-2.0")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "idefics3")
    writer.add_string("clip.vision.projector_type", "idefics3")
    numbers = {
        "image_size": shape.image,
        "preproc_image_size": shape.image,
        "patch_size": shape.patch,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ff,
        "block_count": shape.layers,
        "projection_dim": shape.lm_width,
        "attention.head_count": shape.heads,
        "projector.scale_factor": shape.merge,
    }
    for key, value in numbers.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", shape.eps)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    add_own_keys(writer)
    writer.add_bool("clip.use_gelu", True)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def export(weights: Weights, path: Path) -> None:
    shape = Shape()
    writer = gguf.GGUFWriter(path, "clip")
    add_metadata(writer, shape)

    def put(name: str, value: Tensor, dtype: str) -> None:
        numbers = value.detach().float().cpu().numpy()
        if dtype == "q8_0":
            writer.add_tensor(name, gguf.quants.quantize(numbers, Q8_0), raw_dtype=Q8_0)
        else:
            writer.add_tensor(name, numbers.astype(dtype))

    conv = (shape.width, 3, shape.patch, shape.patch)
    put("v.patch_embd.weight", weights["patch.weight"].reshape(conv), "float16")
    put("v.patch_embd.bias", weights["patch.bias"], "float32")
    put("v.position_embd.weight", weights["pos"], "float32")
    put("v.post_ln.weight", weights["post.weight"], "float32")
    put("v.post_ln.bias", weights["post.bias"], "float32")
    put("mm.model.fc.weight", weights["fc.weight"], "q8_0")
    for i in range(shape.layers):
        for kind in ("weight", "bias"):
            ours, theirs = f"blocks.{i}.", f"v.blk.{i}."
            matrix = "q8_0" if kind == "weight" else "float32"
            fused = weights[f"{ours}qkv.{kind}"]
            for n, part in zip("qkv", fused.split(shape.width), strict=True):
                put(f"{theirs}attn_{n}.{kind}", part, matrix)
            for a, b in LAYER:
                norm = a.startswith("ln")
                put(
                    f"{theirs}{b}.{kind}",
                    weights[f"{ours}{a}.{kind}"],
                    "float32" if norm else matrix,
                )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    target = Path(sys.argv[2])
    export(load(Path(sys.argv[1])), target)
    print(f"{target.stat().st_size / 1e6:.1f} MB")
