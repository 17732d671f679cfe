import io
import os
from pathlib import Path

import pytest

from ds4tui.config import Settings
from ds4tui.errors import GGUFError, ModelError, ModelNotFound
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.listing import known_model, list_models, listing_text
from ds4tui.library.pull import pull
from ds4tui.library.show import show
from ds4tui.library.verified import require_sound
from ds4tui.opening import open_assistant
from tests.library.fake_index import CONTENT, model_of


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The right file, brought by hand: never verified."""
    monkeypatch.setitem(CATALOGUE, "tiny", model_of())
    path = tmp_path / "models" / "tiny.gguf"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def damage(path: Path) -> None:
    """A byte is another; the size stays, and the time goes on."""
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


def checked(path: Path, data_dir: Path) -> list[str]:
    said: list[str] = []
    require_sound(path, data_dir, said.append)
    return said


def test_a_file_that_was_brought_is_read_once(path: Path, tmp_path: Path) -> None:
    said = checked(path, tmp_path)
    assert said and all(words.startswith("tiny: checking ") for words in said)
    assert checked(path, tmp_path) == []


def test_a_file_that_was_pulled_is_not_read(path: Path, tmp_path: Path) -> None:
    pull("tiny", tmp_path)
    assert checked(path, tmp_path) == []


def test_a_new_time_alone_costs_one_reading(path: Path, tmp_path: Path) -> None:
    pull("tiny", tmp_path)
    os.utime(path, ns=(0, 10**18))
    assert known_model("tiny", tmp_path).state.startswith("damaged or changed: not verified")
    assert checked(path, tmp_path)
    assert checked(path, tmp_path) == []
    assert known_model("tiny", tmp_path).state == "ready"


def test_a_damaged_model_is_not_opened(path: Path, tmp_path: Path) -> None:
    pull("tiny", tmp_path)
    damage(path)
    for _ in range(2):  # nothing is remembered of a wrong file
        with pytest.raises(ModelError, match="tiny is damaged") as caught:
            open_assistant("tiny", Settings(data_dir=tmp_path), lambda words: None)
        assert str(path) in caught.value.message
        assert caught.value.hint == "Run: ds4tui pull tiny"
        assert not isinstance(caught.value, ModelNotFound)


def test_a_damaged_model_is_not_shown_as_a_sound_one(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(path)
    settings, out = Settings(data_dir=tmp_path), io.StringIO()
    with pytest.raises(ModelError, match="tiny is damaged"):
        show(settings, "tiny", as_json=True, measure=False, out=out)
    path.write_bytes(CONTENT)
    with pytest.raises(GGUFError):  # right, and yet no GGUF: its content is a word
        show(settings, "tiny", as_json=True, measure=False, out=out)
    assert out.getvalue() == "" and "tiny: checking" in capsys.readouterr().err


def test_a_damaged_model_is_not_listed_as_one_that_opens(path: Path, tmp_path: Path) -> None:
    pull("tiny", tmp_path)
    damage(path)
    listed = [row for row in list_models(tmp_path).rows if row.path == path]
    assert [row.facts for row in listed] == [None]
    assert "tiny (known): damaged or changed: not verified" in listing_text(list_models(tmp_path))


def test_other_files_are_nobodys_to_check(path: Path, tmp_path: Path) -> None:
    other = path.with_name("other.gguf")
    other.write_bytes(b"anything")
    assert checked(other, tmp_path) == []
    path.chmod(0o600)
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        checked(path, tmp_path)
