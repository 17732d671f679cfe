"""`ds4tui cache`: what is stored on disk, told and cleaned as conversations."""

import json
import re
from pathlib import Path

import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from ds4tui.cli import main
from ds4tui.config import size_bytes
from tests.cache.kv_samples import IDENTITY, true_page

SHARED = list(range(300))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two conversations that share 300 tokens."""
    folder = tmp_path / "kv"
    tier = DiskTier(folder, 10**8, IDENTITY, label="mine")
    for start, ids, what in ((0, SHARED, ""), (300, SHARED + [7] * 40, "one"),
                             (300, SHARED + [8] * 60, "other")):  # fmt: skip
        timeline = Timeline.of(ids)
        assert tier.put_page(
            timeline, start, true_page(timeline, start, len(ids)).layers, what=what
        )
    assert tier.close(10.0)
    return folder


def told(capsys: pytest.CaptureFixture[str], folder: Path, *words: str, code: int = 0) -> str:
    assert main(["cache", *words, "--kv-disk-dir", str(folder)]) == code
    return capsys.readouterr().out


def test_an_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "Nothing is stored" in told(capsys, tmp_path / "none", "ls")
    (tmp_path / "there").mkdir()
    assert "No conversation is stored." in told(capsys, tmp_path / "there", "ls")


def test_conversations_are_listed_and_shown(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    listed = told(capsys, folder, "ls")
    assert "one" in listed and "other" in listed and listed.count("mine") == 2
    values = json.loads(told(capsys, folder, "ls", "--json"))["conversations"]
    assert {(v["what"], v["tokens"], v["records"]) for v in values} == {
        ("one", 340, 2), ("other", 360, 2),
    }  # fmt: skip
    shown = told(capsys, folder, "show", values[0]["name"])
    assert re.search(r"length +3[46]0 tokens, in 2 pages", shown) and "shared with others" in shown


def test_what_is_pinned_outlives_a_clearing(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    values = json.loads(told(capsys, folder, "ls", "--json"))["conversations"]
    (name,) = (v["name"] for v in values if v["what"] == "one")
    assert "is pinned" in told(capsys, folder, "pin", name)
    told(capsys, folder, "clear")
    left = json.loads(told(capsys, folder, "ls", "--json"))["conversations"]
    assert [(v["what"], v["tokens"], v["is_pinned"]) for v in left] == [("one", 340, True)]
    told(capsys, folder, "unpin", name)
    told(capsys, folder, "prune", "--to", "0")
    assert "No conversation is stored." in told(capsys, folder, "ls")


def test_damage_is_found_told_and_removed(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert "3 records" in told(capsys, folder, "verify")
    page = max(folder.glob("*.page"), key=lambda p: p.stat().st_size)
    damaged = bytearray(page.read_bytes())
    damaged[-50] ^= 1
    page.write_bytes(damaged)
    assert "1 damaged" in told(capsys, folder, "verify", code=1)
    assert not page.exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("20GB", 20 * 10**9), ("1.5 TB", 1.5 * 10**12), ("512MiB", 2**29), ("1000", 1000),
     ("1kib", 1024), ("", None), ("GB", None), ("-1GB", None), ("1PB", None)],
)  # fmt: skip
def test_sizes(text: str, wanted: float | None) -> None:
    assert size_bytes(text) == wanted
