"""The encoder of DeepSeek V4 Flash Vision against its formulas in float64, and its blocks against
an order written cell by cell. No class of transformers has it."""

import math
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache.timeline import Timeline
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import path_for
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.layout import ImageBlock, block, row_ids
from ds4tui.engine.vision.paired_rows import (
    END,
    LINE_END,
    PAD,
    START,
    fitted,
    fitted_size,
    grid_of,
    row_count,
    row_order,
)
from ds4tui.engine.vision.preprocess import Shape, prepared, shape_of
from ds4tui.engine.vision.projectors import Encoder, Vectors
from ds4tui.engine.vision.rows import rows_of
from ds4tui.errors import GGUFError
from ds4tui.kernels.policy import EXACT
from ds4tui.library.eyes import Text, require_fitting
from tests.engine.vision.pictures import HALF, picture
from tests.scale import scaled

WIDTH, INNER, HEADS, BLOCKS, PATCH, MERGE, OUT = 32, 48, 2, 2, 4, 3, 40
EPSILON = 1e-6
FINGERPRINT = bytes(range(16))
# Of the published file.
PUBLISHED = VisionConfig(
    "deepseek4v", 798, 14, 1024, 2816, 32, 16, 1e-6, 4096, 3, HALF, HALF, 798, (147_456, 2**31 - 1)
)

Floats = npt.NDArray[Any]


def tensors() -> dict[str, Floats]:
    random = np.random.default_rng(5)

    def normal(*shape: int) -> Floats:
        return (random.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)

    made = {
        "v.patch_embd.weight": normal(WIDTH, 3, PATCH, PATCH),
        "v.patch_embd.bias": normal(WIDTH),
        "v.post_ln.weight": 1 + normal(WIDTH),
        "mm.1.weight": normal(OUT, MERGE**2 * WIDTH),
        "mm.1.bias": normal(OUT),
        "mm.2.weight": normal(OUT, OUT),
        "mm.2.bias": normal(OUT),
    }
    for name in ("token_embd.img_start", "token_embd.img_pad", "token_embd.img_end"):
        made[f"v.{name}"] = normal(OUT)
    made["v.image_newline"] = normal(OUT)
    for i in range(BLOCKS):
        at = f"v.blk.{i}."
        made |= {f"{at}{n}.weight": 1 + normal(WIDTH) for n in ("ln1", "ln2")}
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            made |= {
                f"{at}{part}.weight": 2 * normal(WIDTH, WIDTH),
                f"{at}{part}.bias": normal(WIDTH),
            }
        for part in ("ffn_gate", "ffn_up"):
            made[f"{at}{part}.weight"] = normal(INNER, WIDTH)
        made[f"{at}ffn_down.weight"] = normal(WIDTH, INNER)
    return made


def written(path: Path, left_out: str = "") -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "deepseek4v")
    writer.add_bool("clip.use_silu", True)
    numbers = {
        "image_size": 36, "patch_size": PATCH, "embedding_length": WIDTH, "block_count": BLOCKS,
        "feed_forward_length": INNER, "attention.head_count": HEADS, "projection_dim": OUT,
        "projector.scale_factor": MERGE, "image_min_pixels": 1000,
    }  # fmt: skip
    for name, value in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", EPSILON)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", list(HALF))
    for name, values in tensors().items():
        if name != left_out:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# -- the formulas --------------------------------------------------------------------------------


def rms(x: Floats, weight: Floats) -> Floats:
    result: Floats = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON) * weight
    return result


def turned(x: Floats, rows: int, columns: int) -> Floats:
    """x [T, head]: the first half of the pairs by the row, the other by the column."""
    size = x.shape[1]
    powers = 10_000.0 ** -(np.arange(0, size // 2, 2) / (size // 2))
    y, z = np.divmod(np.arange(rows * columns), columns)
    angles = np.concatenate([np.outer(y, powers), np.outer(z, powers)], axis=1)
    a, b = x[:, : size // 2], x[:, size // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


def encoded(pixels: Floats, w: dict[str, Floats]) -> Floats:
    """uint8 [height, width, 3] to [rows * columns, OUT], patch by patch and head by head."""
    values = (pixels / 255 - 0.5) / 0.5
    rows, columns = values.shape[0] // PATCH, values.shape[1] // PATCH
    patches = [
        values[y * PATCH : (y + 1) * PATCH, x * PATCH : (x + 1) * PATCH].transpose(2, 0, 1).ravel()
        for y in range(rows)
        for x in range(columns)
    ]
    x = np.array(patches) @ w["v.patch_embd.weight"].reshape(WIDTH, -1).T + w["v.patch_embd.bias"]
    for i in range(BLOCKS):
        b = {k.removeprefix(f"v.blk.{i}."): v for k, v in w.items() if k.startswith(f"v.blk.{i}.")}
        n = rms(x, b["ln1.weight"])
        q, k, v = (n @ b[f"attn_{p}.weight"].T + b[f"attn_{p}.bias"] for p in "qkv")
        size, heads = WIDTH // HEADS, []
        for h in range(HEADS):
            own = slice(h * size, (h + 1) * size)
            qh, kh = turned(q[:, own], rows, columns), turned(k[:, own], rows, columns)
            scores = np.exp(qh @ kh.T / math.sqrt(size))
            heads.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, own])
        x = x + np.concatenate(heads, axis=1) @ b["attn_out.weight"].T + b["attn_out.bias"]
        n = rms(x, b["ln2.weight"])
        gate = n @ b["ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (n @ b["ffn_up.weight"].T)) @ b["ffn_down.weight"].T
    x = rms(x, w["v.post_ln.weight"]).reshape(rows, columns, WIDTH)
    return np.array(
        [joined(x, y, z, w) for y in range(0, rows, MERGE) for z in range(0, columns, MERGE)]
    )


def joined(x: Floats, y: int, z: int, w: dict[str, Floats]) -> Floats:
    cell = np.zeros((WIDTH, MERGE, MERGE))
    part = x[y : y + MERGE, z : z + MERGE].transpose(2, 0, 1)
    cell[:, : part.shape[1], : part.shape[2]] = part
    m = cell.ravel() @ w["mm.1.weight"].T + w["mm.1.bias"]
    m = 0.5 * m * (1 + np.array([math.erf(value / math.sqrt(2)) for value in m]))
    result: Floats = m @ w["mm.2.weight"].T + w["mm.2.bias"]
    return result


@pytest.mark.parametrize("kernels", ["auto", "openblas", "reference"])
@pytest.mark.parametrize("size", [(40, 28), (12, 12), (37, 90)])
def test_vectors_are_those_of_the_formulas(
    kernels: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    with GGUFFile.open(written(tmp_path / "mmproj.gguf")) as file:
        encoder = Encoder(file, path_for(EXACT, hybrids=False))
        assert not encoder.unused_tensors
        made = prepared(picture(*size), encoder.config)
        vectors = np.asarray(encoder(made).rows)
    w = {name: values.astype(np.float64) for name, values in tensors().items()}
    wanted = encoded(made.pixels[0].astype(np.float64), w)
    assert wanted.shape[0] == math.prod(made.shape.grid)
    np.testing.assert_allclose(vectors[: len(wanted)], wanted, atol=1e-4)
    learnt = {START: "img_start", PAD: "img_pad", END: "img_end"}
    for place, name in learnt.items():
        np.testing.assert_array_equal(vectors[len(wanted) + place], w[f"v.token_embd.{name}"])
    np.testing.assert_array_equal(vectors[len(wanted) + LINE_END], w["v.image_newline"])
    assert len(vectors) == len(wanted) + 4


@pytest.mark.parametrize("name", ["v.image_newline", "mm.1.bias", "v.blk.1.ffn_gate.weight"])
def test_a_missing_tensor_changes_the_numbers_or_is_named(name: str, tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path / "mmproj.gguf", left_out=name)) as file:
        if name.endswith("bias"):
            Encoder(file, path_for(EXACT, hybrids=False))  # a product without one
            return
        with pytest.raises(GGUFError, match=name.replace(".", r"\.")):
            Encoder(file, path_for(EXACT, hybrids=False))


# -- blocks --------------------------------------------------------------------------------------


def cell_by_cell(rows: int, columns: int) -> list[int]:
    """As the processor of the checkpoint lays it out."""
    count = rows * columns
    places = [count + START]
    for pair in range(0, rows, 2):
        for column in range(columns + 1):
            for row in (pair, pair + 1):
                if row >= rows:
                    places.append(count + PAD)
                elif column == columns:
                    places.append(count + LINE_END)
                else:
                    places.append(row * columns + column)
    pads = 2 if (rows + 1) // 2 * (columns + 1) % 2 else 0
    return [*places, *[count + PAD] * pads, count + END]


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), start=st.integers(0, 9))
@settings(max_examples=scaled(40), deadline=None)
def test_two_rows_lie_in_each_other(rows: int, columns: int, start: int) -> None:
    order = row_order(rows, columns)
    assert order.tolist() == cell_by_cell(rows, columns)
    assert len(order) == row_count(rows, columns)
    assert sorted(place for place in order if place < rows * columns) == list(range(rows * columns))
    made = at(rows, columns, start)
    assert made.order is not None
    pads = made.rows - len(order)
    assert (start + pads + 1) % 4 == 0 and pads < 4
    assert made.order.tolist() == [rows * columns + PAD] * pads + order.tolist()
    assert made.is_vector.all() and made.advance == made.rows == len(made.order)
    assert (made.sight() == made.rows).all()  # all see all
    assert made.at(start + 1) is made  # once


def unplaced(rows: int, columns: int) -> ImageBlock:
    return block(PUBLISHED, Shape((100, 100), 1, (rows, columns)), lambda text: [9], 9)


def at(rows: int, columns: int, start: int) -> ImageBlock:
    return unplaced(rows, columns).at(start)


def test_the_published_example() -> None:
    """Of three rows of two vectors at the start of a prompt: pads, the start, two rows in each
    other, the last one and pads in each other, the end."""
    order = at(3, 2, 0).order
    assert order is not None
    assert order.tolist() == [7, 7, 7, 6, 0, 2, 1, 3, 8, 8, 4, 7, 5, 7, 8, 7, 9]


@pytest.mark.parametrize("start", range(4))
def test_rows_of_a_timeline_take_their_vectors_in_that_order(start: int) -> None:
    made, vectors = at(2, 3, start), Vectors(mx.arange(10 * 4, dtype=mx.float32).reshape(10, 4))
    span = made.span(start, FINGERPRINT)

    class Images:
        def block(self, _: object) -> ImageBlock:
            return unplaced(2, 3)

        def vectors(self, _: object) -> Vectors:
            return vectors

    ids = np.r_[np.arange(start), row_ids(FINGERPRINT, span.rows), 5]
    timeline = Timeline.of(ids, (span,))
    rows = rows_of(timeline, 0, len(timeline), "last", Images())
    assert rows.images is not None and made.order is not None
    assert rows.images.at.tolist() == list(range(start, start + made.rows))
    np.testing.assert_array_equal(np.asarray(rows.images.vectors)[:, 0], 4 * made.order)
    assert rows.images.sight is not None
    assert rows.images.sight.tolist() == [
        *range(1, start + 1), *[start + made.rows] * made.rows, start + made.rows + 1
    ]  # fmt: skip


@given(width=st.integers(1, 9000), height=st.integers(1, 9000))
@settings(max_examples=scaled(200), deadline=None)
def test_blocks_are_bounded_and_pictures_keep_their_shape(width: int, height: int) -> None:
    wide, high = size = fitted_size((width, height), PUBLISHED)
    assert wide % 14 == high % 14 == 0 and min(size) > 0
    rows, columns = grid_of(size, PUBLISHED)
    assert row_count(rows, columns) + 3 <= 384
    assert shape_of((width, height), PUBLISHED).grid == (rows, columns)
    if 1 / 8 < width / height < 8:
        assert abs(math.log(wide / high / (width / height))) < 0.5


def test_what_is_left_over_is_grey_and_wide_pictures_are_squeezed() -> None:
    white = picture(300, 200).point(lambda _: 255)
    pixels = np.asarray(fitted(white, PUBLISHED))
    colours = np.unique(pixels.reshape(-1, 3), axis=0).tolist()
    assert colours in ([[127] * 3, [255] * 3], [[255] * 3])
    squeezed = np.asarray(fitted(white.resize((1700, 200)), PUBLISHED))
    assert (squeezed == 255).all()


def test_no_text_model_takes_them_yet(tmp_path: Path) -> None:
    with GGUFFile.open(written(tmp_path / "mmproj.gguf")) as file, pytest.raises(GGUFError) as told:
        require_fitting("mmproj.gguf", VisionConfig.of(file), Text("deepseek4", OUT))
    assert "no text model" in told.value.message and "--mmproj none" in told.value.hint
