"""A model finds its eyes, or says why it has none and what to do."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.config import Settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.errors import GGUFError, OutOfMemory, UsageError
from ds4tui.library.screens import MMPROJ
from ds4tui.sight import Sight
from ds4tui.terminal import check_model
from tests.engine.vision.changed import with_keys
from tests.engine.vision.pictures import encoded, picture
from tests.golden.files import golden_path, projector_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "models" / "tiny-model.gguf"
    path.parent.mkdir()
    shutil.copy(golden_path("idefics3"), path)
    return path


def put(model: Path, name: str, family: str = "idefics3") -> Path:
    return Path(shutil.copy(projector_path(family), model.with_name(name)))


def sight(model: Path, mmproj: str = "", load: bool = False, is_binding: bool = True) -> Sight:
    settings = replace(Settings(), data_dir=model.parents[1], mmproj=mmproj)
    with GGUFFile.open(model) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        said = Sight.of("tiny", gguf, tokenizer, settings, lambda words: None, is_binding)
        with said as found:
            if load:
                text, images = found.load(gguf, settings)
                assert text.weights_bytes > 0 and (images is None) == (found.vision is None)
                assert images is None or images.weights_bytes > 0
    return found


def name_of(found: Sight) -> str | None:
    return found.vision.name if found.vision is not None else None


def test_the_one_beside_the_model_is_found(model: Path) -> None:
    put(model, "mmproj-tiny.gguf")
    found = sight(model, load=True)
    assert name_of(found) == "mmproj-tiny.gguf" and not found.refusal
    assert found.vision is not None
    assert found.vision.tokens_of((40, 30)) == found.vision(encoded(picture(40, 30))).block.rows


def test_of_several_the_one_that_fits_and_is_named_alike(model: Path) -> None:
    put(model, "mmproj-tiny-model-wrong.gguf", "gemma3v")
    put(model, "mmproj-a.gguf")
    put(model, "mmproj-tiny.gguf")
    assert name_of(sight(model)) == "mmproj-tiny.gguf"


def test_without_one_it_says_what_to_do(model: Path) -> None:
    found = sight(model, load=True)
    assert found.vision is None
    assert found.refusal.startswith("tiny sees no pictures: no image encoder (mmproj file) lies")
    assert "--mmproj FILE" in found.refusal and "ds4tui models --catalogue" in found.refusal


def test_the_one_of_the_package_is_not_for_models_that_only_look_like_its_own(model: Path) -> None:
    assert "screen reader" not in sight(model).refusal  # of a width that nobody takes for it
    source = golden_path("idefics3")
    with_keys(source, model, {"llama.embedding_length": 576})
    found = sight(model)
    assert found.vision is None and "and this model has another" in found.refusal


def test_the_one_of_the_package_is_named_by_its_file(model: Path) -> None:
    with pytest.raises(GGUFError, match="576 numbers, and the model takes 64"):
        sight(model, MMPROJ.name)


def test_one_that_does_not_fit_is_a_reason_or_if_named_an_error(model: Path) -> None:
    path = put(model, "mmproj-other.gguf", "gemma3v")
    found = sight(model)
    assert found.vision is None and "made for gemma3, not for llama" in found.refusal
    with pytest.raises(GGUFError, match="does not belong to this model"):
        sight(model, str(path))


def test_it_can_be_switched_off_or_named(model: Path, tmp_path: Path) -> None:
    put(model, "mmproj-tiny.gguf")
    assert "mmproj = none" in sight(model, "None").refusal
    elsewhere = tmp_path / "elsewhere.gguf"
    shutil.copy(projector_path("idefics3"), elsewhere)
    assert name_of(sight(model, str(elsewhere))) == "elsewhere.gguf"
    assert name_of(sight(model, "mmproj-tiny.gguf")) == "mmproj-tiny.gguf"  # of the models folder


def test_a_named_one_that_is_not_there_is_told_as_that_and_not_as_a_missing_model(
    model: Path,
) -> None:
    with pytest.raises(UsageError, match=r"There is no mmproj file gone\.gguf, nor") as raised:
        sight(model, "gone.gguf")
    assert "--mmproj none" in raised.value.hint


def test_one_that_was_named_for_another_model_is_used_last_if_it_fits(
    model: Path, tmp_path: Path
) -> None:
    named = tmp_path / "named.gguf"
    shutil.copy(projector_path("idefics3"), named)
    assert name_of(sight(model, str(named), is_binding=False)) == "named.gguf"
    put(model, "mmproj-tiny.gguf")
    assert name_of(sight(model, str(named), is_binding=False)) == "mmproj-tiny.gguf"
    assert name_of(sight(model, "gone.gguf", is_binding=False)) == "mmproj-tiny.gguf"
    model.with_name("mmproj-tiny.gguf").unlink()
    shutil.copy(projector_path("gemma3v"), named)
    found = sight(model, str(named), is_binding=False)
    assert found.vision is None and "named.gguf does not belong to this model" in found.refusal


def test_a_named_one_is_held_against_the_header_before_anything_is_closed(model: Path) -> None:
    path = put(model, "mmproj-tiny.gguf")
    settings = replace(Settings(), model=str(model), data_dir=model.parents[1])
    other = Path(shutil.copy(model, model.with_name("other.gguf")))
    check_model(str(model), replace(settings, mmproj=str(path)))
    check_model(str(model), replace(settings, mmproj="none"))
    bad = str(put(model, "mmproj-bad.gguf", "gemma3v"))
    for wrong, told in ((bad, "does not belong to this model"), ("gone", "There is no mmproj")):
        for name in (str(model), "tiny-model"):
            with pytest.raises((GGUFError, UsageError), match=told):
                check_model(name, replace(settings, mmproj=wrong))
        check_model(str(other), replace(settings, mmproj=wrong))  # it was not named for this one


def test_a_damaged_one_costs_only_the_pictures(model: Path) -> None:
    left_out = ("v.blk.0.ffn_up.weight",)
    source, broken = projector_path("idefics3"), model.with_name("mmproj-broken.gguf")
    with_keys(source, broken, {}, left_out)
    found = sight(model, load=True)
    assert found.vision is None and "v.blk.0.ffn_up" in found.refusal
    with pytest.raises(GGUFError, match=r"v\.blk\.0\.ffn_up"):
        sight(model, str(broken), load=True)


def test_memory_is_kept_for_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for the text model, and less than the encoder takes beside it."""
    path = put(model, "mmproj-tiny.gguf")
    room = golden_path("idefics3").stat().st_size * 2
    asked: list[int] = []

    def available() -> int:
        asked.append(room)
        return room

    monkeypatch.setattr("ds4tui.engine.device_memory.available_bytes", available)
    monkeypatch.setattr("ds4tui.engine.holding.required_bytes", lambda *of: room)
    found = sight(model, load=True)
    assert asked and found.vision is None and "no memory for its image encoder" in found.refusal
    with pytest.raises(OutOfMemory):
        sight(model, str(path), load=True)
