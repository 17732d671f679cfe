"""Files that are no encoder, or one that is not read, are refused by name and reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.preprocess import prepared
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.errors import GGUFError
from ds4tui.kernels import choice
from tests.engine.vision.changed import with_keys
from tests.engine.vision.pictures import picture
from tests.golden.files import families, golden_path, projector_path

VISION = [name for name, facts in families().items() if facts["vision"]]


def test_keys_are_those_of_the_file() -> None:
    config = config_of(projector_path("qwen3vl"))
    assert (config.projector, config.patch_side, config.merge) == ("qwen3vl_merger", 4, 2)
    assert (config.width, config.blocks, config.heads, config.tapped) == (32, 4, 2, (0, 2))
    assert config.factor == 8 and config.grid == 8


def test_a_text_model_is_no_encoder() -> None:
    with (
        GGUFFile.open(golden_path("llama")) as file,
        pytest.raises(GGUFError, match=r"no image encoder.*'llama'") as refusal,
    ):
        VisionConfig.of(file)
    assert "mmproj" in refusal.value.hint


def config_of(path: Path) -> VisionConfig:
    with GGUFFile.open(path) as file:
        return VisionConfig.of(file)


def test_windows_and_bounds_are_those_of_the_model_where_the_file_says_nothing() -> None:
    later, earlier = (config_of(projector_path(name)) for name in ("qwen25vl", "qwen2vl"))
    assert (later.whole_every, later.window_side, later.activation) == (2, 8, "silu")
    assert (earlier.whole_every, earlier.activation) == (1, "quick_gelu")
    assert earlier.pixels == later.pixels == (3_136, 12_845_056)
    assert config_of(projector_path("qwen3vl")).pixels == (65_536, 16_777_216)


def test_widths_of_qwen2vl_are_those_of_its_tensors(tmp_path: Path) -> None:
    """Converters write others: the text model's for the feed-forward's, or 0."""
    wrong = {"clip.vision.feed_forward_length": 0, "clip.vision.projection_dim": 0}
    path = with_keys(projector_path("qwen2vl"), tmp_path / "old.gguf", wrong, renamed=swapped_names)
    config = config_of(path)
    assert (config.inner, config.text_width) == (96, 64)
    with GGUFFile.open(path) as file:
        assert Encoder(file, choice.current().path(False)).unused_tensors == ()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"clip.vision.n_wa_pattern": None}, "n_wa_pattern.* is missing"),
        ({"clip.vision.n_wa_pattern": 0}, "n_wa_pattern is 0"),
        ({"clip.vision.window_size": 27}, "windows of less than 28 pixels"),
        ({"clip.use_silu": False}, "activation quick_gelu.* only silu"),
    ],
)
def test_impossible_windows_are_named(keys: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = with_keys(projector_path("qwen25vl"), tmp_path / "bad.gguf", keys)
    with pytest.raises(GGUFError, match=reason):
        config_of(path)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"clip.projector_type": "pixtral"}, "'pixtral', which is not read"),
        ({"clip.has_vision_encoder": False}, "no image encoder"),
        ({"clip.use_gelu": False}, "activation quick_gelu.* only gelu"),
        ({"clip.vision.patch_size": 5}, "do not come out even"),
        ({"clip.vision.patch_size": 0}, "patch_size is 0"),
        ({"clip.vision.block_count": None}, "block_count.* is missing"),
        ({"clip.vision.attention.head_count": 3}, "does not fit 3 heads"),
        ({"clip.vision.attention.layer_norm_epsilon": float("nan")}, "epsilon is nan"),
        ({"clip.vision.image_mean": [0.5, 0.5]}, "2 values, not 3"),
        ({"clip.vision.image_std": [0.5, 0.0, 0.5]}, "image_std"),
        ({"clip.vision.projector.scale_factor": None}, "scale_factor.* is missing"),
        ({"clip.vision.projector.scale_factor": 3}, "do not come out even"),
        ({"clip.vision.preproc_image_size": 2**20}, "1,048,576 pixels a side"),
        ({"ds4tui.image.opening_ids": [-1]}, "opening_ids does not hold token ids"),
    ],
)
def test_impossible_keys_are_named(keys: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = with_keys(projector_path("idefics3"), tmp_path / "bad.gguf", keys)
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match=reason) as refusal:
        VisionConfig.of(file)
    assert "bad.gguf" in refusal.value.message and refusal.value.hint


TENSORS = {
    "idefics3": "v.patch_embd.weight v.position_embd.weight v.blk.1.ln2.bias mm.model.fc.weight",
    "gemma3v": "v.post_ln.bias mm.soft_emb_norm.weight mm.input_projection.weight",
    "qwen2vl": "v.patch_embd.weight v.blk.0.ffn_up.weight v.blk.1.ln1.bias mm.2.weight",
    "qwen25vl": "v.blk.2.ffn_gate.weight v.blk.1.ln2.weight v.post_ln.weight mm.0.weight",
    "qwen3vl": "v.blk.3.attn_out.weight mm.2.weight v.deepstack.2.fc1.weight v.post_ln.weight",
}


@pytest.mark.parametrize(("name", "tensor"), [(n, t) for n in TENSORS for t in TENSORS[n].split()])
def test_a_missing_tensor_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    path = with_keys(projector_path(name), tmp_path / "bad.gguf", {}, (tensor,))
    with GGUFFile.open(path) as file, pytest.raises(GGUFError, match=tensor):
        Encoder(file, choice.current().path(False))


def test_feed_forward_names_that_early_converters_swapped_are_understood(tmp_path: Path) -> None:
    paths = projector_path("idefics3"), tmp_path / "early.gguf"
    with_keys(*paths, {}, renamed=swapped_names)
    vectors = []
    for path in paths:
        with GGUFFile.open(path) as file:
            encoder = Encoder(file, choice.current().path(False))
        vectors.append(np.array(encoder(prepared(picture(40, 30), encoder.config)).rows))
    assert np.array_equal(*vectors)


def swapped_names(name: str) -> str:
    return name.replace("ffn_up", "?").replace("ffn_down", "ffn_up").replace("?", "ffn_down")


@pytest.mark.parametrize("name", VISION)
def test_every_tensor_is_used(name: str) -> None:
    with GGUFFile.open(projector_path(name)) as file:
        encoder = Encoder(file, choice.current().path(False))
        assert encoder.unused_tensors == ()
        summed = "v.patch_embd.weight.1"  # with the kernel of the other frame
        held = sum(file.tensors[name].nbytes for name in file.tensors if name != summed)
    assert np.isclose(encoder.weights_bytes, held, rtol=0.1)
