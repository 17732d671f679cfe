"""What `ds4tui models` and `doctor` say of a mixture that fits only in part, and when it does."""

from pathlib import Path

import pytest

from ds4tui.config import Settings
from ds4tui.doctor.models import models
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.paging import LEFT_OPEN
from ds4tui.library.fitting import fit_of
from ds4tui.library.headers import read_facts
from ds4tui.library.listing import list_models, listing_text
from ds4tui.library.resolve import models_dir
from tests.golden.files import golden_path


def test_a_mixture_that_fits_in_part_says_so(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_CACHE_DIR", str(own_home.parent / "cache"))
    data = own_home / "data"
    path = models_dir(data) / "mixture.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(golden_path("qwen3moe").read_bytes())
    facts = read_facts(path)
    assert 0 < facts.paged_bytes < facts.weights_bytes
    state = 512 * facts.kv_bytes_per_token
    rows = {
        facts.weights_bytes + state: "yes, ",
        facts.weights_bytes + state - 1: "experts in part, least: 0.00 GB of 0.00 GB",
        facts.paged_bytes + state: "experts in part",
        facts.paged_bytes + state - 1: "no, weights",
    }
    for available, words in rows.items():
        listing = list_models(data, available)
        assert words in listing_text(listing), available
        monkeypatch.setattr(
            "ds4tui.library.listing.available_memory_bytes", lambda at=available: at
        )
        found = next(f for f in models(Settings(data_dir=data)) if f.facts["name"] == "mixture")
        is_in_part = "in part" in words
        assert ("experts read from the file as they are picked" in found.text) == is_in_part
        assert (found.level == "ok") == (not words.startswith("no"))


@pytest.mark.parametrize("family", ["qwen35moe", "glm5-next"])  # states of others outweigh
def test_what_is_said_to_run_in_part_is_opened_in_part(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DS4TUI_KERNELS", "reference")
    facts = read_facts(golden_path(family))
    state = 512 * facts.kv_bytes_per_token + facts.kv_fixed_bytes
    available = facts.weights_bytes + state - 1
    fit = fit_of(facts, available)
    assert fit is not None and fit.is_in_part and fit.plan.fits
    with GGUFFile.open(golden_path(family)) as gguf:
        model = load_model(gguf, LEFT_OPEN, lambda: available)
    assert model.experts is not None


def test_other_models_fit_whole_or_not() -> None:
    facts = read_facts(golden_path("llama"))
    assert facts.paged_bytes == 0
    fit = fit_of(facts, 1)
    assert fit is not None and not fit.plan.fits and not fit.is_in_part
