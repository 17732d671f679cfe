"""Whole native steps, beside what test_decoder.py draws: buffers, sources, refusals."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.engine.capacity import BLOCK_ROWS
from ds4tui.engine.state import HostKVLayer
from ds4tui.kernels.block import BlockShape
from ds4tui.kernels.cpu.native.decoder import NativeBlock, NativeDecoder
from ds4tui.kernels.cpu.native.library import loaded
from ds4tui.kernels.cpu.native.variants import runnable
from ds4tui.kernels.decoder import Ends
from tests.kernels.test_decoder import EPSILON, VOCAB, Kind, Model, linear

NAMES = [variant.name for variant in runnable()]
KIND = Kind(BlockShape(4, 2, 6, 5, EPSILON, 0.3))


@pytest.fixture(params=NAMES)
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param, KIND, 1)


def run(model: Model, layers: list, start: int, end: int, logits: str = "all") -> np.ndarray | None:
    result = model.decoder()(ids(start, end), layers, model.turns(start, end), logits)
    return None if result is None else np.asarray(result)


def ids(start: int, end: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB, 1200)[start:end]


@pytest.mark.parametrize("step", [1, 3, 40])
def test_buffers_grow_in_the_middle_of_a_step(model: Model, step: int) -> None:
    layers, border = model.layers(), BLOCK_ROWS
    run(model, layers, 0, 1, "none")  # allocates one block
    run(model, layers, 1, border - 1, "none")
    capacity = layers[0].nbytes
    ours = run(model, layers, border - 1, border - 1 + step)
    assert (layers[0].nbytes > capacity) == (step > 1)
    assert {layer.length for layer in layers} == {border - 1 + step}
    again = run(model, layers, border - 1 + step, border + 1 + step)
    wanted = model.wanted(ids(0, border + 1 + step))[border - 1 :]
    np.testing.assert_allclose(np.concatenate([ours, again]), wanted, atol=5e-4, rtol=1e-4)


def test_a_rewound_row_is_overwritten(model: Model) -> None:
    layers = model.layers()
    run(model, layers, 0, 50)
    kept = run(model, layers, 50, 51)
    for layer in layers:
        layer.rewind(30)
    other = model.decoder()(ids(100, 120), layers, model.turns(30, 50), "all")
    assert not np.allclose(np.asarray(other)[-1], kept[0])
    for layer in layers:
        layer.rewind(30)
    np.testing.assert_allclose(run(model, layers, 30, 51)[-1], kept[0], atol=5e-4, rtol=1e-4)


def test_buffers_of_any_size_will_do(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are read in panels, whose last may stick out of a buffer."""
    monkeypatch.setattr("ds4tui.engine.capacity.BLOCK_ROWS", 7)
    layers, parts = model.layers(), []
    for start, end in ((0, 33), (33, 34), (34, 47)):
        parts.append(run(model, layers, start, end))
    wanted = model.wanted(ids(0, 47))
    np.testing.assert_allclose(np.concatenate(parts), wanted, atol=5e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [None, 40, 530])
@pytest.mark.parametrize("rows", [512, 543, 1100])
def test_a_decode_step_looks_at_long_sequences_in_parts(
    name: str, window: int | None, rows: int
) -> None:
    model = Model(name, replace(KIND, shape=replace(KIND.shape, window=window)), 2)
    layers = model.layers()
    run(model, layers, 0, rows, "none")
    ours = np.concatenate([run(model, layers, rows + i, rows + i + 1) for i in range(3)])
    wanted = model.wanted(ids(0, rows + 3))[rows:]
    np.testing.assert_allclose(ours, wanted, atol=5e-4, rtol=1e-4)


def test_only_the_logits_that_are_asked_for_are_made(model: Model) -> None:
    everything = run(model, model.layers(), 0, 20)
    last = run(model, model.layers(), 0, 20, "last")
    assert last.shape == (1, VOCAB) and everything.shape == (20, VOCAB)
    np.testing.assert_allclose(last[0], everything[-1], atol=1e-4)
    assert run(model, model.layers(), 0, 20, "none") is None


def test_given_embeddings_are_taken_as_they_are(model: Model) -> None:
    scaled = Model(model.name, replace(KIND, scale=5.0), 1)
    given = mx.array(5.0 * scaled.embedding[ids(0, 9)])
    ours = scaled.decoder()(given, scaled.layers(), scaled.turns(0, 9), "all")
    np.testing.assert_allclose(np.asarray(ours), run(scaled, scaled.layers(), 0, 9), atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(model: Model, threads: int) -> None:
    kernels = loaded(next(v for v in runnable() if v.name == model.name))
    usual, results = kernels.threads, []
    try:
        for count in (usual, threads):
            kernels.start(count)
            layers = model.layers()
            results.append([run(model, layers, a, b) for a, b in ((0, 70), (70, 71), (71, 74))])
    finally:
        kernels.start(usual)
    for first, second in zip(*results, strict=True):
        assert np.array_equal(first, second)


def test_a_failed_step_leaves_all_lengths(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    layers, decoder = model.layers(), model.decoder()
    decoder(ids(0, 5), layers, model.turns(0, 5), "none")
    monkeypatch.setattr(type(decoder._kernels), "step", fail)
    with pytest.raises(MemoryError):
        decoder(ids(5, 6), layers, model.turns(5, 6), "last")
    assert {layer.length for layer in layers} == {5}


def test_what_has_no_kernel_is_refused(model: Model) -> None:
    kernels = loaded(next(v for v in runnable() if v.name == model.name))
    weights = [model.weights(block) for block in model.blocks]
    embedding = linear(model.name, model.embedding)
    ends = Ends(embedding, mx.array(model.norm), embedding, EPSILON)

    def blocks(**changes: object) -> list[NativeBlock]:
        shapes = KIND.shape, replace(KIND.shape, **changes)
        return [NativeBlock(w, s) for w, s in zip(weights, shapes, strict=True)]

    NativeDecoder(kernels, ends, blocks(window=9, turn=1))
    with pytest.raises(ValueError, match="differ in their dimensions"):
        NativeDecoder(kernels, ends, blocks(heads=2))
    with pytest.raises(ValueError, match="more than 2 rotations"):
        NativeDecoder(kernels, ends, blocks(turn=2))
    plain = Model("reference", KIND, 1)
    with pytest.raises(TypeError, match="held as float32 in MLX"):
        NativeDecoder(kernels, ends, [NativeBlock(plain.weights(plain.blocks[0]), KIND.shape)])


def test_a_layer_is_not_written_beyond_its_buffers() -> None:
    layer = HostKVLayer()
    layer.reserved(3, (1, 2), (1, 2))
    layer.written(BLOCK_ROWS)
    with pytest.raises(AssertionError):
        layer.written(1)
