"""README.md says what the code does: its tables are made from the code, its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

from ds4tui.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_the_code_s() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "readme_tables.py"), "--check"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_command_that_is_shown_exists() -> None:
    known = {command.name for command in COMMANDS}
    shown = re.findall(r"ds4tui ([a-z]+)\b(?! is| and| are)", "\n".join(fenced(README)))
    assert shown and set(shown) <= known


def fenced(text: str) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", text, re.DOTALL)


def test_every_file_that_is_linked_is_there() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "INTERNALS.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
            if not target.startswith("screenshots/"):  # made by a script, kept by hand
                assert (ROOT / target).exists(), f"{name} links {target}"


def test_no_page_tells_where_it_was_written() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*.toml")]:
        assert not re.search(r"/(tmp|work|home|root)/", path.read_text(encoding="utf-8")), path
