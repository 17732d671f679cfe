"""What pyproject.toml promises: every file of the package is in the wheel, versions agree."""

import re
import runpy
import tomllib
from pathlib import Path

from ds4tui import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGE = ROOT / "ds4tui"


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["ds4tui"]
    named = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    for path in PACKAGE.rglob("*"):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        assert path.suffix == ".py" or path in named, path
        if path.suffix == ".py":
            # setuptools takes a folder for a package only if it says that it is one.
            assert (path.parent / "__init__.py").exists(), path


def test_the_version_is_one() -> None:
    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_pythons_are_the_same_everywhere() -> None:
    start = runpy.run_path(str(ROOT / "tools" / "start.py"))
    (oldest, newest) = start["OLDEST"], start["NEWEST"]
    wanted = f">={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"
    assert PROJECT["project"]["requires-python"] == wanted
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}" in readme
    for minor in range(oldest[1], newest[1] + 1):
        assert f"{oldest[0]}.{minor}" in start["RANGE"]


def test_every_dependency_is_bounded_and_explained() -> None:
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    extras = PROJECT["project"]["optional-dependencies"]["test"]
    for requirement in [*PROJECT["project"]["dependencies"], *extras]:
        found = re.match(r"([\w-]+)(?:\[\w+\])?>=[\d.]+", requirement)
        assert found, requirement
        assert found[1] in told, f"CONTRIBUTING.md does not tell why {found[1]}"
