"""What an mmproj file says of its encoder: the `clip.*` keys, checked. Needs no mlx."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import xxhash

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError

Projector = Literal["idefics3", "gemma3", "qwen3vl_merger"]
T = TypeVar("T", int, float)

LONGEST_EDGE_MAX = 4096  # idefics3's own processor makes no longer ones
QWEN_PIXELS = (65_536, 16_777_216)  # what Qwen3-VL's own processor allows


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The encoder of one file.

    image_side: pixels of a side of what is encoded at once (of Qwen: for which the learnt
    positions were made). merge: so many patches a side become one vector. longest_edge: pictures
    are brought to it before they are cut into tiles (idefics3). pixels: the least and the most
    that a picture may have (Qwen). tapped: blocks whose rows go to the text model's first blocks,
    too. mean and std are of values in 0..1, one a colour. opening_ids and closing_ids: tokens
    around a picture of one square, where the file names them because the text model's vocabulary
    lacks its projector's markers (keys of our own, ds4tui.image.*).
    """

    projector: Projector
    image_side: int
    patch_side: int
    width: int
    inner: int
    blocks: int
    heads: int
    norm_epsilon: float
    text_width: int
    merge: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    longest_edge: int
    pixels: tuple[int, int]
    tapped: tuple[int, ...] = ()
    opening_ids: tuple[int, ...] = ()
    closing_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, gguf: GGUFFile) -> "VisionConfig":
        """Raises GGUFError for a file that is no mmproj, has a projector that is not read, or
        lacks something."""
        projector = _projector(gguf)
        image, patch = _count(gguf, "image_size"), _count(gguf, "patch_size")
        config = cls(
            projector=projector,
            image_side=image,
            patch_side=patch,
            width=_count(gguf, "embedding_length"),
            inner=_count(gguf, "feed_forward_length"),
            blocks=_count(gguf, "block_count"),
            heads=_count(gguf, "attention.head_count"),
            norm_epsilon=_positive(gguf, "attention.layer_norm_epsilon"),
            text_width=_count(gguf, "projection_dim"),
            merge=_merge(gguf, projector),
            mean=_colours(gguf, "image_mean"),
            std=_colours(gguf, "image_std"),
            longest_edge=_count(gguf, "preproc_image_size", image),
            pixels=_pixels(gguf),
            tapped=_tapped(gguf),
            opening_ids=_ids(gguf, "ds4tui.image.opening_ids"),
            closing_ids=_ids(gguf, "ds4tui.image.closing_ids"),
        )
        _check(gguf, config)
        return config

    @property
    def grid(self) -> int:
        """Patches of a side of image_side."""
        return self.image_side // self.patch_side

    @property
    def vectors(self) -> int:
        """What one square of image_side becomes."""
        return (self.grid // self.merge) ** 2

    @property
    def factor(self) -> int:
        """Pixels of a side of what becomes one vector."""
        return self.patch_side * self.merge


def identity(gguf: GGUFFile) -> bytes:
    """16 bytes that stand for the whole file: xxh3_128 of keys and tensors. Reads all of it."""
    hasher = xxhash.xxh3_128(gguf.header().data)
    for name in gguf.tensors:
        hasher.update(np.ascontiguousarray(gguf.raw(name)).data)
    return hasher.digest()


# -- keys ----------------------------------------------------------------------------------------


def _projector(gguf: GGUFFile) -> Projector:
    name = gguf.path.name
    if gguf.architecture != "clip":
        raise GGUFError(
            f"{name} is no image encoder: its architecture is {gguf.architecture!r}, not 'clip'.",
            "Choose the mmproj file that belongs to the model.",
        )
    if not gguf.key(".has_vision_encoder", bool, True):
        raise GGUFError(f"{name} has no image encoder.", "Choose another mmproj file of the model.")
    kind = gguf.key(".vision.projector_type", str, "") or gguf.key(".projector_type", str)
    if kind not in get_args(Projector):
        raise GGUFError(
            f"{name} has the projector {kind!r}, which is not read.",
            f"Choose a model with one of these: {', '.join(get_args(Projector))}.",
        )
    if not gguf.key(".use_gelu", bool, False):
        raise GGUFError(
            f"{name}: an activation other than GELU is not read.",
            "Choose another conversion of this model.",
        )
    return cast(Projector, kind)


def _impossible(gguf: GGUFFile, what: str) -> GGUFError:
    return GGUFError(f"{gguf.path.name}: {what}", "Get another conversion of this mmproj.")


def _above_zero(gguf: GGUFFile, name: str, value: T) -> T:
    if not 0 < value < math.inf:  # NaN too
        raise _impossible(gguf, f"the key clip.vision.{name} is {value:g}.")
    return value


def _count(gguf: GGUFFile, name: str, default: int | None = None) -> int:
    key = f".vision.{name}"
    value = gguf.key(key, int) if default is None else gguf.key(key, int, default)
    return _above_zero(gguf, name, value)


def _positive(gguf: GGUFFile, name: str) -> float:
    return _above_zero(gguf, name, gguf.key(f".vision.{name}", float))


def _merge(gguf: GGUFFile, projector: Projector) -> int:
    if projector == "qwen3vl_merger":
        return _count(gguf, "spatial_merge_size", 2)
    return _count(gguf, "projector.scale_factor", 4 if projector == "gemma3" else None)


def _colours(gguf: GGUFFile, name: str) -> tuple[float, float, float]:
    values = _array(gguf, name)
    if len(values) != 3:
        raise _impossible(gguf, f"the key clip.vision.{name} holds {len(values)} values, not 3.")
    red, green, blue = (float(value) for value in values)
    if not np.isfinite(values).all() or (name == "image_std" and not (values > 0).all()):
        raise _impossible(gguf, f"the key clip.vision.{name} is {[red, green, blue]}.")
    return red, green, blue


def _array(gguf: GGUFFile, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    return gguf.key(f".vision.{name}", np.ndarray)


def _pixels(gguf: GGUFFile) -> tuple[int, int]:
    least = _count(gguf, "image_min_pixels", QWEN_PIXELS[0])
    most = _count(gguf, "image_max_pixels", QWEN_PIXELS[1])
    if least > most:
        raise _impossible(gguf, f"pictures of {least:,} pixels or more and at most {most:,}.")
    return least, most


def _tapped(gguf: GGUFFile) -> tuple[int, ...]:
    if "clip.vision.is_deepstack_layers" not in gguf.metadata:
        return ()
    return tuple(int(i) for i in np.flatnonzero(_array(gguf, "is_deepstack_layers")))


def _ids(gguf: GGUFFile, key: str) -> tuple[int, ...]:
    values = gguf.key(key, np.ndarray, np.empty(0, np.int64))
    if values.dtype.kind not in "iu" or (values < 0).any():
        raise _impossible(gguf, f"the key {key} does not hold token ids.")
    return tuple(int(value) for value in values)


def _check(gguf: GGUFFile, config: VisionConfig) -> None:
    c = config
    if c.image_side % c.patch_side or (c.projector != "qwen3vl_merger" and c.grid % c.merge):
        raise _impossible(
            gguf, f"{c.image_side} pixels do not come out even in patches of {c.factor}."
        )
    if c.width % c.heads or (c.projector == "qwen3vl_merger" and c.width // c.heads % 4):
        raise _impossible(gguf, f"a width of {c.width} does not fit {c.heads} heads.")
    if c.tapped and c.tapped[-1] >= c.blocks:
        raise _impossible(gguf, f"block {c.tapped[-1]} is tapped, there are {c.blocks}.")
    if c.projector == "idefics3" and c.longest_edge > LONGEST_EDGE_MAX:
        raise _impossible(gguf, f"pictures of {c.longest_edge:,} pixels a side are not made.")
