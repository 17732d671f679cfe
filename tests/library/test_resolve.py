from pathlib import Path

import pytest

from ds4tui.errors import ModelNotFound
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.resolve import catalogued_path, display_name, models_dir, resolve_model

SMOLLM2 = CATALOGUE["smollm2"]


def make(path: Path, size: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def test_a_catalogue_name_in_any_case_is_its_file(tmp_path: Path) -> None:
    path = make(catalogued_path(SMOLLM2, tmp_path), SMOLLM2.file_bytes)
    assert resolve_model("SmolLM2", tmp_path) == path
    assert display_name(path, tmp_path) == "smollm2"


def test_a_known_model_that_is_not_there_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="not on this machine") as caught:
        resolve_model("smollm2", tmp_path)
    assert caught.value.hint == "Run: ds4tui pull smollm2"


def test_half_a_file_is_not_a_model(tmp_path: Path) -> None:
    make(catalogued_path(SMOLLM2, tmp_path), 1000)
    with pytest.raises(ModelNotFound, match="1,000 bytes instead of 98,362,432"):
        resolve_model("smollm2", tmp_path)


@pytest.mark.parametrize("name", ["mine", "mine.gguf"])
def test_a_file_of_the_models_folder_goes_by_its_name(tmp_path: Path, name: str) -> None:
    path = make(models_dir(tmp_path) / "mine.gguf")
    assert resolve_model(name, tmp_path) == path
    assert display_name(path, tmp_path) == "mine"


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "elsewhere" / "model.bin")
    assert resolve_model(str(path), tmp_path / "data") == path
    monkeypatch.chdir(path.parent)
    assert resolve_model("./model.bin", tmp_path / "data") == Path("model.bin")
    monkeypatch.setenv("HOME", str(path.parent))
    assert resolve_model("~/model.bin", tmp_path / "data") == path


def test_a_slip_of_the_pen_is_met_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("smolm2", tmp_path)
    assert caught.value.hint == "Did you mean smollm2? Run: ds4tui pull smollm2"
    make(models_dir(tmp_path) / "falcon.gguf")
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("falkon", tmp_path)
    assert caught.value.hint == "Did you mean falcon?"


def test_an_unknown_name_says_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_model("zzz", tmp_path)
    assert str(models_dir(tmp_path)) in caught.value.message
    assert "ds4tui models" in caught.value.hint


def test_a_folder_is_told_apart_from_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a folder"):
        resolve_model(str(tmp_path), tmp_path)


@pytest.mark.parametrize("name", ["", "x" * 5000, "a\0b", "~nobody-here/x", "/nowhere/x.gguf"])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFound):
        resolve_model(name, tmp_path)
