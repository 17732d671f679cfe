"""Files that are close to what is read: which they are, and what they would need, in words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.near import ROPE_SCALINGS, UNREAD, unread_architecture, unread_scaling
from ds4tui.engine.models.registry import FAMILIES, family_of
from ds4tui.engine.models.rotation import Rotation
from ds4tui.errors import GGUFError
from tests.engine.gguf_samples import write_gguf


def refused(path: Path, architecture: str, keys: dict[str, Any] | None = None) -> str:
    write_gguf(path, {}, keys, architecture)
    with GGUFFile.open(path) as gguf, pytest.raises(GGUFError) as caught:
        family_of(gguf)
        Rotation.of(gguf, 64)
    return caught.value.message


@pytest.mark.parametrize("architecture", sorted(UNREAD))
def test_a_close_architecture_says_what_it_would_need(architecture: str, tmp_path: Path) -> None:
    words = refused(tmp_path / "m.gguf", architecture)
    assert f"{architecture!r}, which is not read: {UNREAD[architecture].model}" in words
    assert words.endswith(f"would need {UNREAD[architecture].needs}.")


def test_an_unknown_architecture_is_named_only(tmp_path: Path) -> None:
    words = refused(tmp_path / "m.gguf", "mamba")
    assert words.endswith("'mamba', which is not read.")


@pytest.mark.parametrize("kind", [*ROPE_SCALINGS, "odd"])
def test_a_rope_scaling_that_is_not_read_says_what_it_would_need(kind: str, tmp_path: Path) -> None:
    keys = {
        "llama.rope.scaling.type": kind,
        "llama.rope.dimension_count": np.uint32(64),
        "llama.embedding_length": np.uint32(256),
        "llama.attention.head_count": np.uint32(4),
    }
    words = refused(tmp_path / "m.gguf", "llama", keys)
    assert f"rope scaling of type {kind!r} is not read{unread_scaling(kind)}." in words


def test_what_is_read_is_not_called_unread() -> None:
    assert not UNREAD.keys() & FAMILIES.keys()
    assert not any(unread_architecture(name) for name in FAMILIES)
    assert not any(unread_scaling(kind) for kind in ("none", "linear", "yarn"))
