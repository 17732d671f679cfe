"""What checking a vocabulary found, kept for the next start.

One small file for each model file, named by where that is; it counts only for a file of the same
size, time and header. Anything odd about it is a miss: then the vocabulary is checked again and
the file written anew. Nothing that would be quicker to read than to make again is kept.
"""

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
import xxhash

from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.vocabulary import Findings, Vocabulary, read_vocabulary
from ds4tui.files import write_atomically

_log = logging.getLogger(__name__)

# Raised whenever a check or what it finds changes.
_VERSION = 2

_MAX_ENTRIES = 64
_MAX_ENTRY_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A model file as it is now: moved, changed or replaced, it is another one."""

    path: str
    file_bytes: int
    modified_ns: int
    header: str  # xxh3_128 of all before the tensors, in hex

    @classmethod
    def of(cls, gguf: GGUFFile) -> "FileIdentity":
        """Raises OSError if the file is gone."""
        path = gguf.path.resolve()
        status = path.stat()
        header = xxhash.xxh3_128_hexdigest(gguf.header().tobytes())
        return cls(str(path), status.st_size, status.st_mtime_ns, header)

    def file_name(self) -> str:
        return xxhash.xxh3_128_hexdigest(os.fsencode(self.path)) + ".json"


class VocabularyCache:
    """A folder of findings, at most `max_entries` (the oldest go first). Processes may share
    it: files are replaced whole."""

    def __init__(self, folder: Path, max_entries: int = _MAX_ENTRIES) -> None:
        self._folder = folder
        self._max_entries = max_entries

    @classmethod
    def of_user(cls) -> "VocabularyCache":
        """In the user's cache folder, or the one that DS4TUI_CACHE_DIR names."""
        named = os.environ.get("DS4TUI_CACHE_DIR")
        base = Path(named) if named else platformdirs.user_cache_path("ds4tui", appauthor=False)
        return cls(base / "vocabularies")

    def read(self, gguf: GGUFFile) -> Vocabulary:
        """`read_vocabulary`, with its errors; the cache itself never fails."""
        identity = _identity(gguf)
        findings = None if identity is None else self._look_up(identity)
        vocabulary = read_vocabulary(gguf, findings)
        if findings is None and identity is not None:
            self._store(identity, vocabulary.findings)
        return vocabulary

    def _look_up(self, identity: FileIdentity) -> Findings | None:
        path = self._folder / identity.file_name()
        try:
            with open(path, "rb") as file:
                content = file.read(_MAX_ENTRY_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as exc:
            _log.info("the vocabulary cache cannot be read: %s", exc)
            return None
        findings = _parsed(content, identity)
        if findings is None:
            _log.info("%s is of another file or version, or damaged: made anew", path)
        return findings

    def _store(self, identity: FileIdentity, findings: Findings) -> None:
        content = _written(identity, findings)
        if len(content) > _MAX_ENTRY_BYTES:
            return
        try:
            write_atomically(self._folder / identity.file_name(), content)
            self._drop_oldest()
        except OSError as exc:
            _log.info("the vocabulary cache cannot be written: %s", exc)

    def _drop_oldest(self) -> None:
        entries = sorted(self._folder.glob("*.json"), key=_modified_ns)
        for path in entries[: max(0, len(entries) - self._max_entries)]:
            path.unlink(missing_ok=True)


def _identity(gguf: GGUFFile) -> FileIdentity | None:
    try:
        return FileIdentity.of(gguf)
    except OSError:  # unlinked since it was opened
        return None


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # another process was quicker
        return 0


def _written(identity: FileIdentity, findings: Findings) -> bytes:
    body = {"version": _VERSION, "file": asdict(identity), "findings": asdict(findings)}
    text = json.dumps(body)
    return f"{xxhash.xxh3_128_hexdigest(text.encode())}\n{text}".encode()


def _parsed(content: bytes, identity: FileIdentity) -> Findings | None:
    """None for anything but what `_written` wrote for the same file."""
    checksum, _, body = content.partition(b"\n")
    if xxhash.xxh3_128_hexdigest(body).encode() != checksum:
        return None
    held = json.loads(body)
    if held["version"] != _VERSION or held["file"] != asdict(identity):
        return None
    found = held["findings"]
    return Findings(tuple(found["left_out"]), tuple(found["borrowed"]), found["glued"])
