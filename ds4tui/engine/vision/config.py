"""What an mmproj file says of its encoder: the `clip.*` keys, checked. Needs no mlx."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import xxhash

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError

Projector = Literal[
    "idefics3", "gemma3", "qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "deepseek4v"
]
Activation = Literal["gelu", "quick_gelu", "silu"]
T = TypeVar("T", int, float)

# What each projector's towers have between their products.
ACTIVATIONS: dict[Projector, tuple[Activation, ...]] = {
    "idefics3": ("gelu",),
    "gemma3": ("gelu",),
    "qwen2vl_merger": ("quick_gelu", "gelu"),
    "qwen2.5vl_merger": ("silu",),
    "qwen3vl_merger": ("gelu",),
    "deepseek4v": ("silu",),
}
LONGEST_EDGE_MAX = 4096  # idefics3's own processor makes no longer ones
# What the processors of Qwen2-VL and 2.5-VL allow, and that of Qwen3-VL.
QWEN2_PIXELS, QWEN3_PIXELS = (3_136, 12_845_056), (65_536, 16_777_216)
# DeepSeek's has no upper bound of pixels: the rows of a block bound a picture.
DEEPSEEK_PIXELS = (147_456, 2**31 - 1)
WINDOW_PIXELS = 112  # of a side, in Qwen2.5-VL


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The encoder of one file.

    image_side: pixels of a side of what is encoded at once (of Qwen: for which the learnt
    positions were made). merge: so many patches a side become one vector. longest_edge: pictures
    are brought to it before they are cut into tiles (idefics3). pixels: the least and the most
    that a picture may have (Qwen, DeepSeek). tapped: blocks whose rows go to the text model's first
    blocks, too. whole_every: in other blocks than each so many-th, patches see their window only,
    of window_side patches a side. mean and std are of values in 0..1, one a colour. opening_ids and
    closing_ids: tokens around a picture of one square, where the file names them because the text
    model's vocabulary lacks its projector's markers (keys of our own, ds4tui.image.*).
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
    activation: Activation = "gelu"
    tapped: tuple[int, ...] = ()
    whole_every: int = 1
    window_side: int = 0
    opening_ids: tuple[int, ...] = ()
    closing_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, gguf: GGUFFile) -> "VisionConfig":
        """Raises GGUFError for a file that is no mmproj, has a projector that is not read, or
        lacks something."""
        projector = _projector(gguf)
        image, patch = _count(gguf, "image_size"), _count(gguf, "patch_size")
        inner, text_width = _widths(gguf, projector)
        merge = _merge(gguf, projector)
        config = cls(
            projector=projector,
            image_side=image,
            patch_side=patch,
            width=_count(gguf, "embedding_length"),
            inner=inner,
            blocks=_count(gguf, "block_count"),
            heads=_count(gguf, "attention.head_count"),
            norm_epsilon=_positive(gguf, "attention.layer_norm_epsilon"),
            text_width=text_width,
            merge=merge,
            mean=_colours(gguf, "image_mean"),
            std=_colours(gguf, "image_std"),
            longest_edge=_count(gguf, "preproc_image_size", image),
            pixels=_pixels(gguf, projector),
            activation=_activation(gguf, projector),
            tapped=_tapped(gguf),
            whole_every=_count(gguf, "n_wa_pattern") if projector == "qwen2.5vl_merger" else 1,
            window_side=_count(gguf, "window_size", WINDOW_PIXELS) // (patch * merge) * merge,
            opening_ids=_ids(gguf, "ds4tui.image.opening_ids"),
            closing_ids=_ids(gguf, "ds4tui.image.closing_ids"),
        )
        _check(gguf, config)
        return config

    @property
    def is_qwen(self) -> bool:
        """Positions of the text model have three directions."""
        return "qwen" in self.projector

    @property
    def keeps_shape(self) -> bool:
        """Pictures keep their shape, and patches are told where they are by being turned."""
        return self.is_qwen or self.projector == "deepseek4v"

    @property
    def has_rms_norms(self) -> bool:
        """And gated feed-forwards."""
        return self.projector in ("qwen2.5vl_merger", "deepseek4v")

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
    return cast(Projector, kind)


def _activation(gguf: GGUFFile, projector: Projector) -> Activation:
    """GELU in the quick form is what remains, as llama.cpp has it."""
    named: tuple[Activation, ...] = ("gelu", "silu")
    given = [kind for kind in named if gguf.key(f".use_{kind}", bool, False)]
    activation = given[0] if given else "quick_gelu"
    if activation not in ACTIVATIONS[projector]:
        read = " or ".join(ACTIVATIONS[projector])
        raise GGUFError(
            f"{gguf.path.name} has the activation {activation}; with {projector} only {read} is "
            "read.",
            "Choose another conversion of this model.",
        )
    return activation


def _widths(gguf: GGUFFile, projector: Projector) -> tuple[int, int]:
    """Between the two products of a feed-forward, and of the text model. Converters write no or
    wrong keys for Qwen2-VL: its tensors say it."""
    if projector != "qwen2vl_merger":
        return _count(gguf, "feed_forward_length"), _count(gguf, "projection_dim")
    width = _count(gguf, "embedding_length")
    rows, columns = _matrix(gguf, "v.blk.0.ffn_up.weight")
    return columns if rows == width else rows, _matrix(gguf, "mm.2.weight")[0]


def _matrix(gguf: GGUFFile, name: str) -> tuple[int, int]:
    shape = gguf.tensor(name).shape
    if len(shape) != 2:
        raise _impossible(gguf, f"the tensor {name} has the shape {list(shape)}.")
    return shape[0], shape[1]


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
    if "qwen" in projector:
        return _count(gguf, "spatial_merge_size", 2)
    usual = {"gemma3": 4, "deepseek4v": 3}
    return _count(gguf, "projector.scale_factor", usual.get(projector))


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


def _pixels(gguf: GGUFFile, projector: Projector) -> tuple[int, int]:
    others = {"qwen3vl_merger": QWEN3_PIXELS, "deepseek4v": DEEPSEEK_PIXELS}
    own = others.get(projector, QWEN2_PIXELS)
    least = _count(gguf, "image_min_pixels", own[0])
    most = _count(gguf, "image_max_pixels", own[1])
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
    if c.image_side % c.patch_side or (not c.keeps_shape and c.grid % c.merge):
        raise _impossible(
            gguf, f"{c.image_side} pixels do not come out even in patches of {c.factor}."
        )
    if c.width % c.heads or (c.keeps_shape and c.width // c.heads % 4):
        raise _impossible(gguf, f"a width of {c.width} does not fit {c.heads} heads.")
    if c.tapped and c.tapped[-1] >= c.blocks:
        raise _impossible(gguf, f"block {c.tapped[-1]} is tapped, there are {c.blocks}.")
    if c.whole_every > 1 and not c.window_side:
        raise _impossible(gguf, f"windows of less than {c.factor} pixels a side hold nothing.")
    if c.projector == "idefics3" and c.longest_edge > LONGEST_EDGE_MAX:
        raise _impossible(gguf, f"pictures of {c.longest_edge:,} pixels a side are not made.")
