#!/usr/bin/env python3
"""Set up ds4tui and start it, with nothing but a python3.

    python3 tools/start.py            set up, fetch the default model, open the app
    python3 tools/start.py ARGS...    set up, then `ds4tui ARGS...`
    python3 tools/start.py test ...   set up with the test tools, run the tests

It makes .venv beside it and installs the project there. Run again it starts at once: a stamp in
.venv says from which pyproject.toml and by which Python it was made. It is written in old syntax,
so that a Python that is too old gets a sentence and not a syntax error.
"""

from __future__ import print_function

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = "ds4tui-stamp.json"

OLDEST = (3, 11)
NEWEST = (3, 13)
OLDEST_MACOS = (14, 0)  # mlx has no wheels for older ones
RANGE = "3.11, 3.12 or 3.13"
OLDEST_GLIBC = (2, 35)
UV = "uv brings its own: install it (brew install uv, or pipx install uv) and run: uv run ds4tui"


class Stop(Exception):
    """What is in the way, as one sentence for a person."""


class Machine(object):
    """What is asked of this machine; tests pass another one."""

    def __init__(self, **values):
        self.version = tuple(sys.version_info[:3])
        self.implementation = platform.python_implementation()
        self.free_threaded = "free-threading" in sys.version
        self.platform = sys.platform
        self.machine = platform.machine()
        self.is_64_bit = sys.maxsize > 2**32
        self.libc = platform.libc_ver()
        self.translated = False
        self.macos = ""
        if sys.platform == "darwin":
            self.translated = said("sysctl", "-n", "sysctl.proc_translated") == "1"
            # sw_vers tells the truth where Python's own answer may be a compatible 10.16.
            self.macos = said("sw_vers", "-productVersion") or platform.mac_ver()[0]
        self.__dict__.update(values)


def said(*command):
    """What a command prints, or "" if it cannot be run."""
    try:
        return subprocess.check_output(command, stderr=subprocess.STDOUT).decode().strip()
    except (OSError, subprocess.CalledProcessError, ValueError):
        return ""


def refusal(machine):
    """The one sentence that says why ds4tui cannot run here, or None."""
    # In this order: an old Python does not know the C library that it runs with.
    for look in (refusal_of_platform, refusal_of_python, refusal_of_libc):
        sentence = look(machine)
        if sentence:
            return sentence
    return None


def refusal_of_platform(machine):
    if machine.platform == "darwin":
        return refusal_of_mac(machine)
    if not machine.platform.startswith("linux"):
        return "ds4tui runs on macOS and Linux, not on %s (on Windows, use WSL)." % machine.platform
    if machine.machine not in ("x86_64", "aarch64") or not machine.is_64_bit:
        return "ds4tui needs a 64-bit x86 or ARM Linux; this Python is for %s%s." % (
            machine.machine,
            "" if machine.is_64_bit else " in 32 bits",
        )
    return None


def refusal_of_libc(machine):
    if machine.platform == "darwin":
        return None
    name, version = machine.libc
    if name != "glibc":
        return "ds4tui needs a Linux with glibc (mlx has no wheels for musl, as Alpine has)."
    if numbers_of(version) < OLDEST_GLIBC:
        return "ds4tui needs glibc 2.35 or newer (Ubuntu 22.04, Debian 12), not %s." % version
    return None


def refusal_of_mac(machine):
    if machine.translated:
        return (
            "This Python is an Intel one that runs under Rosetta: "
            "use an ARM Python in a terminal that is not opened with Rosetta."
        )
    if machine.machine != "arm64":
        return "ds4tui needs a Mac with Apple silicon (mlx has no wheels for Intel Macs)."
    if numbers_of(machine.macos) < OLDEST_MACOS:
        return "ds4tui needs macOS 14 or newer, and this is macOS %s." % machine.macos
    return None


def numbers_of(version):
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def refusal_of_python(machine):
    found = ".".join(str(number) for number in machine.version)
    age = None
    if machine.version[:2] < OLDEST:
        age = "too old"
    elif machine.version[:2] > NEWEST:
        age = "too new"
    if age:
        return "Python %s is %s: ds4tui needs %s; %s" % (found, age, RANGE, UV)
    if machine.implementation != "CPython":
        return "ds4tui needs CPython %s, and this is %s." % (RANGE, machine.implementation)
    if machine.free_threaded:
        return "ds4tui needs an ordinary Python %s, not a free-threaded one." % RANGE
    return None


def other_python(which):
    """A Python on the PATH that will do where this one will not, or None."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        path = which("python%d.%d" % (NEWEST[0], minor))
        # A name may be there and still not run, as a shim of a version manager.
        if path and said(path, "-c", "import sys; print(sys.version_info[1])") == str(minor):
            return path
    return None


# --- the virtual environment ---


def venv_python():
    return os.path.join(VENV, "bin", "python")


def stamp_of(extra):
    """What an environment was made from; it is made anew, or added to, when this changes."""
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {"pyproject": digest, "python": list(sys.version_info[:3]), "root": ROOT, "extra": extra}


def is_ready(extra):
    try:
        with open(os.path.join(VENV, STAMP)) as file:
            found = json.load(file)
    except (IOError, OSError, ValueError):
        return False
    wanted = stamp_of(extra)
    if found.get("extra") == "test":  # it holds all that the plain one holds
        wanted["extra"] = "test"
    # A venv whose Python was removed by an upgrade looks whole and does not run; `uv run`
    # shares the folder and takes away what it was not asked for.
    needed = "import ds4tui, textual" + (", pytest" if extra == "test" else "")
    return found == wanted and said(venv_python(), "-c", needed + "; print(1)") == "1"


def set_up(extra):
    if is_ready(extra):
        return
    stamp = os.path.join(VENV, STAMP)
    if os.path.exists(stamp):
        os.remove(stamp)  # until the end, this is half an environment
    if said(venv_python(), "-c", "import sys; print(sys.version_info[:3])") != str(
        tuple(sys.version_info[:3])
    ):
        print("Making %s with Python %s ..." % (VENV, platform.python_version()))
        make_venv()
    print("Installing ds4tui and what it needs into %s ..." % VENV)
    project = ROOT + ("[%s]" % extra if extra else "")
    if subprocess.call(installer() + ["-e", project], cwd=ROOT):
        raise Stop("The installation failed: see above, mend it and run the same command again.")
    with open(stamp, "w") as file:
        json.dump(stamp_of(extra), file)


def make_venv():
    command = [sys.executable, "-m", "venv", "--clear"]
    if not has_module("ensurepip") or not has_module("venv"):
        # Debian and Ubuntu split these off. Who has uv or a newer pip needs neither.
        if has_module("venv") and (shutil.which("uv") or pip_installs_elsewhere()):
            command.append("--without-pip")
        else:
            raise Stop(
                "This Python cannot make virtual environments: install its venv module "
                "(Debian and Ubuntu: sudo apt install python3-venv) and run the same command again."
            )
    if subprocess.call(command + [VENV]):
        raise Stop("%s could not be made: see above." % VENV)


def has_module(name):
    return said(sys.executable, "-c", "import %s; print(1)" % name) == "1"


def pip_installs_elsewhere():
    """Whether this Python's own pip knows --python (22.3 and newer)."""
    words = said(sys.executable, "-m", "pip", "--version").split()
    return len(words) > 1 and numbers_of(words[1]) >= (22, 3)


def installer():
    """The command that installs into the venv, whatever it holds."""
    if said(venv_python(), "-c", "import pip; print(1)") == "1":
        return [venv_python(), "-m", "pip", "install", "--disable-pip-version-check"]
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--python", venv_python()]
    if pip_installs_elsewhere():
        return [sys.executable, "-m", "pip", "--python", venv_python(), "install"]
    if subprocess.call([venv_python(), "-m", "ensurepip"]):
        raise Stop("%s has no pip: remove the folder and run the same command again." % VENV)
    return [venv_python(), "-m", "pip", "install"]


# --- what is started ---


def main(arguments):
    machine = Machine()
    sentence = refusal(machine)
    if sentence:
        other = None
        if not refusal_of_platform(machine) and sys.version_info[0] >= 3:
            other = other_python(shutil.which)
        if other:
            os.execv(other, [other, os.path.abspath(__file__)] + arguments)
        raise Stop(sentence)
    testing = arguments[:1] == ["test"]
    set_up("test" if testing else "")
    ds4tui = [venv_python(), "-m", "ds4tui"]
    if not arguments or testing:
        if subprocess.call(ds4tui + ["pull", "smollm2"]):
            raise Stop("The default model could not be fetched: see above.")
    if testing:
        os.chdir(ROOT)
        os.execv(venv_python(), [venv_python(), "-m", "pytest"] + arguments[1:])
    os.execv(venv_python(), ds4tui + arguments)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Stop as stop:
        print(stop, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
