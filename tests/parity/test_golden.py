"""Our engine against Hugging Face's logits, for every family that it reads."""

import pytest

from ds4tui.engine.models.registry import FAMILIES as READ
from ds4tui.errors import GGUFError
from tests.golden.files import FOLDER, families, golden, golden_path, projector_path, row, sha256
from tests.golden.make.tokens import VOCAB
from tests.parity.checks import check_golden, check_sensitivity, text_rows
from tests.parity.ours import load

# Drawn from the manifest: a family is compared as soon as the registry knows its architecture.
IMPLEMENTED = [name for name, facts in families().items() if facts["architecture"] in READ]


@pytest.fixture(params=["auto", "openblas", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_logits_are_those_of_hugging_face(name: str) -> None:
    """Whole, chunked and stepped, at every position (of a vision family, before the image)."""
    check_golden(load(golden_path(name)), name)


# So many tokens of a slow family one is tried, beside the last.
EVERY = {"deepseek4": 20, "glm5-next": 10}


@pytest.mark.parametrize("name", [name for name in IMPLEMENTED if not row(name)["vision"]])
def test_every_token_is_felt(name: str) -> None:
    check_sensitivity(load(golden_path(name)), name, EVERY.get(name, 1))


def test_every_family_with_a_golden_file_is_read() -> None:
    assert list(families()) == IMPLEMENTED


@pytest.mark.parametrize("name", [name for name, facts in families().items() if facts["vision"]])
def test_an_image_encoder_is_not_taken_for_a_model(name: str) -> None:
    with pytest.raises(GGUFError, match="clip"):
        load(projector_path(name))


def test_llama_is_among_the_families_that_are_compared() -> None:
    assert {"llama", "llama-tied", "llama-rope3", "idefics3"} <= set(IMPLEMENTED)


@pytest.mark.parametrize("name", families())
def test_files_are_those_of_the_manifest(name: str) -> None:
    facts, arrays = row(name), golden(name)
    paths = [FOLDER / f"{name}.npz", golden_path(name)]
    paths += [projector_path(name)] if facts["vision"] else []
    assert {path.name: sha256(path.read_bytes()) for path in paths} == facts["sha256"]
    assert arrays["logits"].shape == (facts["tokens"], VOCAB)
    assert ("mimic_logits" in arrays) == bool(facts["mimic"])
    assert 0 < text_rows(name) <= facts["tokens"]
    assert facts["sensitivity"] >= 100 * facts["tolerance"]
