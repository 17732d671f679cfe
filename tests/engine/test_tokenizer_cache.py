"""A file is checked thoroughly once; whatever is odd about the cache is a miss."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine import tokenizer_cache, vocabulary
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.tokenizer_cache import VocabularyCache
from ds4tui.engine.vocabulary import Findings
from tests.engine.gguf_samples import write_gguf
from tests.engine.vocabularies import (
    CONTROL,
    PREFIX,
    USER_DEFINED,
    byte_keys,
    sentence_keys,
    vocabulary_file,
)
from tests.scale import scaled


@pytest.fixture
def cache(tmp_path: Path) -> VocabularyCache:
    return VocabularyCache(tmp_path / "cache")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose merges were checked, one after the other."""
    done: list[str] = []
    check = vocabulary._check_merges

    def counted(gguf: GGUFFile, *others: Any) -> Findings:
        done.append(gguf.path.name)
        return check(gguf, *others)

    monkeypatch.setattr(vocabulary, "_check_merges", counted)
    return done


def odd_keys() -> dict[str, Any]:
    """A vocabulary with both kinds of findings."""
    keys = byte_keys(merges=("t h", "th e", "a b"))
    keys[PREFIX + "token_type"][256] = int(USER_DEFINED)
    keys[PREFIX + "token_type"][258] = int(CONTROL)
    return keys


def write(path: Path, keys: dict[str, Any] | None = None) -> Path:
    with vocabulary_file(path, odd_keys() if keys is None else keys):
        return path


def encoded(path: Path, cache: VocabularyCache | None) -> list[list[int]]:
    with GGUFFile.open(path) as file:
        made = Tokenizer.from_gguf(file, cache)
    return [made.encode_plain(text).tolist() for text in ("the", "ab", "th")]


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").iterdir())


def test_the_second_start_checks_nothing_and_gives_the_same(
    tmp_path: Path, cache: VocabularyCache, checks: list[str]
) -> None:
    path = write(tmp_path / "model.gguf")
    wanted = encoded(path, None)
    assert wanted == [[257], [97, 98], [256]]
    checks.clear()
    assert [encoded(path, cache) for _ in range(3)] == [wanted] * 3
    assert checks == ["model.gguf"]
    assert len(entries(tmp_path)) == 1


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 32)
    os.utime(path, ns=(0, 0))


def edit(path: Path) -> None:
    """Same size, same time, other header."""
    before = path.stat()
    content = path.read_bytes()
    assert content.count(b"a b") == 1
    path.write_bytes(content.replace(b"a b", b"b a").replace(b"ab", b"ba"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize("change", [touch, grow, edit])
def test_a_changed_file_is_another_one(
    tmp_path: Path, cache: VocabularyCache, checks: list[str], change: Any
) -> None:
    path = write(tmp_path / "model.gguf")
    os.utime(path, ns=(0, 0))
    encoded(path, cache)
    change(path)
    wanted = encoded(path, None)
    checks.clear()
    assert encoded(path, cache) == encoded(path, cache) == wanted
    assert len(checks) == 1 and len(entries(tmp_path)) == 1


def test_files_at_two_places_do_not_meet(
    tmp_path: Path, cache: VocabularyCache, checks: list[str]
) -> None:
    one, two = write(tmp_path / "one.gguf"), write(tmp_path / "two.gguf", byte_keys())
    for _ in range(2):
        assert encoded(one, cache) == [[257], [97, 98], [256]]
        assert encoded(two, cache) == [[256, 101], [97, 98], [256]]
    assert checks == ["one.gguf", "two.gguf"]


def test_sentence_pieces_are_cached_too(tmp_path: Path, cache: VocabularyCache) -> None:
    path = write(tmp_path / "model.gguf", sentence_keys())
    assert encoded(path, cache) == encoded(path, cache) == encoded(path, None)


DAMAGE = ("a bit", "shorter", "longer", "empty", "a line", "no text")


def damaged(content: bytes, kind: str, place: float, bit: int) -> bytes:
    at = int(place * len(content))
    return {
        "a bit": content[:at] + bytes((content[at] ^ 1 << bit,)) + content[at + 1 :],
        "shorter": content[:at],
        "longer": content + b"x",
        "empty": b"",
        "a line": b"\n",
        "no text": b"\xff" * 99,
    }[kind]


@settings(max_examples=scaled(60), deadline=None)
@given(
    kind=st.sampled_from(DAMAGE),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_damaged_entry_is_a_miss_and_made_anew(
    tmp_path_factory: pytest.TempPathFactory, kind: str, place: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    cache = VocabularyCache(folder / "cache")
    path = write(folder / "model.gguf")
    wanted = encoded(path, cache)
    (entry,) = entries(folder)
    good = entry.read_bytes()
    entry.write_bytes(damaged(good, kind, place, bit))
    assert encoded(path, cache) == wanted
    assert entry.read_bytes() == good


def test_another_version_is_a_miss(
    tmp_path: Path, cache: VocabularyCache, checks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model.gguf")
    encoded(path, cache)
    monkeypatch.setattr(tokenizer_cache, "_VERSION", tokenizer_cache._VERSION + 1)
    encoded(path, cache)
    assert len(checks) == 2


def test_an_entry_says_what_it_is_of(tmp_path: Path, cache: VocabularyCache) -> None:
    path = write(tmp_path / "model.gguf")
    encoded(path, cache)
    checksum, _, body = entries(tmp_path)[0].read_bytes().partition(b"\n")
    held = json.loads(body)
    assert checksum.decode() == xxhash.xxh3_128_hexdigest(body)
    assert held["file"]["path"] == str(path.resolve())
    assert held["findings"] == {"left_out": [2], "borrowed": [256], "glued": ""}


def test_entries_are_bounded_and_the_oldest_go_first(tmp_path: Path, checks: list[str]) -> None:
    cache = VocabularyCache(tmp_path / "cache", max_entries=3)
    paths = [write(tmp_path / f"{number}.gguf") for number in range(5)]
    for number, path in enumerate(paths):
        encoded(path, cache)
        newest = max(entries(tmp_path), key=lambda p: p.stat().st_mtime_ns)
        os.utime(newest, ns=(number, number))
        assert len(entries(tmp_path)) <= 3
    checks.clear()
    for path in reversed(paths):
        encoded(path, cache)
    assert checks == ["1.gguf", "0.gguf"]


def test_a_cache_that_cannot_be_used_costs_nothing_but_time(
    tmp_path: Path, checks: list[str]
) -> None:
    (tmp_path / "cache").write_text("in the way")
    cache = VocabularyCache(tmp_path / "cache")
    path = write(tmp_path / "model.gguf")
    assert encoded(path, cache) == encoded(path, cache) == encoded(path, None)
    assert len(checks) == 3


def test_a_file_that_is_gone_is_read_without_the_cache(
    tmp_path: Path, cache: VocabularyCache
) -> None:
    path = write(tmp_path / "model.gguf")
    with GGUFFile.open(path) as file:
        path.unlink()
        assert Tokenizer.from_gguf(file, cache).encode_plain("the").tolist() == [257]
    assert not (tmp_path / "cache").exists()


def test_faults_are_not_kept(tmp_path: Path, cache: VocabularyCache) -> None:
    keys = byte_keys()
    keys[PREFIX + "merges"] = ["t ?"]
    path = write_gguf(tmp_path / "model.gguf", {}, keys)
    for _ in range(2):
        with GGUFFile.open(path) as file, pytest.raises(Exception, match="no token"):
            Tokenizer.from_gguf(file, cache)
    assert not (tmp_path / "cache").exists()


def test_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "model.gguf")
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(tmp_path / "own"))
    encoded(path, VocabularyCache.of_user())
    assert len(list((tmp_path / "own" / "vocabularies").glob("*.json"))) == 1
    monkeypatch.delenv("DS4TUI_CACHE_DIR")
    monkeypatch.setattr(tokenizer_cache.platformdirs, "user_cache_path", lambda *a, **k: tmp_path)
    assert VocabularyCache.of_user()._folder == tmp_path / "vocabularies"


# --- how long a start takes ------------------------------------------------

STARTS_S = 0.3

START = """
import sys, time
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.engine.tokenizer_cache import VocabularyCache
began = time.process_time()
with GGUFFile.open(sys.argv[1]) as file:
    made = Tokenizer.from_gguf(file, VocabularyCache.of_user())
print(time.process_time() - began, made.encode("The quick brown fox"))
"""


@pytest.mark.dev_models
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_the_second_start_is_quick(dev_model: Any, name: str) -> None:
    """Each start is a process of its own. Its own time counts, not the clock's: others may be
    at work on the machine. The best of five, since a cold cache of the processor counts too."""
    command = [sys.executable, "-c", START, str(dev_model(name))]
    starts = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(" ", 1)
        for _ in range(6)
    ]
    assert len({ids for _, ids in starts}) == 1
    took = [float(seconds) for seconds, _ in starts[1:]]
    assert min(took) < STARTS_S, took
