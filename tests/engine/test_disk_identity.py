"""Rows of one model serve no other: whatever would alter a number alters the name."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4tui.config import Settings
from ds4tui.engine import disk_identity
from ds4tui.engine.disk_identity import model_identity
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import load_model
from ds4tui.kernels.policy import LoadedWeightsPolicy
from tests.engine.tiny_llama import Tiny, write

TINY = Tiny()


def identity_of(tiny: Tiny, path: Path, **keys: Any) -> bytes:
    write(path, tiny, **keys).close()
    with GGUFFile.open(path) as gguf:
        return model_identity(gguf, load_model(gguf, Settings()))


def test_the_same_file_has_the_same_name_wherever_it_lies(tmp_path: Path) -> None:
    one, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    assert identity_of(TINY, one) == identity_of(TINY, other)
    assert len(identity_of(TINY, one)) == 16


@pytest.mark.parametrize(
    "other",
    [
        replace(TINY, seed=1),
        replace(TINY, base=20_000.0),
        replace(TINY, scaling=2.0),
        replace(TINY, epsilon=1e-6),
        replace(TINY, factors=True),
    ],
)
def test_weights_and_keys_tell(other: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    assert identity_of(TINY, path) != identity_of(other, path)


def _with_policy(gguf: GGUFFile, model: Any) -> None:
    model.weights_policy = LoadedWeightsPolicy(scales="float16")


def _with_path(gguf: GGUFFile, model: Any) -> None:
    model.compute_path += ", by other kernels"


@pytest.mark.parametrize("change", [_with_policy, _with_path])
def test_what_loading_does_tells(change: Callable[[Any, Any], None], tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write(path, TINY).close()
    with GGUFFile.open(path) as gguf:
        model = load_model(gguf, Settings())
        before = model_identity(gguf, model)
        change(gguf, model)
        assert model_identity(gguf, model) != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("CPU; C++ kernels (AVX2, 2 threads)", "CPU; C++ kernels (AVX2, 1 thread)"),
        ("CPU; NumPy's OpenBLAS on 2 threads", "CPU; NumPy's OpenBLAS on 16 threads"),
    ],
)
def test_how_many_threads_share_the_work_tells_nothing(
    one: str, other: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf"
    write(path, TINY).close()
    with GGUFFile.open(path) as gguf:
        model: Any = load_model(gguf, Settings())
        names = set()
        for model.compute_path in (one, other):
            names.add(model_identity(gguf, model))
        assert len(names) == 1


def test_numerics_of_the_engine_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(TINY, tmp_path / "a.gguf")
    monkeypatch.setattr(disk_identity, "NUMERICS_VERSION", disk_identity.NUMERICS_VERSION + 1)
    assert identity_of(TINY, tmp_path / "a.gguf") != before


def test_a_large_file_is_sampled_and_its_time_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_identity, "WHOLE_FILE_BYTES_MAX", 1)
    monkeypatch.setattr(disk_identity, "_SAMPLE_BYTES", 64)
    path = tmp_path / "a.gguf"
    write(path, TINY).close()

    def name() -> bytes:
        with GGUFFile.open(path) as gguf:
            return model_identity(gguf, load_model(gguf, Settings()))

    first = name()
    assert name() == first
    os.utime(path, ns=(1, 1))
    assert name() != first
