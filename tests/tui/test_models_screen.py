"""Choosing a model, and fetching one out of the list."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ds4tui.assistant import Assistant
from ds4tui.cache.memory import plan_memory
from ds4tui.errors import ModelNotFound
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.fitting import Fit
from ds4tui.library.headers import Facts
from ds4tui.library.listing import Row
from ds4tui.library.offers import Offer, of_known, offers
from ds4tui.library.progress import PullProgress
from ds4tui.library.pull import pull
from ds4tui.tui.screens.models import model_content
from ds4tui.tui.screens.pull import offer_content
from tests.fakes import FakeAssistant
from tests.library import fake_hub
from tests.library.conftest import own_home as own_home
from tests.library.fake_hub import FakeHub
from tests.library.stores import model_file
from tests.tui.harness import Driver, running

FACTS = Facts("llama", "Q4_K_M", 10**9, 810_000_000, 131_072, 900_000_000, 900_000_000, 32_768)


def row(**more: Any) -> Row:
    available = more.pop("available_bytes", 16 * 10**9)
    fit = Fit(plan_memory(available, 900_000_000, 32_768, 131_072, 0))
    given = {"name": "a", "source": "hub", "path": Path("/a.gguf"), "facts": FACTS, "fit": fit}
    return Row(**(given | more))


def test_a_model_says_its_size_quant_context_fit_and_sight() -> None:
    text = model_content(row()).plain
    assert text.startswith("a  Q4_K_M · 0.81 GB · context 131,072 · text only\n  fits: yes, ")
    assert "sees pictures" in model_content(row(vision_part=Path("/m.gguf"))).plain
    small = model_content(row(available_bytes=10**8)).plain
    assert "fits: no, weights: 0.90 GB of 0.10 GB" in small
    assert " · open\n" in model_content(row(), is_open=True).plain
    assert "hub: torn" in model_content(row(facts=None, problem="torn")).plain


def test_what_is_here_is_not_offered_and_the_known_one_is_first() -> None:
    everything = offers([])
    assert everything[0] == of_known(CATALOGUE["smollm2"])
    sizes = [offer.download_bytes for offer in everything[1:]]
    assert sizes == sorted(sizes)
    file = everything[1].name.rsplit("/", 1)[1]
    left = offers([row(name="smollm2"), row(path=Path("/cache") / file)])
    assert len(left) == len(everything) - 2 and everything[1] not in left


def test_size_and_licence_stand_in_an_offer_before_anything_is_fetched() -> None:
    offer = Offer("o/r/f", "Big", "Gemma Terms", 2 * 10**9, 2 * 10**9, "a hub", True, True, 8)
    for text in (offer_content(offer, is_first=False).plain, model_content(offer).plain):
        assert "about 2.0" in text and "Gemma Terms" in text
    assert "sees pictures" in model_content(offer).plain
    assert "machines of 8 GB" in model_content(offer).plain


class Library:
    """Opens whatever path it is told; pulls with the real `pull`."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.opened: list[str] = []
        self.paths: list[Path] = []

    def open_model(self, name: str, progress: object) -> Assistant:
        self.opened.append(name)
        return FakeAssistant(model=Path(name).stem)

    def pull(self, name: str, progress: Callable[[PullProgress], None]) -> Path:
        self.paths.append(pull(name, self.data_dir, progress))
        return self.paths[-1]

    def check(self, name: str) -> None:
        if name.startswith(fake_hub.REPO) and not self.paths:
            raise ModelNotFound(f"{name} is not here.", "")


async def choose(on: Driver, typed: str) -> None:
    on.prompt.put("/model ")
    await on.pilot.pause()
    await on.press("enter")
    await on.until(lambda: "Type to find names" in on.screen_text())
    await on.type(typed)


async def test_a_model_that_is_here_is_opened_from_the_list_and_its_cost_is_told(
    tmp_path: Path, own_home: Path
) -> None:
    model_file(tmp_path / "data" / "models" / "other.gguf")
    library = Library(tmp_path / "data")
    async with running(open_model=library.open_model, size=(120, 40)) as on:
        await on.ask("hello")
        await on.answered()
        await choose(on, "other")
        await on.until(lambda: "Q4_0" in on.screen_text())
        await on.until(lambda: "reads this conversation anew: some " in on.screen_text())
        await on.press("enter")
        await on.until(lambda: library.opened[1:] == [str(tmp_path / "data/models/other.gguf")])
        await on.until(lambda: on.app._slot.assistant is not None)
        assert on.answers == ["Hello from the fake model."]  # the conversation stays


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path) -> Iterator[FakeHub]:
    content = model_file(tmp_path / "made.gguf").read_bytes()
    with fake_hub.running({"tiny-Q4_K_M.gguf": content}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(own_home / "hf"))
        offer = Offer(f"{fake_hub.REPO}/tiny-Q4_K_M.gguf", "Tiny", "MIT", 9216, 9216, "a hub")
        monkeypatch.setattr("ds4tui.tui.models.offers", lambda rows: [offer])
        yield server


async def test_a_model_of_the_hub_is_fetched_and_opened(tmp_path: Path, hub: FakeHub) -> None:
    library = Library(tmp_path / "data")
    async with running(
        open_model=library.open_model, pull_model=library.pull, check_model=library.check,
        size=(120, 40),
    ) as on:  # fmt: skip
        await choose(on, "Tiny")
        await on.press("enter")
        await on.until(lambda: "Not on this machine" in on.screen_text())
        await on.until(lambda: "MIT" in on.screen_text())
        assert not hub.fetched  # asked before
        await on.press("enter")
        await on.until(lambda: len(library.opened) == 2)
        assert library.paths[0].name == "tiny-Q4_K_M.gguf" and hub.fetched


@pytest.mark.parametrize(
    ("fault", "told"),
    [("gated", "is gated"), ("no network", "cannot be reached"), ("full disk", "are needed")],
)
async def test_what_goes_wrong_is_told_with_what_to_do_and_can_be_tried_again(
    fault: str, told: str, tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "gated":
        hub.token = "wanted"
        monkeypatch.delenv("HF_TOKEN", raising=False)
    elif fault == "no network":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    else:
        monkeypatch.setattr("ds4tui.library.download.SPARE_BYTES", 10**18)
    library = Library(tmp_path / "data")
    async with running(
        open_model=library.open_model, pull_model=library.pull, check_model=library.check,
        size=(120, 40),
    ) as on:  # fmt: skip
        await choose(on, "Tiny")
        await on.press("enter")
        await on.until(lambda: "Not on this machine" in on.screen_text())
        await on.press("enter")
        await on.until(lambda: "Try again" in on.screen_text())
        await on.until(lambda: told in " ".join(on.screen_text().replace("│", " ").split()))
        assert len(library.opened) == 1  # the open model stays


async def test_a_download_that_is_stopped_is_gone_on_with(tmp_path: Path, hub: FakeHub) -> None:
    hub.hold_after = 1000
    library = Library(tmp_path / "data")
    async with running(
        open_model=library.open_model, pull_model=library.pull, check_model=library.check,
        size=(120, 40),
    ) as on:  # fmt: skip
        await choose(on, "Tiny")
        await on.press("enter")
        await on.until(lambda: "Not on this machine" in on.screen_text())
        await on.press("enter")
        await on.until(hub.holding.is_set)
        await on.press("escape")
        await on.until(lambda: "What was fetched is kept" in on.screen_text())
        hub.hold_after = None
        hub.go_on.set()
        await on.press("enter")
        await on.until(lambda: len(library.opened) == 2)
