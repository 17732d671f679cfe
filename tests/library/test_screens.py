"""The screen reader of the package is found for one model, and told with what it cannot read."""

from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.library import screens
from ds4tui.library.eyes import found_for
from ds4tui.library.verified import mark
from ds4tui.pictures.reading import read_picture
from tests.screens import QUESTIONS

CONTENT = b"a text model" * 100


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the screen reader is made for, as far as a file of other content can be."""
    small = replace(screens.MADE_FOR, file_bytes=len(CONTENT))
    monkeypatch.setattr(screens, "MADE_FOR", small)
    monkeypatch.setattr(screens, "_MADE_FOR", xxhash.xxh3_128_hexdigest(CONTENT))
    path = tmp_path / "any-name.gguf"
    path.write_bytes(CONTENT)
    return path


def test_it_is_found_for_its_model_whatever_the_name(model: Path) -> None:
    assert found_for(model, model.parent) == [screens.MMPROJ]


def test_what_lies_beside_the_model_comes_first(model: Path) -> None:
    own = model.with_name("mmproj-own.gguf")
    own.write_bytes(b"x")
    assert found_for(model, model.parent) == [own, screens.MMPROJ]


def test_one_bit_makes_another_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.write_bytes(b"A" + CONTENT[1:])
    assert found_for(model, model.parent) == []
    monkeypatch.setattr(screens, "_fingerprint", lambda path: pytest.fail("it was read"))
    model.write_bytes(CONTENT + b"\0")  # of another size: not worth a look
    assert found_for(model, model.parent) == []
    assert found_for(model.with_name("gone.gguf"), model.parent) == []


def test_what_a_pull_has_verified_is_not_read_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(model, screens.MADE_FOR)
    monkeypatch.setattr(screens, "_fingerprint", lambda path: pytest.fail("it was read"))
    assert screens.brought_for(model) == [screens.MMPROJ]


def test_why_a_model_does_not_get_it() -> None:
    assert screens.why_not("llama", 64, []) == screens.why_not("qwen2", 576, []) == ""
    assert "vocabulary" in screens.why_not("llama", 576, ["other"])


@pytest.mark.real_model
def test_a_fine_tune_of_its_model_is_told_how_to_try_it(smollm2_path: Path) -> None:
    with GGUFFile.open(smollm2_path) as gguf:
        words = gguf.key("tokenizer.ggml.tokens", list)
    told = screens.why_not("llama", 576, words)
    assert "this is another file" in told and f"--mmproj {screens.MMPROJ.name}" in told
    assert screens.is_made_for(smollm2_path)
    assert screens._fingerprint(smollm2_path) == screens._MADE_FOR


def test_the_file_is_what_the_constants_say() -> None:
    with GGUFFile.open(screens.MMPROJ) as gguf:
        assert VisionConfig.of(gguf).text_width == screens._WIDTH
        assert gguf.key("general.license", str) == "apache-2.0"
    (question,) = (q for q in QUESTIONS if q["question"] == screens.SAMPLE_QUESTION)
    assert question["png"] == screens.SAMPLE.name and "truth" not in question
    assert read_picture(screens.SAMPLE).size == (360, 200)
    assert sorted(path.name for path in screens.FOLDER.iterdir()) == [
        "LICENSE", "README.md", screens.MMPROJ.name, "sample.png"
    ]  # fmt: skip


def test_the_sample_goes_by_a_name_unless_a_file_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert screens.sample_named(" sample ") == screens.SAMPLE
    assert screens.sample_named("sample.png") is None
    (tmp_path / "sample").write_bytes(b"x")
    assert screens.sample_named("sample") is None


def test_only_its_limits_are_known() -> None:
    assert "misreads" in screens.limits_of(screens.MMPROJ)
    assert screens.limits_of("mmproj-other.gguf") == screens.limits_of("") == ""
