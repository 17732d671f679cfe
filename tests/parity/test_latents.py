"""Families of latent attention at every chunk border, and faults that must be seen."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from ds4tui.engine.models import latent
from ds4tui.engine.models.registry import Model, load_model
from ds4tui.engine.models.rotation import Rotation
from ds4tui.engine.models.rows import Rows
from ds4tui.engine.state import LatentLayer
from ds4tui.errors import GGUFError
from ds4tui.kernels import latent_rows, pooled_index
from ds4tui.kernels.latent_rows import LatentRows
from tests.engine.changed_gguf import changed
from tests.golden.files import families, golden, golden_path
from tests.parity.ours import Settings, load, walk

ARCHITECTURES = ("deepseek2", "deepseek32", "glm-dsa")
NAMES = [name for name, facts in families().items() if facts["architecture"] in ARCHITECTURES]
TOLERANCE = 1e-4


@cache
def loaded(name: str) -> Model:
    return load(golden_path(name))


def gap(model: Model, name: str, schedule: str = "whole") -> float:
    return float(np.abs(walk(model, golden(name)["ids"], schedule) - golden(name)["logits"]).max())


@pytest.mark.parametrize("name", NAMES)
def test_every_border_of_two_chunks_gives_the_golden_logits(name: str) -> None:
    model, ids, wanted = loaded(name), golden(name)["ids"], golden(name)["logits"]
    state = model.new_state()
    for border in range(1, len(ids)):
        state.rewind(0)
        first = model.forward(Rows.of_ids(ids[:border], 0, "all"), state)
        second = model.forward(Rows.of_ids(ids[border:], border, "all"), state)
        got = np.concatenate([np.asarray(first), np.asarray(second)])
        np.testing.assert_allclose(got, wanted, atol=TOLERANCE, err_msg=str(border))


@pytest.mark.parametrize("name", ["deepseek2-yarn", "deepseek32", "glm-dsa"])
def test_a_rewind_is_bit_for_bit(name: str) -> None:
    model, ids = loaded(name), golden(name)["ids"]
    state, other = model.new_state(), np.array(ids[::-1])
    for border in (1, 11, 12, 13, 30):
        state.rewind(0)
        model.forward(Rows.of_ids(ids[:border], 0), state)
        once = np.array(model.forward(Rows.of_ids(ids[border:], border, "all"), state))
        state.rewind(border)
        model.forward(Rows.of_ids(other[:9], border), state)
        state.rewind(border)
        again = np.array(model.forward(Rows.of_ids(ids[border:], border, "all"), state))
        np.testing.assert_array_equal(again, once)


# -- faults ------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def one_row_fewer_is_chosen(patch: pytest.MonkeyPatch) -> None:
    chosen = pooled_index.chosen_pools
    patch.setattr(
        latent_rows, "chosen_pools", lambda s, first, size, kept: chosen(s, first, size, kept - 1)
    )


def what_is_found_is_one_row_late(patch: pytest.MonkeyPatch) -> None:
    attend = latent_rows.attend
    patch.setattr(
        latent_rows, "attend", lambda q, k, v, s, first: attend(q, k, mx.roll(v, 1, 1), s, first)
    )


def index_keys_are_one_row_late(patch: pytest.MonkeyPatch) -> None:
    append = LatentLayer.append

    def late(self: LatentLayer, *rows: mx.array) -> tuple[mx.array, ...]:
        held = append(self, *rows)
        return held[0], *(mx.roll(keys, 1, axis=1) for keys in held[1:])

    patch.setattr(LatentLayer, "append", late)


def what_was_chosen_is_a_step_old(patch: pytest.MonkeyPatch) -> None:
    """The choice of the step before, in which the newest row was not there."""
    choose = LatentRows._choose
    before: dict[int, mx.array] = {}

    def stale(self: LatentRows, index: Any, n: mx.array, *rest: Any) -> None:
        choose(self, index, n, *rest)
        choice = self._choice
        assert choice is not None
        if choice.rows is None:
            return
        old, before[id(self)] = before.get(id(self)), choice.rows
        if old is not None:
            missing = choice.rows.shape[1] - old.shape[1]
            choice.rows = mx.pad(old, [(0, 0), (0, missing)])

    patch.setattr(LatentRows, "_choose", stale)


def keys_turn_one_position_late(patch: pytest.MonkeyPatch) -> None:
    kept = LatentRows._kept

    def late(self: LatentRows, *rest: Any) -> mx.array:
        *others, cosines = rest
        return kept(self, *others, tuple(mx.roll(part, 1, axis=0) for part in cosines))

    patch.setattr(LatentRows, "_kept", late)


def the_scale_is_not_stretched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(latent, "_rotation", lambda gguf: (Rotation.of(gguf, 16), 1.0))


def halves_are_not_paired_in_the_index(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(latent, "neighbours", lambda heads, size, turned: np.arange(heads * size))


def groups_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(latent.SigmoidRouting, "_within_groups", lambda self, wanted: wanted)


FAULTS: list[tuple[str, Patch]] = [
    ("deepseek32", one_row_fewer_is_chosen),
    ("glm-dsa", one_row_fewer_is_chosen),
    ("deepseek2", what_is_found_is_one_row_late),
    ("deepseek32", index_keys_are_one_row_late),
    ("glm-dsa", index_keys_are_one_row_late),
    ("deepseek2-lite", keys_turn_one_position_late),
    ("glm-dsa", keys_turn_one_position_late),
    ("deepseek2-yarn", the_scale_is_not_stretched),
    ("deepseek32", halves_are_not_paired_in_the_index),
    ("deepseek2-v3", groups_are_not_looked_at),
]


@pytest.mark.parametrize(
    ("name", "fault"), FAULTS, ids=lambda part: getattr(part, "__name__", part)
)
def test_a_fault_is_seen(name: str, fault: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    assert gap(load(golden_path(name)), name) <= TOLERANCE
    fault(monkeypatch)
    assert gap(load(golden_path(name)), name) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ["deepseek32", "glm-dsa"])
def test_a_choice_that_is_a_step_old_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what_was_chosen_is_a_step_old(monkeypatch)
    assert gap(load(golden_path(name)), name, "stepped") > 100 * TOLERANCE


# -- variants ----------------------------------------------------------------------------------


def test_an_up_projection_in_one_tensor_is_understood(tmp_path: Path) -> None:
    """As early converters wrote it: of each head the rows of keys, then those of values."""
    import gguf

    held = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(golden_path("deepseek2")).tensors}
    tensors: dict[str, np.ndarray | None] = {}
    for name, keys in held.items():
        if name.endswith("attn_k_b.weight"):
            at = name.removesuffix("attn_k_b.weight")
            both = np.concatenate([keys.swapaxes(1, 2), held[at + "attn_v_b.weight"]], axis=1)
            tensors |= {name: None, at + "attn_v_b.weight": None}
            tensors[at + "attn_kv_b.weight"] = both.reshape(-1, both.shape[-1])
    assert tensors
    with changed("deepseek2", tmp_path / "early.gguf", tensors=tensors) as file:
        assert gap(load_model(file, Settings()), "deepseek2") <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "keys", "words"),
    [
        ("deepseek2-v3", {"expert_gating_func": 1}, "routing of kind 1 with 2 of 4 groups and"),
        ("deepseek2", {"expert_gating_func": 7}, "routing of kind 7"),
        ("deepseek2-v3", {"expert_group_used_count": 5}, "experts in 5 of 4 groups"),
        ("glm-dsa", {"attention.indexer.types": [False, True, True, True]}, "block 0 shares"),
        ("glm-dsa", {"attention.indexer.types": [True]}, "does not tell of all blocks"),
    ],
)
def test_what_is_not_read_is_refused_in_words(
    name: str, keys: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with (
        changed(name, tmp_path / "other.gguf", keys) as file,
        pytest.raises(GGUFError, match=words),
    ):
        load_model(file, Settings())


def test_tensors_of_an_index_that_no_block_looks_at_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As published files of GLM-5.2 have them in blocks that share one."""
    import gguf

    held = {t.name: np.asarray(t.data) for t in gguf.GGUFReader(golden_path("glm-dsa")).tensors}
    own = {name: values for name, values in held.items() if name.startswith("blk.1.indexer.")}
    more = {name.replace("blk.1", "blk.2"): values + 1 for name, values in own.items()}
    assert more and not more.keys() & held.keys()
    tensors: dict[str, np.ndarray | None] = dict(more)
    with changed("glm-dsa", tmp_path / "more.gguf", tensors=tensors) as file:
        model = load_model(file, Settings())
    assert gap(model, "glm-dsa") <= TOLERANCE
    assert "not used" not in caplog.text and set(model.unused_tensors) == set(more)


def test_a_long_context_means_shared_indexes_where_the_file_does_not_say(tmp_path: Path) -> None:
    """GLM-5.2 against GLM-5: the blocks that have tensors of an index are those that need them."""
    keys = {"attention.indexer.types": None, "context_length": 1_048_576}
    index = {
        f"blk.3.indexer.{part}": None
        for part in (
            "attn_k.weight",
            "attn_q_b.weight",
            "proj.weight",
            "k_norm.weight",
            "k_norm.bias",
        )
    }
    with changed("glm-dsa", tmp_path / "long.gguf", keys, index) as file:
        with pytest.raises(GGUFError, match=r"blk\.2\.indexer"):
            load_model(file, Settings(512))  # block 2 has one of its own, and the file none
        kept = [len(part.kept.sizes) for part in latent.latent(file).parts]  # type: ignore[attr-defined]
    assert kept == [2, 2, 2, 1]
    short = {"attention.indexer.types": None}
    with changed("glm-dsa", tmp_path / "short.gguf", short) as file:
        kept = [len(part.kept.sizes) for part in latent.latent(file).parts]  # type: ignore[attr-defined]
    assert kept == [2, 2, 2, 2]
