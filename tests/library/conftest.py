"""No test of the library sees the models, caches or tokens of who runs it."""

from pathlib import Path

import pytest
from huggingface_hub import constants

OTHERS = (
    "HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_ENDPOINT "
    "HF_HUB_OFFLINE TRANSFORMERS_OFFLINE XDG_CACHE_HOME LLAMA_CACHE OLLAMA_MODELS HF_TOKEN_PATH "
    "HF_OIDC_RESOURCE HF_HUB_DISABLE_IMPLICIT_TOKEN "
    "http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY"
).split()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("ds4tui.library.places.OLLAMA_SERVICE", home / "no-service")
    # What huggingface_hub read off the environment when it was imported.
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "stored_tokens"))
    # It asks the real hub which program runs it, once a day.
    monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return home
