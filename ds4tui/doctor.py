"""`ds4tui doctor`: what this machine and installation can do, in words that can be pasted into a
bug report. Secrets are not shown; nothing is changed."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ds4tui import __version__
from ds4tui.config import Settings, config_path, log_path, state_path
from ds4tui.errors import Ds4Error
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.listing import LocalModel, local_models, megabytes
from ds4tui.library.pull import is_complete
from ds4tui.library.resolve import models_dir

# What reports are asked for most: the parts that compute, read, draw and serve.
PACKAGES = ("mlx", "numpy", "gguf", "tokenizers", "jinja2", "textual", "starlette", "uvicorn")

Line = tuple[bool, str]  # whether all is well, and what was found


def doctor(settings: Settings, out: TextIO) -> int:
    """Print the report; 0 if nothing is wrong, else 1."""
    well = True
    for title, lines in (
        ("ds4tui", _versions()),
        ("device", _device()),
        ("folders", _folders(settings)),
        ("models", _models(settings.data_dir)),
    ):
        print(title, file=out, flush=True)
        for good, text in lines:
            print(f"  {'ok ' if good else 'BAD'} {text}", file=out, flush=True)
            well = well and good
    print("nothing is wrong" if well else "something is wrong: see BAD above", file=out)
    return 0 if well else 1


def _versions() -> Iterator[Line]:
    yield True, f"ds4tui {__version__}, Python {platform.python_version()} ({sys.executable})"
    yield True, f"{platform.platform()}, {os.cpu_count()} cores"
    for name in PACKAGES:
        try:
            yield True, f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield False, f"{name} is not installed"


def _device() -> Iterator[Line]:
    try:
        import mlx.core as mx

        from ds4tui.cache.memory import available_memory_bytes
        from ds4tui.kernels import choice
    except ImportError as exc:
        yield False, f"MLX cannot be used: {exc}"
        return
    available = megabytes(available_memory_bytes())
    yield True, f"MLX computes on {mx.default_device()}, {available} of memory available"
    for twin in choice.report():
        use = "in use" if twin.in_use else "not used"
        yield not twin.is_fault, f"{twin.operation}: {twin.twin} is {use} ({twin.reason})"


def _folders(settings: Settings) -> Iterator[Line]:
    for what, path in (
        ("settings", config_path()),
        ("state", state_path()),
        ("log", log_path()),
        ("conversations", settings.database_path),
        ("models", models_dir(settings.data_dir)),
    ):
        holder = next(p for p in (path, *path.parents) if p.exists())
        writable = os.access(holder, os.W_OK)
        there = "" if path.exists() else " (not there yet)"
        yield writable, f"{what}: {path}{there}" + ("" if writable else ", not writable")


def _models(data_dir: Path) -> Iterator[Line]:
    for model in local_models(data_dir):
        if not model.file_bytes:
            yield True, f"{model.name}: {model.state}"
            continue
        try:
            yield _health(model)
        except (Ds4Error, OSError) as exc:
            yield False, f"{model.name}: {exc}"


def _health(model: LocalModel) -> Line:
    from ds4tui.engine.gguf import GGUFFile

    known = CATALOGUE.get(model.name)
    if known is not None and not is_complete(model.path, known, _silent):
        return False, f"{model.name}: damaged: ds4tui pull {model.name}"
    with GGUFFile.open(model.path) as gguf:
        about = f"{gguf.architecture}, {gguf.quantisation_label}, {gguf.parameters / 1e6:,.0f} M"
    checked = ", checksum right" if known is not None else ""
    return True, f"{model.name}: {about} parameters, {megabytes(model.file_bytes)}{checked}"


def _silent(progress: object) -> None:
    pass
