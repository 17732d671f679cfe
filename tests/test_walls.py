"""The import walls of INTERNALS.md, transitive: what is in sys.modules of a process that
imported every module of a room."""

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ds4tui"

WALLS = {
    ("cache", "chat"): {"mlx", "textual", "starlette"},
    ("engine", "kernels"): {"textual", "starlette"},
    ("tui", "app", "plain"): {"mlx", "starlette", "ds4tui.server"},
    ("server",): {"mlx", "textual", "ds4tui.tui"},
    ("assistant", "pictures"): {"mlx", "textual", "starlette"},
    ("events", "errors"): {"mlx", "numpy", "textual", "starlette"},
    ("config", "cli", "library", "logs", "files"): {"mlx", "numpy", "textual", "starlette"},
    ("engine.gguf", "engine.tokenizer", "engine.detokenizer"): {"mlx"},
    ("engine.sampling", "engine.requests", "engine.stats"): {"mlx"},
    ("engine.vision.pictures", "engine.vision.recognition"): {"mlx"},  # and all they import
    ("oneshot", "opening"): {"textual", "starlette"},
    ("oneshot",): {"mlx"},
    ("doctor", "selftest"): {"mlx", "textual", "starlette"},  # a missing one is a finding
}

CASES = [(room, frozenset(banned)) for rooms, banned in WALLS.items() for room in rooms]

PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print("\\n".join(sys.modules))
"""


def modules_of(room: str) -> list[str]:
    """Every module of a room, itself included."""
    path = PACKAGE.joinpath(*room.split("."))
    files = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else path.rglob("*.py")
    dotted = ["ds4tui." + ".".join(f.relative_to(PACKAGE).with_suffix("").parts) for f in files]
    return sorted(name.removesuffix(".__init__") for name in dotted)


def imported_by(names: list[str]) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


@pytest.mark.parametrize(("room", "banned"), CASES, ids=[room for room, _ in CASES])
def test_nothing_comes_through_the_wall(room: str, banned: frozenset[str]) -> None:
    names = modules_of(room)
    assert names
    found = imported_by(names)
    assert set(names) <= found
    through = {m for m in found if any(m == b or m.startswith(b + ".") for b in banned)}
    assert not through


def test_the_walls_could_be_seen_through() -> None:
    """The test above would notice: what it looks for appears when it is imported."""
    for name in ("mlx.core", "numpy", "textual", "starlette", "ds4tui.server.app"):
        assert name in imported_by([name])
    assert {"ds4tui.tui", "ds4tui.tui.panels"} <= set(modules_of("tui"))
    assert modules_of("engine.gguf") == ["ds4tui.engine.gguf"]


def test_engine_is_a_folder_and_nothing_else() -> None:
    for room in ("engine", "engine/models", "cache", "chat", "tui", "server", "kernels"):
        assert (PACKAGE / room / "__init__.py").read_text() == ""
