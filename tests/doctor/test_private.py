import tempfile
from pathlib import Path

import pytest

from ds4tui.doctor import private
from ds4tui.doctor.private import anonymous, shortened


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_user_name", lambda: "maria")


def test_the_home_folder_is_a_tilde_however_it_is_reached(own_home: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(own_home)
    assert shortened(f"in {own_home}/x and {own_home}.") == "in ~/x and ~."
    assert shortened(f"{own_home}work/x") == f"{own_home}work/x", "another folder"


def test_a_home_behind_a_link_is_found_by_both_names(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(own_home)
    monkeypatch.setenv("HOME", str(link))
    assert shortened(f"{link}/a {own_home}/b") == "~/a ~/b"


def test_the_name_goes_from_other_paths_but_not_out_of_words() -> None:
    assert anonymous("/mnt/c/Users/maria/x") == "/mnt/c/Users/USER/x"
    assert anonymous("mariadb, of maria") == "mariadb, of USER"


@pytest.mark.parametrize("name", ["", "ab", "root", "python"])
def test_a_common_or_short_name_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_user_name", lambda: name)
    assert anonymous("the root of ab and python") == "the root of ab and python"


def test_temporary_files_lie_in_a_folder_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/zz/7f3/T")
    assert anonymous("/var/folders/zz/7f3/T/a.gguf") == "TEMP/a.gguf"


def test_a_path_begins_where_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert anonymous("/var/tmp/a and /tmp/b") == "/var/tmp/a and TEMP/b"


def test_folders_that_somebody_chose_are_told_by_their_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DS4TUI_DATA_DIR", "/opt/joe-secret/data")
    monkeypatch.setenv("CXX", "/srv/acme/bin/g++")
    text = anonymous("/opt/joe-secret/data/models, compiled by /srv/acme/bin/g++")
    assert text == "DS4TUI_DATA_DIR/models, compiled by CXX/g++"


def test_no_folder_for_temporary_files_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    assert anonymous("as it is") == "as it is"
