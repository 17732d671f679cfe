"""The settings that point agents here: printed, or written beside what people have set up."""

import io
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ds4tui.config import Settings
from ds4tui.errors import UsageError
from ds4tui.launch import run
from ds4tui.launch_arguments import AGENTS
from ds4tui.server.listening import bind
from tests.fakes import FakeAssistant
from tests.server.conftest import Running, serve  # noqa: F401

FILES = {
    "codex": ".codex/ds4tui.config.toml",
    "opencode": ".config/opencode/opencode.json",
    "claude": ".claude/ds4tui.json",
}


@pytest.fixture
def settings() -> Settings:
    """Of a port where nobody answers."""
    [sock] = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    sock.close()
    return replace(Settings(), port=port, model="models/Qwen3-8B-Q4_K_M.gguf")


def launch(settings: Settings, agent: str, home: Path, write: bool = True, **more: str) -> str:
    out = io.StringIO()
    assert run(settings, agent, write, out, {"HOME": str(home), **more}) == 0
    return out.getvalue()


def written(home: Path, agent: str) -> Any:
    text = (home / FILES[agent]).read_text()
    return tomllib.loads(text) if agent == "codex" else json.loads(text)


@pytest.mark.parametrize("agent", AGENTS)
def test_nothing_is_written_unless_asked(settings: Settings, agent: str, tmp_path: Path) -> None:
    told = launch(settings, agent, tmp_path, write=False)
    assert f"{tmp_path / FILES[agent]} would be made:" in told
    assert "Nothing is written without --write." in told
    assert f"http://127.0.0.1:{settings.port}" in told and "Qwen3-8B-Q4_K_M" in told
    assert "No server answers" in told and "ds4tui serve -m models/Qwen3-8B-Q4_K_M.gguf" in told
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_written_is_what_was_told(settings: Settings, agent: str, tmp_path: Path) -> None:
    told = launch(settings, agent, tmp_path)
    text = (tmp_path / FILES[agent]).read_text()
    shown = [line[3:] for line in told.splitlines() if line.startswith("  +")]
    assert shown == text.splitlines()
    again = launch(settings, agent, tmp_path)
    assert "says it already" in again and (tmp_path / FILES[agent]).read_text() == text
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / FILES[agent]]


@pytest.mark.parametrize("agent", AGENTS)
def test_the_file_as_it_was_is_kept(settings: Settings, agent: str, tmp_path: Path) -> None:
    path = tmp_path / FILES[agent]
    path.parent.mkdir(parents=True)
    path.write_text('{"theme": "dark", "provider": {"mine": {}}}')
    told = launch(settings, agent, tmp_path)
    [kept] = path.parent.glob("*.bak")
    assert kept.read_text() == '{"theme": "dark", "provider": {"mine": {}}}'
    assert f"The file as it was is {kept}." in told and "is changed" in told


def test_codex_gets_a_profile_of_its_own(settings: Settings, tmp_path: Path) -> None:
    assert "codex -p ds4tui" in launch(settings, "codex", tmp_path)
    values = written(tmp_path, "codex")
    assert (values["model"], values["model_provider"]) == ("Qwen3-8B-Q4_K_M", "ds4tui")
    provider = values["model_providers"]["ds4tui"]
    assert provider["base_url"] == f"http://127.0.0.1:{settings.port}/v1"
    assert provider["wire_api"] == "responses" and "env_key" not in provider
    folder = tmp_path / "elsewhere"
    launch(settings, "codex", tmp_path, CODEX_HOME=str(folder))
    assert (folder / "ds4tui.config.toml").exists()


def test_opencode_keeps_what_people_have_set_up(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / FILES["opencode"]
    path.parent.mkdir(parents=True)
    path.write_text('{"theme": "dark", "provider": {"mine": {"name": "x"}}}')
    assert "opencode -m ds4tui/Qwen3-8B-Q4_K_M" in launch(settings, "opencode", tmp_path)
    values = written(tmp_path, "opencode")
    assert values["theme"] == "dark" and values["provider"]["mine"] == {"name": "x"}
    assert list(values["provider"]["ds4tui"]["models"]) == ["Qwen3-8B-Q4_K_M"]
    path.write_text("{ // a comment\n}")
    with pytest.raises(UsageError, match="no plain JSON"):
        launch(settings, "opencode", tmp_path)
    assert path.read_text() == "{ // a comment\n}"


def test_claude_gets_a_file_of_its_own(settings: Settings, tmp_path: Path) -> None:
    told = launch(settings, "claude", tmp_path)
    assert f"claude --settings {tmp_path / FILES['claude']}" in told
    variables = written(tmp_path, "claude")["env"]
    assert variables["ANTHROPIC_BASE_URL"] == f"http://127.0.0.1:{settings.port}"
    assert variables["ANTHROPIC_MODEL"] == "Qwen3-8B-Q4_K_M"
    assert all(isinstance(value, str) for value in variables.values())


@pytest.mark.parametrize("agent", AGENTS)
def test_the_model_and_its_context_are_the_servers(
    agent: str,
    tmp_path: Path,
    serve: Callable[..., Running],  # noqa: F811
) -> None:
    running = serve(FakeAssistant(context_tokens=8192, model="tiny"), api_key="secret")
    here = replace(Settings(), port=running.handle.port, api_key="secret")
    told = launch(here, agent, tmp_path)
    assert "No server answers" not in told
    text = (tmp_path / FILES[agent]).read_text()
    assert '"tiny"' in text
    assert ("8192" in text) if agent != "claude" else ("2048" in text)
    if agent != "claude":  # which takes it from its own file only
        assert "secret" not in told + text and "DS4TUI_API_KEY" in told


def test_a_folder_that_cannot_be_written_is_said(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / ".codex").write_text("a file")
    with pytest.raises(UsageError, match=r"ds4tui\.config\.toml cannot be"):
        launch(settings, "codex", tmp_path)
