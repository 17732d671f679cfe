"""Where programs keep models: folders, by their variables and defaults. Nothing is looked at here.

Sources: huggingface_hub's constants.py (HF_HUB_CACHE, HF_HOME); llama.cpp's README and pull
requests 7826, 20775 and 21009 (LLAMA_CACHE; since 2026-03 it uses the hub's cache); Ollama's
docs/faq (OLLAMA_MODELS); LM Studio's documentation and its files .lmstudio-home-pointer and
settings.json (downloadsFolder).
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # where its Linux service keeps them


def home(environment: Mapping[str, str] = os.environ) -> Path:
    return Path(environment.get("HOME") or Path.home())


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The Hugging Face cache: models--OWNER--REPO folders."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := environment.get(variable):
            return _expanded(folder, environment)
    if folder := environment.get("HF_HOME"):
        return _expanded(folder, environment) / "hub"
    return _cache_home(environment) / "huggingface" / "hub"


def llama_cpp_caches(environment: Mapping[str, str] = os.environ) -> list[Path]:
    if folder := environment.get("LLAMA_CACHE"):
        return [_expanded(folder, environment)]
    caches = [_cache_home(environment) / "llama.cpp"]
    if sys.platform == "darwin":
        caches.insert(0, home(environment) / "Library" / "Caches" / "llama.cpp")
    return caches


def ollama_models(environment: Mapping[str, str] = os.environ) -> list[Path]:
    if folder := environment.get("OLLAMA_MODELS"):
        return [_expanded(folder, environment)]
    return [home(environment) / ".ollama" / "models", OLLAMA_SERVICE]


def lm_studio_models(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Its folder may have been moved: then a pointer or its settings tell where to."""
    user = home(environment)
    roots = [user / ".lmstudio", user / ".cache" / "lm-studio"]
    if pointed := _text(user / ".lmstudio-home-pointer").strip():
        roots.insert(0, _expanded(pointed, environment))
    folders = []
    for root in roots:
        moved = _downloads_folder(root / "settings.json")
        folders += [_expanded(moved, environment)] if moved else []
        folders.append(root / "models")
    return list(dict.fromkeys(folders))


def _cache_home(environment: Mapping[str, str]) -> Path:
    folder = environment.get("XDG_CACHE_HOME")
    return _expanded(folder, environment) if folder else home(environment) / ".cache"


def _expanded(text: str, environment: Mapping[str, str]) -> Path:
    if text == "~" or text.startswith("~/"):
        return home(environment) / text[2:]
    return Path(os.path.expandvars(text))


def _downloads_folder(settings: Path) -> str:
    try:
        found = json.loads(_text(settings))["downloadsFolder"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
