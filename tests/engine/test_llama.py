"""The llama family against the definition in float64, on every path this machine can run."""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from ds4tui.engine.layers import LayerLoader
from ds4tui.engine.models.decoder import DecoderModel
from ds4tui.engine.models.llama import llama
from ds4tui.engine.models.registry import Model, load_model
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.paging import LoadWish
from ds4tui.engine.state import HostKVLayer, KVLayer
from ds4tui.errors import ConfigError, GGUFError, OutOfMemory
from ds4tui.kernels import choice
from ds4tui.kernels.choice import ComputePath
from tests.engine.tiny_llama import Tiny, oracle, oracle_of_rows, write

TOLERANCE = 1e-4  # logits are of size 1; float32 differs by some 1e-6
IDS = np.random.default_rng(5).integers(0, 64, 40)

VARIANTS = {
    "untied": Tiny(),
    "tied": Tiny(tied=True),
    "rope_freqs": Tiny(factors=True),
    "linear scaling": Tiny(scaling=4.0),
    "one key head": Tiny(heads=6, kv_heads=1),
    "as many key heads": Tiny(kv_heads=4),
    "partial rotation": Tiny(rotary=4),
    "other sizes": Tiny(heads=5, kv_heads=5, key_size=12, value_size=6, rotary=12, width=20),
    "biases": Tiny(biases=True),
    "large epsilon": Tiny(epsilon=0.5),
}


Settings = LoadWish


@pytest.fixture(params=["auto", "openblas", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DS4TUI_KERNELS", request.param)
    return request.param


def load(tmp_path: Path, tiny: Tiny = VARIANTS["untied"]) -> Model:
    return load_model(write(tmp_path / "tiny.gguf", tiny), Settings())


def walk(model: Model, ids: np.ndarray, sizes: list[int]) -> np.ndarray:
    """All logits [T, vocab], evaluated in chunks of `sizes` tokens."""
    state, parts = model.new_state(), []
    for size in sizes:
        start = state.length
        logits = model.forward(Rows.of_ids(ids[start : start + size], start, "all"), state)
        parts.append(np.asarray(logits))
    assert state.length == len(ids)
    return np.concatenate(parts)


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_the_definition(tmp_path: Path, kernels: str, name: str) -> None:
    tiny = VARIANTS[name]
    ours = walk(load(tmp_path, tiny), IDS, [len(IDS)])
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, oracle(tiny, IDS), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("sizes", [[1] * 40, [7, 1, 19, 13], [39, 1]])
def test_chunks_change_nothing_but_rounding(tmp_path: Path, kernels: str, sizes: list[int]) -> None:
    ours = walk(load(tmp_path), IDS, sizes)
    np.testing.assert_allclose(ours, oracle(Tiny(), IDS), atol=TOLERANCE, rtol=0)


def test_any_changed_token_moves_the_last_logits(tmp_path: Path, kernels: str) -> None:
    """Without this a model that ignored its past could pass: the tolerance must be felt."""
    model = load(tmp_path)
    last = walk(model, IDS, [40])[-1]
    for position in range(len(IDS)):
        other = IDS.copy()
        other[position] = (other[position] + 17) % 64
        moved = np.abs(walk(model, other, [40])[-1] - last).max()
        assert moved >= 100 * TOLERANCE, position


def test_the_same_schedule_gives_the_same_bits(tmp_path: Path, kernels: str) -> None:
    model = load(tmp_path)
    first, second = (walk(model, IDS, [16, 16, 7, 1]) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_a_rewound_state_is_the_state_it_was(tmp_path: Path, kernels: str) -> None:
    """Restore-exact: other tokens, then back, then the old ones: bit for bit."""
    model = load(tmp_path)
    state = model.new_state()
    model.forward(Rows.of_ids(IDS[:20], 0, "none"), state)
    wanted = np.asarray(model.forward(Rows.of_ids(IDS[20:30], 20, "all"), state))
    state.rewind(20)
    model.forward(Rows.of_ids(IDS[::-1][:15], 20, "last"), state)
    state.rewind(20)
    again = np.asarray(model.forward(Rows.of_ids(IDS[20:30], 20, "all"), state))
    assert wanted.tobytes() == again.tobytes()


def test_which_logits_are_returned(tmp_path: Path, kernels: str) -> None:
    model, state = load(tmp_path), None
    results = {}
    for kind in ("none", "last", "all"):
        state = model.new_state()
        results[kind] = model.forward(Rows.of_ids(IDS, 0, kind), state)
        assert state.length == len(IDS)
    assert results["none"] is None
    last, rows = results["last"], results["all"]
    assert last is not None and rows is not None
    assert (last.shape, rows.shape, last.dtype) == ((1, 64), (40, 64), mx.float32)
    np.testing.assert_allclose(np.asarray(last[0]), np.asarray(rows[-1]), atol=1e-5)


def test_embeddings_take_the_place_of_ids(tmp_path: Path, kernels: str) -> None:
    tiny = Tiny(blocks=1)
    table = tiny.tensors()["token_embd.weight"]
    model = load(tmp_path, tiny)
    given = mx.array(table[IDS] * 2)
    rows = Rows(None, given, np.arange(40, dtype=np.int32), (), "all")
    ours = np.asarray(model.forward(rows, model.new_state()))
    wanted = oracle_of_rows(tiny, 2.0 * table[IDS].astype(np.float64))
    np.testing.assert_allclose(ours, wanted, atol=TOLERANCE, rtol=0)
    assert np.array_equal(np.asarray(given), table[IDS] * 2), "the caller's rows were written to"


def test_positions_turn_the_rows(tmp_path: Path, kernels: str) -> None:
    """Rope knows distances only: all positions moved by 100 give the same logits; spread do not."""
    model = load(tmp_path)

    def at(positions: np.ndarray) -> np.ndarray:
        rows = Rows(IDS.astype(np.int64), None, positions.astype(np.int32), (), "last")
        return np.asarray(model.forward(rows, model.new_state()))

    plain = at(np.arange(40))
    np.testing.assert_allclose(at(np.arange(40) + 100), plain, atol=TOLERANCE)
    assert np.abs(at(np.arange(40) * 3) - plain).max() > 100 * TOLERANCE


@pytest.mark.parametrize("ids", [[-1], [64], []])
def test_ids_outside_the_vocabulary_are_refused(
    tmp_path: Path, kernels: str, ids: list[int]
) -> None:
    model = load(tmp_path)
    state = model.new_state()
    with pytest.raises(ValueError):
        model.forward(Rows.of_ids(ids, 0), state)
    assert state.length == 0


def test_positions_in_three_axes_are_refused(tmp_path: Path) -> None:
    model = load(tmp_path)
    rows = Rows(IDS.astype(np.int64), None, np.zeros((3, 40), np.int32))
    with pytest.raises(ValueError, match="positions"):
        model.forward(rows, model.new_state())


def test_the_state_is_where_the_kernels_want_it(tmp_path: Path, kernels: str) -> None:
    kind = HostKVLayer if choice.current().path().host_blocks else KVLayer
    assert all(type(layer) is kind for layer in load(tmp_path).new_state().layers)


def test_predicted_kv_bytes_are_never_exceeded(tmp_path: Path, kernels: str) -> None:
    model = load(tmp_path)
    state = model.new_state()
    for start in range(0, 1200, 100):
        model.forward(Rows.of_ids([3] * 100, start, "none"), state)
        assert 0 < state.nbytes <= model.kv_bytes(state.length)


def test_compute_path_and_weights_are_told(tmp_path: Path, kernels: str) -> None:
    model = load(tmp_path)
    total = sum(t.nbytes for t in Tiny().tensors().values())
    assert model.weights_bytes == total
    held = "F32 blocks of the file" if kernels == "auto" else "float32"
    assert f"CPU; 23 matrices held as {held}" in model.compute_path
    assert ("in C++" in model.compute_path) == (kernels == "auto")
    assert ("OpenBLAS" in model.compute_path) == (kernels == "openblas")


def test_one_matrix_is_told_as_one(tmp_path: Path, kernels: str) -> None:
    loader = LayerLoader(write(tmp_path / "tiny.gguf", Tiny()), choice.current().path())
    loader.matrix("output", 64, 32)
    assert "; 1 matrix held as " in loader.words()


def test_a_tied_matrix_is_held_once(tmp_path: Path, kernels: str) -> None:
    tiny = VARIANTS["tied"]
    assert load(tmp_path, tiny).weights_bytes == sum(t.nbytes for t in tiny.tensors().values())


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantised_matrices_are_held_as_they_are(tmp_path: Path, kernels: str, kind: str) -> None:
    """The path of a GPU (float16 rows and KV, MLX's quantised products), run by the CPU, and
    this machine's own path give the same logits but for float16's rounding."""
    tiny = Tiny(width=64, inner=96, value_size=16, key_size=16, rotary=16)
    gguf = write(tmp_path / "q.gguf", tiny, matrices=GGMLQuantizationType[kind])
    own = walk(load_model(gguf, Settings()), IDS, [33, 7])
    path = ComputePath("gpu", "quantised", mx.float16, "fused", False)
    half = DecoderModel(llama(gguf), gguf, path, 100)
    assert half.compute_path.startswith(f"GPU; 23 matrices held as {kind[1]}-bit groups of 32")
    state = half.new_state()
    ours = np.asarray(half.forward(Rows.of_ids(IDS, 0, "all"), state))
    np.testing.assert_allclose(ours, own, atol=0.05, rtol=0)
    assert state.nbytes <= half.kv_bytes(len(IDS)) <= load(tmp_path, tiny).kv_bytes(len(IDS))
    assert half.weights_bytes < load(tmp_path, tiny).weights_bytes / 2


# -- files that are not read -------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    gguf = write(tmp_path / "bad.gguf", Tiny(), {key: None})
    with pytest.raises(GGUFError, match=f"llama.{key}"):
        load_model(gguf, Settings())


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("attention.head_count", 0, "head_count"),
        ("attention.head_count_kv", 3, "share"),
        ("rope.dimension_count", 7, "rotary"),
        ("rope.dimension_count", 16, "rotary"),
        ("rope.scaling.type", "longrope", "longrope"),
        ("expert_count", 8, "experts"),
        ("attention.layer_norm_rms_epsilon", "small", "epsilon"),
        ("attention.layer_norm_rms_epsilon", 0.0, "rms_epsilon is 0"),
        ("attention.layer_norm_rms_epsilon", -1e-5, "rms_epsilon is -1e-05"),
        ("attention.layer_norm_rms_epsilon", math.nan, "rms_epsilon is nan"),
        ("rope.freq_base", 0.0, "freq_base is 0"),
        ("rope.freq_base", -1.0, "freq_base is -1"),
        ("rope.freq_base", math.nan, "freq_base is nan"),
        ("rope.freq_base", math.inf, "freq_base is inf"),
    ],
)
def test_an_impossible_key_is_refused(tmp_path: Path, key: str, value: Any, word: str) -> None:
    gguf = write(tmp_path / "bad.gguf", Tiny(), {key: value})
    with pytest.raises(GGUFError, match=word):
        load_model(gguf, Settings())


@pytest.mark.parametrize("rotary", [7, 9, 10, 16])
def test_rotary_values_are_compared_with_the_heads_of_the_file(tmp_path: Path, rotary: int) -> None:
    """Also where no key gives the size of a head."""
    keys = {"rope.dimension_count": rotary, "attention.key_length": None}
    gguf = write(tmp_path / "bad.gguf", Tiny(), keys)
    with pytest.raises(GGUFError, match=f"{rotary} rotary values do not fit heads of 8"):
        llama(gguf)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("blk.1.ffn_down.weight", None),
        ("blk.0.attn_k.weight", np.zeros((8, 32), np.float32)),
        ("output_norm.weight", np.zeros(31, np.float32)),
        ("rope_freqs.weight", np.ones(3, np.float32)),
        ("rope_freqs.weight", np.zeros(4, np.float32)),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named(
    tmp_path: Path, name: str, tensor: np.ndarray | None
) -> None:
    gguf = write(tmp_path / "bad.gguf", Tiny(), tensors={name: tensor})
    with pytest.raises(GGUFError, match=name):
        load_model(gguf, Settings())


def test_an_unknown_architecture_is_named_with_those_we_read(tmp_path: Path) -> None:
    gguf = write(tmp_path / "other.gguf", replace(Tiny(), architecture="mamba"))
    with pytest.raises(GGUFError, match=r"'mamba'.*llama"):
        load_model(gguf, Settings())


def test_tensors_that_nobody_takes_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    with caplog.at_level(logging.WARNING):
        load_model(write(tmp_path / "extra.gguf", Tiny(), tensors=extra), Settings())
    assert "blk.0.attn_q_norm.weight" in caplog.text


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    """Attention over the whole of it is exact up to the window's size."""
    gguf = write(tmp_path / "tiny.gguf", Tiny(), {"attention.sliding_window": 1024})
    assert load_model(gguf, Settings()).context_tokens == 1024


# -- memory, before anything is loaded ---------------------------------------------------------


@pytest.mark.parametrize(("asked", "granted"), [(0, 4096), (100, 100), (9999, 4096)])
def test_context_is_the_models_own_or_less(tmp_path: Path, asked: int, granted: int) -> None:
    gguf = write(tmp_path / "tiny.gguf", Tiny())
    assert load_model(gguf, Settings(asked)).context_tokens == granted


@pytest.mark.parametrize("asked", [1, 5, 63])
def test_a_context_without_room_is_refused_before_loading(tmp_path: Path, asked: int) -> None:
    broken = {"output_norm.weight": np.zeros(31, np.float32)}
    gguf = write(tmp_path / "tiny.gguf", Tiny(), tensors=broken)
    with pytest.raises(ConfigError, match=f"context of {asked} tokens has no room"):
        load_model(gguf, Settings(asked))


def test_a_context_above_the_models_own_is_cut_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf = write(tmp_path / "tiny.gguf", Tiny())
    load_model(gguf, Settings(4096))
    assert "asked for" not in caplog.text
    load_model(gguf, Settings(999_999_999))
    assert "has a context of 4096 tokens: the 999999999 asked for are cut" in caplog.text


def test_what_cannot_fit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """Room for the weights alone, or for the shortest context alone, is not enough."""
    gguf = write(tmp_path / "tiny.gguf", Tiny())
    model = load_model(gguf, Settings())
    for room in (1000, model.weights_bytes, model.kv_bytes(512), model.kv_bytes(512) + 1000):
        with pytest.raises(OutOfMemory) as caught:
            load_model(gguf, Settings(), lambda room=room: room)
        assert caught.value.available_bytes == room
        assert caught.value.needed_bytes >= model.weights_bytes + model.kv_bytes(512)


def test_context_is_cut_to_the_memory_unless_asked_for(tmp_path: Path) -> None:
    gguf = write(tmp_path / "tiny.gguf", Tiny())
    model = load_model(gguf, Settings())
    room = 2 * model.weights_bytes + model.kv_bytes(2000)
    cut = load_model(gguf, Settings(), lambda: room)
    assert 2000 <= cut.context_tokens < 4096
    assert cut.kv_bytes(cut.context_tokens) <= room
    with pytest.raises(OutOfMemory):
        load_model(gguf, Settings(4096), lambda: room)
