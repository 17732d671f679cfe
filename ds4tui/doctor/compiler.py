"""The C++ compiler that makes the CPU kernels, and whether they are made."""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ds4tui.doctor.findings import Finding

# What brings g++, by ID and ID_LIKE of os-release.
INSTALL = {
    "debian": "sudo apt install g++",
    "ubuntu": "sudo apt install g++",
    "fedora": "sudo dnf install gcc-c++",
    "rhel": "sudo dnf install gcc-c++",
    "suse": "sudo zypper install gcc-c++",
    "opensuse": "sudo zypper install gcc-c++",
    "arch": "sudo pacman -S gcc",
    "alpine": "sudo apk add g++",
}


def compiler() -> Iterator[Finding]:
    """Must be asked before the kernels' twins are checked, which compiles them."""
    from ds4tui.kernels import choice
    from ds4tui.kernels.cpu.native.build import Unavailable, find_compiler
    from ds4tui.kernels.cpu.native.variants import VARIANTS, runnable

    on_gpu = choice.current().device == "gpu"
    try:
        found = find_compiler()
    except Unavailable as exc:
        if on_gpu:
            yield Finding("ok", f"{exc}; none is needed on a GPU")
            return
        yield Finding("note", f"{exc}: a slower path is used", install_advice())
        return
    version = found.version.splitlines()[0] if found.version else "it does not say its version"
    facts = {"path": found.path, "version": version, "needed": not on_gpu}
    needless = "; not needed on a GPU" if on_gpu else ""
    yield Finding("ok", f"{found.path}: {version}{needless}", facts=facts)
    if on_gpu:
        return
    if not runnable():
        names = ", ".join(variant.name for variant in VARIANTS)
        yield Finding("note", f"this CPU has none of {names}: a slower path is used")
        return
    yield _kernels()


def _kernels() -> Finding:
    from ds4tui.kernels.cpu.native.build import FLAGS, find_compiler, library_path
    from ds4tui.kernels.cpu.native.variants import runnable

    variant = runnable()[0]
    path = library_path(variant, find_compiler())
    cached = path.exists()
    if not cached and (refused := _refused(path.parent)):
        return Finding(
            "warn",
            f"kernels cannot be kept in {path.parent} ({refused}): a slower path is used",
            "Set DS4TUI_CACHE_DIR to a folder that can be written to.",
        )
    flags = " ".join((*(flag for flag in FLAGS if not flag.startswith("-W")), *variant.flags))
    others = [other.name for other in runnable()[1:]]
    also = f" (it has {', '.join(others)} too)" if others else ""
    state = f"compiled, in {path.parent}" if cached else "not compiled yet: now, for the checks"
    return Finding(
        "ok",
        f"kernels for {variant.name}{also}: {state}; flags {flags}",
        facts={
            "variant": variant.name,
            "runnable": [variant.name, *others],
            "cached": cached,
            "library": str(path),
            "flags": flags.split(),
        },
    )


def _refused(folder: Path) -> str:
    """Why no file can be made in `folder`, "" if one can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as exc:
        return exc.strerror or str(exc)


def install_advice() -> str:
    """What to run to get a compiler."""
    if os.environ.get("CXX"):
        return "Set CXX to a C++ compiler that runs, or unset it."
    if sys.platform == "darwin":
        return "Run: xcode-select --install"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    for name in (release.get("ID", ""), *release.get("ID_LIKE", "").split()):
        if name in INSTALL:
            return f"Run: {INSTALL[name]}"
    return "Install g++ or clang++."
