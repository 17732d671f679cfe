"""`ds4tui cache`: what is stored on disk, told and cleaned as conversations."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui.cache.kvstore import DiskTier
from ds4tui.cache.timeline import Timeline
from ds4tui.chat.saved_replies import SavedReplies
from ds4tui.cli import main
from ds4tui.config import load_settings
from ds4tui.config_values import size_bytes
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
    value = json.loads(told(capsys, folder, "verify", "--json", code=1))
    assert value["removed"] and [d["file"] for d in value["damaged"]] == [page.name]
    assert not page.exists()


def names(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, str]:
    """IDs by how the conversation begins."""
    values = json.loads(told(capsys, folder, "--json"))["conversations"]
    return {value["what"]: value["name"] for value in values}


@pytest.fixture
def in_use(folder: Path) -> Iterator[Path]:
    """The folder, in which another process's tier writes."""
    tier = DiskTier(folder, 10**8, IDENTITY)
    assert tier.stats.is_writer
    yield folder
    tier.close(10.0)


def failed(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    assert main(["cache", *words, "--kv-disk-dir", str(folder)]) != 0
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def test_who_only_looks_sees_a_folder_that_another_one_uses(
    capsys: pytest.CaptureFixture[str], in_use: Path
) -> None:
    found = names(capsys, in_use)
    assert "360 tokens" in told(capsys, in_use, "show", found["other"])
    assert "none damaged" in told(capsys, in_use, "verify")
    for words in (["pin", found["one"]], ["unpin", found["one"]], ["clear"], ["prune", "--to=1GB"]):
        said = failed(capsys, in_use, *words)
        assert "another ds4tui writes in this folder" in said and "/v1/cache/pin" in said
    assert names(capsys, in_use) == found


def test_looking_does_not_keep_others_from_writing(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    before = {path.name for path in folder.iterdir()}
    assert "of 1.0 kB" in told(capsys, folder, "ls", "--kv-disk-budget", "1kB")  # and nothing goes
    assert {path.name for path in folder.iterdir()} <= before
    assert len(names(capsys, folder)) == 2


@pytest.mark.parametrize("name", ["nothing", "", " ", "%s", "'"])
def test_a_name_that_nothing_has(
    capsys: pytest.CaptureFixture[str], folder: Path, name: str
) -> None:
    for command in ("show", "pin", "unpin"):
        assert "ds4tui cache ls" in failed(capsys, folder, command, name)


def test_what_goes_is_told_as_conversations(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    found = names(capsys, folder)
    told(capsys, folder, "pin", found["other"])
    said = told(capsys, folder, "clear")
    assert f"gone or shortened: {found['one']}" in said and found["other"] not in said
    assert "1 conversation left, 1 pinned" in said
    value = json.loads(told(capsys, folder, "clear", "--pinned", "--json"))
    assert value["gone"] == [found["other"]] and value["freed_bytes"] > 0
    assert value["conversations"] == []


def test_a_budget_that_was_lowered_costs_nothing_that_was_not_asked_for(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    found = names(capsys, folder)
    for command in (("verify",), ("pin", found["one"]), ("unpin", found["one"])):
        assert "evicted" not in told(capsys, folder, *command, "--kv-disk-budget", "1kB")
    assert names(capsys, folder) == found


def test_sizes_want_their_unit(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    before = names(capsys, folder)
    assert "with its unit" in failed(capsys, folder, "prune", "--to", "5")
    assert "with its unit" in failed(capsys, folder, "verify", "--kv-disk-budget", "20")
    assert names(capsys, folder) == before


def test_replies_are_cleared_with_it(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    replies = SavedReplies(load_settings({"kv_disk_dir": str(folder)}).replies_path, b"words")
    replies.save(b"key", [1, 2, 3])
    told(capsys, folder, "clear")
    assert replies.load(b"key") is None
    replies.save(b"key", [1, 2, 3])
    shutil.rmtree(folder)
    told(capsys, folder, "clear")
    assert replies.load(b"key") is None
    replies.close()


def test_text_of_others_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tier = DiskTier(tmp_path / "kv", 10**8, IDENTITY, label="m\x1b[2J")
    timeline = Timeline.of(range(300))
    layers = true_page(timeline, 0, 300).layers
    assert tier.put_page(timeline, 0, layers, what="person: \x1b]0;hi\x07 a\nb")
    assert tier.close(10.0)
    listed = told(capsys, tmp_path / "kv", "ls")
    assert "\x1b" not in listed and "\x07" not in listed
    assert len(listed.splitlines()) == 3 and "you: " in listed


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("20GB", 20 * 10**9), ("1.5 TB", 1.5 * 10**12), ("512MiB", 2**29), ("1000", None), ("0", 0),
     ("1000000", 1e6), ("5B", 5),
     ("1kib", 1024), ("", None), ("GB", None), ("-1GB", None), ("1PB", None)],
)  # fmt: skip
def test_sizes(text: str, wanted: float | None) -> None:
    assert size_bytes(text) == wanted
