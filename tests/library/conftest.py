"""No test of the library sees the models, caches or tokens of who runs it."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.surroundings import empty_home

OTHERS = (
    "HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_ENDPOINT HF_HUB_OFFLINE TRANSFORMERS_OFFLINE "
    "HF_TOKEN_PATH HF_OIDC_RESOURCE HF_HUB_DISABLE_IMPLICIT_TOKEN "
    "http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY"
).split()


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = empty_home(tmp_path, monkeypatch, OTHERS)
    # What huggingface_hub read off the environment when it was imported.
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "stored_tokens"))
    # It asks the real hub which program runs it, once a day.
    monkeypatch.setattr("huggingface_hub.utils._headers.detect_agent", lambda: None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return home
