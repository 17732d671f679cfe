"""What headers said, kept for the next list: walking a vocabulary of 150,000 texts takes 50 to
100 ms a file. An entry counts only for files of the same sizes and times, on a machine that holds
them the same way; anything odd about the cache is a miss, and it may be deleted at any time."""

import json
import logging
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import platformdirs

from ds4tui import __version__
from ds4tui.files import write_atomically
from ds4tui.library.discover import PART
from ds4tui.library.headers import Facts, assumed_path, read_facts

log = logging.getLogger(__name__)

MAX_ENTRIES = 2000
MAX_BYTES = 2**22


class FactsCache:
    """`facts` reads headers only where it must; `save` keeps what was asked for since."""

    def __init__(self) -> None:
        self._known = _load(_file())
        self._used: dict[str, Any] = {}
        self._is_new = False

    def facts(self, path: Path) -> Facts:
        """As headers.read_facts, which may raise."""
        stamp = _stamp(path)
        facts = _facts_of(self._known.get(str(path)), stamp)
        if facts is None:
            facts = read_facts(path)
            self._is_new = True
        self._used[str(path)] = {"stamp": stamp, "facts": asdict(facts)}
        return facts

    def save(self) -> None:
        """Entries of models that were not asked for are left out: they are gone."""
        if not self._is_new:
            return
        kept = dict(list(self._used.items())[:MAX_ENTRIES])
        try:
            write_atomically(_file(), json.dumps(kept).encode())
        except OSError as exc:
            log.info("what headers said is not kept: %s", exc)


def _file() -> Path:
    root = os.environ.get("DS4TUI_CACHE_DIR")
    return (Path(root) if root else platformdirs.user_cache_path("ds4tui", False)) / "models.json"


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        known = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def _stamp(path: Path) -> list[Any]:
    """What must be the same for an entry to count. Raises OSError."""
    part = PART.match(path.name)
    paths = [path]
    if part:
        beginning = f"{part['stem']}-"
        beside = path.parent.glob(f"*-of-{part['count']}.gguf")
        paths = sorted(p for p in beside if p.name.startswith(beginning))
    status = [p.stat() for p in paths]
    files = [[s.st_size, s.st_mtime_ns] for s in status]
    return [__version__, str(assumed_path()), files]


def _facts_of(entry: Any, stamp: list[Any]) -> Facts | None:
    try:
        if entry["stamp"] != stamp:
            return None
        facts = Facts(**entry["facts"])
    except (KeyError, TypeError):
        return None
    right = all(type(getattr(facts, f.name)) is f.type for f in fields(Facts))
    return facts if right else None
