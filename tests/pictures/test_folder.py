import os
from pathlib import Path

import pytest

from ds4tui.pictures.folder import newest, screenshots_folder
from tests.pictures.programs import make, only_these


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    only_these(tmp_path, monkeypatch)
    return tmp_path


def place(home: Path, system: str, **more: str) -> Path:
    return screenshots_folder({"HOME": str(home), "PATH": os.environ["PATH"], **more}, system)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo ~/Pictures/shots", None),
        ("echo '/elsewhere/my shots'", "/elsewhere/my shots"),
        ("echo 'The domain/default pair does not exist' >&2; exit 1", "Desktop"),
        ("true", "Desktop"),
    ],
)
def test_macos_is_asked(home: Path, script: str, expected: str | None) -> None:
    make(home / "programs", "defaults", script)
    wanted = home / (expected or "Pictures/shots")
    assert place(home, "Darwin") == wanted
    (home / "programs" / "defaults").unlink()
    assert place(home, "Darwin") == home / "Desktop"


def test_linux_goes_by_the_names_of_its_folders(home: Path) -> None:
    assert place(home, "Linux") == home / "Pictures"
    (home / "Pictures" / "Screenshots").mkdir(parents=True)
    assert place(home, "Linux") == home / "Pictures" / "Screenshots"
    (home / ".config").mkdir()
    (home / ".config" / "user-dirs.dirs").write_text('# x\nXDG_PICTURES_DIR="$HOME/Bilder"\n')
    assert place(home, "Linux") == home / "Bilder"
    assert place(home, "Linux", XDG_PICTURES_DIR="/p") == Path("/p")


def test_the_newest_pictures_come_first(tmp_path: Path) -> None:
    for age, name in enumerate(["new.png", "old.JPG", "older.webp", "notes.txt", ".hidden.png"]):
        (tmp_path / name).write_bytes(b"x" * (age + 1))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "gone")
    found = newest(tmp_path)
    assert [each.path.name for each in found] == ["new.png", "old.JPG", "older.webp"]
    assert (found[1].changed_s, found[1].bytes) == (999, 2)
    assert [each.path.name for each in newest(tmp_path, 1)] == ["new.png"]
    with pytest.raises(OSError):
        newest(tmp_path / "gone")
