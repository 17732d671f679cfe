"""`ds4tui launch AGENT`: the few settings that point a coding agent at the local server.

They are printed; with --write the file is written, after what changes in it was told and the file
as it was kept beside it. Where an agent takes a file of its own for this, what the person has set
up is not touched.
"""

import difflib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.error import URLError
from urllib.request import Request, urlopen

import tomli_w

from ds4tui.config import Settings
from ds4tui.errors import UsageError
from ds4tui.files import write_atomically

# A long prompt may take minutes before its first token; agents give up after five.
PATIENCE_MS = 3_600_000
ANSWER_S = 2.0
# Of the context what an agent may ask for a reply; more would leave no room for what it sends.
REPLY_SHARE = 4


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server: where it is, which model it has (and its context, 0 if nobody answered)."""

    url: str
    model: str
    context_tokens: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The `content` that the file at `path` shall have, and how the agent is then `start`ed."""

    path: Path
    content: str
    start: str
    note: str = ""


def run(
    settings: Settings,
    agent: str,
    write: bool,
    out: TextIO,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """The exit code. Raises UsageError for a file that cannot be read or written."""
    endpoint = _endpoint(settings)
    recipe = _RECIPES[agent](endpoint, environ)
    before = _read(recipe.path)
    _tell(recipe, before, write, out)
    if write and before != recipe.content:
        _write(recipe, before, out)
    print(f"Start it with: {recipe.start}", file=out)
    if not endpoint.context_tokens:
        print(
            f"No server answers at {endpoint.url} yet: ds4tui serve -m {settings.model}", file=out
        )
    return 0


def _tell(recipe: Recipe, before: str | None, write: bool, out: TextIO) -> None:
    if before == recipe.content:
        print(f"{recipe.path} says it already.", file=out)
        return
    what = "is made" if before is None else "is changed"
    print(f"{recipe.path} {what if write else what.replace('is', 'would be')}:", file=out)
    old = (before or "").splitlines()
    for line in difflib.unified_diff(old, recipe.content.splitlines(), n=1, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            print(f"  {line}", file=out)
    if recipe.note:
        print(recipe.note, file=out)
    if not write:
        print("Nothing is written without --write.", file=out)


def _write(recipe: Recipe, before: str | None, out: TextIO) -> None:
    try:
        if before is not None:
            kept = recipe.path.with_name(f"{recipe.path.name}.{time.strftime('%Y%m%d-%H%M%S')}.bak")
            write_atomically(kept, before.encode())
            print(f"The file as it was is {kept}.", file=out)
        # What is behind a link is changed, and the link stays.
        write_atomically(recipe.path.resolve(), recipe.content.encode())
    except OSError as exc:
        raise UsageError(f"{recipe.path} cannot be written: {exc.strerror}.") from exc


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}.") from exc


def _endpoint(settings: Settings) -> Endpoint:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{settings.port}"
    model = _served(url, settings.api_key)
    if model is None:
        return Endpoint(url, Path(settings.model).name.removesuffix(".gguf"), 0, settings.api_key)
    return Endpoint(url, model["id"], int(model["context_tokens"]), settings.api_key)


def _served(url: str, key: str) -> dict[str, Any] | None:
    """The model that the server has; None if nobody answers so."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(f"{url}/v1/models", headers=headers), timeout=ANSWER_S) as answer:
            model = json.load(answer)["data"][0]
        return model if {"id", "context_tokens"} <= model.keys() else None
    except (URLError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _codex(endpoint: Endpoint, environ: Mapping[str, str]) -> Recipe:
    folder = environ.get("CODEX_HOME")
    provider: dict[str, Any] = {
        "name": "ds4tui",
        "base_url": f"{endpoint.url}/v1",
        "wire_api": "responses",
        "stream_idle_timeout_ms": PATIENCE_MS,
    }
    if endpoint.key:
        provider["env_key"] = "DS4TUI_API_KEY"
    values: dict[str, Any] = {"model": endpoint.model, "model_provider": "ds4tui"}
    if endpoint.context_tokens:
        values["model_context_window"] = endpoint.context_tokens
    values["model_providers"] = {"ds4tui": provider}
    return Recipe(
        (Path(folder) if folder else _home(environ) / ".codex") / "ds4tui.config.toml",
        tomli_w.dumps(values),
        "DS4TUI_API_KEY=.. codex -p ds4tui" if endpoint.key else "codex -p ds4tui",
        "It is a profile of its own: config.toml stays as it is.",
    )


def _opencode(endpoint: Endpoint, environ: Mapping[str, str]) -> Recipe:
    folder = environ.get("XDG_CONFIG_HOME")
    path = (Path(folder) if folder else _home(environ) / ".config") / "opencode/opencode.json"
    for other in (path.with_suffix(".jsonc"), path):
        if (found := _read(other)) is not None:
            path = other
            break
    values = _json_object(path, found) if found is not None else {}
    model: dict[str, Any] = {"name": endpoint.model}
    if endpoint.context_tokens:
        reply = endpoint.context_tokens // REPLY_SHARE
        model["limit"] = {"context": endpoint.context_tokens, "output": reply}
    options: dict[str, Any] = {"baseURL": f"{endpoint.url}/v1", "timeout": False}
    if endpoint.key:
        options["apiKey"] = "{env:DS4TUI_API_KEY}"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "ds4tui",
        "options": options,
        "models": {endpoint.model: model},
    }
    providers = values.get("provider")
    values["provider"] = {**(providers if isinstance(providers, dict) else {}), "ds4tui": provider}
    start = f"opencode -m ds4tui/{endpoint.model}"
    return Recipe(
        path,
        json.dumps(values, indent=2, ensure_ascii=False) + "\n",
        f"DS4TUI_API_KEY=.. {start}" if endpoint.key else start,
    )


def _json_object(path: Path, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text or "{}")
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise UsageError(
            f"{path} is no plain JSON object (comments?), so it is not changed.",
            "Move it away, look at what is printed then, and put that in by hand.",
        )
    return values


def _claude(endpoint: Endpoint, environ: Mapping[str, str]) -> Recipe:
    folder = environ.get("CLAUDE_CONFIG_DIR")
    path = (Path(folder) if folder else _home(environ) / ".claude") / "ds4tui.json"
    variables = {
        "ANTHROPIC_BASE_URL": endpoint.url,
        "ANTHROPIC_AUTH_TOKEN": endpoint.key or "none",
        "ANTHROPIC_MODEL": endpoint.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": endpoint.model,
        "CLAUDE_CODE_SUBAGENT_MODEL": endpoint.model,
        "API_TIMEOUT_MS": str(PATIENCE_MS),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if endpoint.context_tokens:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(endpoint.context_tokens // REPLY_SHARE)
    return Recipe(
        path,
        json.dumps({"env": variables}, indent=2) + "\n",
        f"claude --settings {path}",
        "It is a file of its own: settings.json stays as it is.",
    )


_RECIPES: dict[str, Callable[[Endpoint, Mapping[str, str]], Recipe]] = {
    "codex": _codex,
    "opencode": _opencode,
    "claude": _claude,
}
