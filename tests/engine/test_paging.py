"""Models of which not all experts are held: the same answers, within the budget, and told."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ds4tui.engine.disk_identity import model_identity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.holding import experts_bytes, is_experts, picked_bytes, required_bytes
from ds4tui.engine.models.registry import Config, Model, family_of, load_model, path_for
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.paging import LEFT_OPEN, LoadWish, paged_path, paging_of
from ds4tui.errors import OutOfMemory
from ds4tui.kernels.choice import ComputePath
from ds4tui.kernels.expert_cache import ExpertCache
from ds4tui.kernels.policy import EXACT
from tests.golden.files import golden_path

FAMILIES = ("qwen3moe", "qwen35moe", "qwen4exp", "glm5-next")
MANY = 1 << 40


@pytest.fixture(params=FAMILIES)
def gguf(request: pytest.FixtureRequest) -> Iterator[GGUFFile]:
    with GGUFFile.open(golden_path(request.param)) as file:
        yield file


@pytest.fixture
def mixture() -> Iterator[GGUFFile]:
    with GGUFFile.open(golden_path("qwen3moe")) as file:
        yield file


def config_and_path(gguf: GGUFFile) -> tuple[Config, ComputePath]:
    config: Config = family_of(gguf).config(gguf)
    return config, path_for(EXACT, config.is_hybrid)


def walk(model: Model, sizes: tuple[int, ...]) -> np.ndarray:
    state, parts, at = model.new_state(), [], 0
    ids = np.random.default_rng(3).integers(0, model.vocab_size, sum(sizes))
    for size in sizes:
        positions = np.arange(at, at + size, dtype=np.int32)
        logits = model.forward(Rows(ids[at : at + size], None, positions, "all"), state)
        assert logits is not None
        parts.append(np.asarray(logits))
        at += size
    return np.concatenate(parts)


@pytest.mark.parametrize("sizes", [(24,), (7, 16, 1)])
def test_what_is_copied_on_demand_answers_alike(
    gguf: GGUFFile, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for what one token picks, on the path of a device that holds copies, after the
    file was closed."""
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    _, path = config_and_path(gguf)
    whole = load_model(gguf, LEFT_OPEN)
    budget, experts = picked_bytes(gguf, path), experts_bytes(gguf, path)
    paged = load_model(gguf, LoadWish(expert_cache_bytes=budget))
    assert whole.experts is None and paged.experts is not None
    gguf.close()
    np.testing.assert_allclose(walk(paged, sizes), walk(whole, sizes), atol=2e-5)
    stats = paged.experts.stats
    assert stats.misses and stats.evicted and 0 < stats.resident_bytes <= stats.budget_bytes
    assert stats.budget_bytes == budget < whole.weights_bytes
    assert paged.weights_bytes == whole.weights_bytes - experts + budget


def test_quantised_experts_are_copied_in_their_form(mixture: GGUFFile) -> None:
    """The form that MLX holds on a GPU, which a CPU computes too."""
    config, path = config_and_path(mixture)
    device = replace(
        path, matrices="quantised", native=None, host_blocks=False, attention="reference"
    )
    budget = picked_bytes(mixture, device)
    family = family_of(mixture)
    whole = family.load(config, mixture, device, 256)
    cache: ExpertCache = ExpertCache(budget)
    paged = family.load(config, mixture, replace(device, experts=cache), 256)
    np.testing.assert_allclose(walk(paged, (9, 1, 1)), walk(whole, (9, 1, 1)), atol=2e-5)
    assert cache.stats.misses and cache.stats.resident_bytes <= budget


def test_the_other_numbers_of_a_paged_model_are_kept_apart_on_disk(
    mixture: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    whole = load_model(mixture, LEFT_OPEN)
    some, more = (
        load_model(mixture, LoadWish(expert_cache_bytes=n * whole.weights_bytes // 8))
        for n in (2, 3)
    )
    assert "copied when they are picked" in some.compute_path
    identities = [model_identity(mixture, model) for model in (whole, some, more)]
    assert identities[0] != identities[1] == identities[2]  # whatever the budget


def test_a_model_that_does_not_fit_is_paged_and_told(
    gguf: GGUFFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    config, path = config_and_path(gguf)
    least = config.kv_bytes(512, path)
    fits = required_bytes(gguf, path) + least
    said: list[str] = []
    assert load_model(gguf, LoadWish(512), lambda: fits, tell=said.append).experts is None
    assert not said
    with caplog.at_level(logging.WARNING):
        model = load_model(gguf, LoadWish(512), lambda: fits - 1, tell=said.append)
    assert model.experts is not None and model.context_tokens == min(512, config.context_tokens)
    paging = paging_of(gguf, replace(path, experts=model.experts))
    assert paging is not None and paging.words in said[0] and paging.words in caplog.text
    assert f"{paging.picked_bytes / 2**20:,.0f} MiB" in said[0]
    assert paging.all_bytes == experts_bytes(gguf, path) > model.experts.stats.budget_bytes


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9, 0.99])
def test_all_that_a_paged_model_takes_fits(mixture: GGUFFile, share: float) -> None:
    """Weights, the cache full, and a state of the context that is granted."""
    config, path = config_and_path(mixture)
    device = replace(path, matrices="dense", native=None, host_blocks=False)
    least = config.kv_bytes(512, device)
    room = int(share * (required_bytes(mixture, device) + least))
    paged = paged_path(mixture, config, device, LEFT_OPEN, room)
    if paged.experts is None:  # not even what a token picks has room
        others = required_bytes(mixture, replace(device, experts=ExpertCache(0)))
        assert others + least + picked_bytes(mixture, device) > room * 15 / 16
        return
    assert required_bytes(mixture, paged) + least <= room
    assert paged.experts.stats.budget_bytes >= picked_bytes(mixture, paged)


def test_what_fits_in_no_way_is_refused(mixture: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    with pytest.raises(OutOfMemory):
        load_model(mixture, LEFT_OPEN, lambda: 100_000)
    config, path = config_and_path(mixture)
    fits = required_bytes(mixture, path) + config.kv_bytes(512, path)
    with pytest.raises(OutOfMemory):  # 0: never paged
        load_model(mixture, LoadWish(512, 0), lambda: fits - 1)


def test_too_small_a_cache_is_raised_to_what_a_token_picks(
    mixture: GGUFFile, caplog: pytest.LogCaptureFixture
) -> None:
    config, path = config_and_path(mixture)
    device = replace(path, matrices="dense", native=None, host_blocks=False)
    paged = paged_path(mixture, config, device, LoadWish(0, 1), MANY)
    assert paged.experts is not None
    assert paged.experts.stats.budget_bytes == picked_bytes(mixture, device)
    assert "expert_cache is raised" in caplog.text


def test_a_cache_for_all_experts_is_none(mixture: GGUFFile) -> None:
    config, path = config_and_path(mixture)
    device = replace(path, matrices="dense", native=None, host_blocks=False)
    every = experts_bytes(mixture, device)
    assert paged_path(mixture, config, device, LoadWish(0, every), MANY) is device
    assert paged_path(mixture, config, device, LoadWish(0, every - 1), MANY).experts is not None


def test_a_token_picks_so_many_of_each_stack(mixture: GGUFFile) -> None:
    _, path = config_and_path(mixture)
    used, count = (mixture.key(f".expert_{k}count", int) for k in ("used_", ""))
    assert picked_bytes(mixture, path) * count == experts_bytes(mixture, path) * used


def test_blocks_of_the_file_are_left_to_the_system(
    mixture: GGUFFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Products read them where they are mapped: nothing is copied, and only what does not fit is
    not asked for ahead."""
    config, path = config_and_path(mixture)
    assert path.native is not None
    asked: list[int] = []
    monkeypatch.setattr(type(path.native), "will_need", lambda _, view: asked.append(view.nbytes))
    fits = required_bytes(mixture, path) + config.kv_bytes(512, path)
    whole = load_model(mixture, LoadWish(512), lambda: fits)
    everything = sum(asked)
    asked.clear()
    short = load_model(mixture, LoadWish(512), lambda: fits - 1)
    stacks = [info for info in mixture.tensors.values() if is_experts(info)]
    assert sum(asked) == everything - sum(info.nbytes for info in stacks)
    assert short.experts is None and "the system keeps what fits" in caplog.text
    np.testing.assert_array_equal(walk(short, (8, 1)), walk(whole, (8, 1)))
    caplog.clear()
    load_model(mixture, LoadWish(512, 1000), lambda: fits)
    assert "expert_cache does nothing here" in caplog.text


def test_other_models_have_no_experts_to_page() -> None:
    with GGUFFile.open(golden_path("llama")) as gguf:
        config, path = config_and_path(gguf)
        assert paged_path(gguf, config, path, LoadWish(0, 1), 0) is path
        assert paging_of(gguf, path) is None
