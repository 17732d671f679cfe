"""The C++ kernels as a library of this machine: compiled at first use, kept in the cache folder.

Installing needs no compiler; a machine that has none uses a slower path. A library's name has a
hash of all that it depends on, so nothing is ever overwritten with something else, and two
processes that compile at once end with the same file.
"""

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from ds4tui.kernels.cpu.native.variants import Variant, cpu_features

log = logging.getLogger(__name__)

SOURCE = Path(__file__).parent / "source"
COMPILERS = ("g++", "clang++", "c++")
COMPILE_S = 180.0  # it takes 5 seconds on an idle machine
FLAGS = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-fPIC",
    "-pthread",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
    "-Wno-uninitialized",  # GCC 12 finds its own headers guilty of these two
    "-Wno-maybe-uninitialized",
)


class Unavailable(Exception):
    """There are no kernels for this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Compiler:
    path: str
    version: str


def find_compiler() -> Compiler:
    """CXX, or the first of COMPILERS on the PATH that runs. Raises Unavailable."""
    asked = os.environ.get("CXX")
    found = [path for name in ((asked,) if asked else COMPILERS) if (path := shutil.which(name))]
    for path in found:
        try:
            answer = _run([path, "--version"], 20)
        except Unavailable as exc:
            log.warning("%s", exc)
            continue
        return Compiler(path, answer)
    raise Unavailable(f"no C++ compiler found ({asked or ', '.join(COMPILERS)})")


# What this process tried to compile in vain.
_failed: set[Path] = set()


def built(variant: Variant) -> Path:
    """The library of `variant`, compiled now if it was not yet. Raises Unavailable."""
    compiler = find_compiler()
    path = library_path(variant, compiler)
    try:
        if not path.exists():
            _compile(variant, compiler, path)
    except OSError as exc:
        _failed.add(path)
        raise Unavailable(f"{path.parent} cannot be written to: {exc.strerror}") from exc
    except Unavailable:
        _failed.add(path)
        raise
    return path


def can_be_built(variant: Variant, compiler: Compiler) -> bool:
    """Whether `built` has a library or, as far as can be told without compiling, would get one."""
    path = library_path(variant, compiler)
    if path.exists():
        return True
    there = next(folder for folder in path.parents if folder.exists())
    return path not in _failed and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def library_path(variant: Variant, compiler: Compiler) -> Path:
    """Where the library is, or would be, that `compiler` makes of `variant`."""
    return cache_folder() / f"kernels-{variant.name}-{_key(variant, compiler)}.so"


def cache_folder() -> Path:
    root = os.environ.get("DS4TUI_CACHE_DIR")
    return (Path(root) if root else platformdirs.user_cache_path("ds4tui", False)) / "kernels"


def _compile(variant: Variant, compiler: Compiler, path: Path) -> None:
    log.info("compiling CPU kernels for %s, once", variant.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as work:
        made = Path(work) / path.name
        source = str(SOURCE / "step.cpp")
        _run([compiler.path, *FLAGS, *variant.flags, source, "-o", str(made)], COMPILE_S)
        os.replace(made, path)
    log.info("CPU kernels compiled in %.1f s: %s", time.monotonic() - began_s, path)


def _run(command: list[str], timeout_s: float) -> str:
    """What it wrote. Raises Unavailable if it fails, hangs or cannot be run."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as exc:
        raise Unavailable(f"{name} did not end within {timeout_s:.0f} s") from exc
    except OSError as exc:
        raise Unavailable(f"{name} cannot be run: {exc.strerror}") from exc
    if done.returncode:
        log.error("%s failed:\n%s", name, done.stdout[-4000:])
        raise Unavailable(f"{name} failed: {_first_error(done.stdout)}")
    return done.stdout


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no output")


def _key(variant: Variant, compiler: Compiler) -> str:
    """Of the source, the flags, the compiler and the CPU."""
    digest = hashlib.sha256()
    for part in (*FLAGS, *variant.flags, compiler.version, sys.platform, *sorted(cpu_features())):
        digest.update(part.encode() + b"\0")
    for file in sorted(SOURCE.iterdir()):
        if file.suffix in (".h", ".cpp"):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:20]
