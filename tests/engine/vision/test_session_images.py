"""Images in timelines of tiny models: whatever was there before, logits are a cold run's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import Model
from ds4tui.engine.session import Session
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.engine.vision.recognition import Picture, Recogniser
from ds4tui.errors import EngineError
from ds4tui.kernels import choice
from tests.engine.vision.asking import answered, ids_of, timeline_of
from tests.engine.vision.pictures import encoded, picture
from tests.golden.files import families, golden_path, projector_path
from tests.golden.make.tokens import ID
from tests.parity.ours import load

FAMILIES = [name for name, facts in families().items() if facts["vision"]]
TOLERANCE = 1e-4


@dataclass
class Rig:
    model: Model
    encoder: Encoder
    pictures: list[Picture]

    def session(self) -> Session:
        images = HeldImages(self.encoder)
        for one in self.pictures:
            images.give(one)
        return Session(self.model, memory=MemoryTier(2**24), images=images)

    def cold(self, wanted: Timeline) -> np.ndarray:
        return answered(self.session(), wanted)


@pytest.fixture(params=FAMILIES)
def rig(request: pytest.FixtureRequest) -> Rig:
    name = request.param
    with GGUFFile.open(projector_path(name)) as file:
        encoder = Encoder(file, choice.current().path(False))
        recognise = Recogniser(file, ids_of, ID["<image>"])
    # Small enough for a tiny context, and not square
    object.__setattr__(recognise.config, "pixels", (1, 32 * 40))
    sizes = [(40, 32), (32, 40), (30, 30)]
    shots = [picture(*size).rotate(90 * i) for i, size in enumerate(sizes)]
    return Rig(load(golden_path(name)), encoder, [recognise(encoded(shot)) for shot in shots])


def text(word: str) -> list[int]:
    return list(word.encode())


def prompts(a: Picture, b: Picture, c: Picture) -> dict[str, Sequence[Timeline]]:
    """What one session gets in turn."""
    base = timeline_of(text("look: "), a, text(" what is it?"))
    return {
        "text appended": [base, timeline_of(text("look: "), a, text(" what is it? and now"))],
        "an image appended": [
            base,
            timeline_of(text("look: "), a, text(" what is it?"), b, text("!")),
        ],
        "the tail behind changed": [base, timeline_of(text("look: "), a, text(" where is it?"))],
        "replaced": [base, timeline_of(text("look: "), b, text(" what is it?"))],
        "replaced and back": [base, timeline_of(text("look: "), b, text(" what is it?")), base],
        "dropped": [base, timeline_of(text("look:  what is it?"))],
        "an early one of two dropped": [
            timeline_of(text("x"), a, text("y"), b, text("z")),
            timeline_of(text("x"), text("y"), b, text("z")),
        ],
        "the same one twice": [base, timeline_of(text("look: "), a, text("."), a, text("?"))],
        "at the very start": [
            timeline_of(a, text("?")),
            timeline_of(a, text("?!")),
            timeline_of(b, text("?")),
        ],
        "at the very end": [timeline_of(text("see "), a), timeline_of(text("see "), a, text("so"))],
        "a fork between two": [
            timeline_of(text("q "), a, text(" mid "), b, text(" end")),
            timeline_of(text("q "), a, text(" mix "), c, text(" end")),
            timeline_of(text("q "), a, text(" mid "), b, text(" end and on")),
        ],
        "the whole again": [base, base],
    }


NAMES = [
    "text appended", "an image appended", "the tail behind changed", "replaced",
    "replaced and back", "dropped", "an early one of two dropped", "the same one twice",
    "at the very start", "at the very end", "a fork between two", "the whole again",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_reuse_is_exact(rig: Rig, name: str) -> None:
    session = rig.session()
    for wanted in prompts(*rig.pictures)[name]:
        plan = session.plan(wanted)
        assert wanted.snapped(plan.kept) == plan.kept
        np.testing.assert_allclose(answered(session, wanted), rig.cold(wanted), atol=TOLERANCE)
        grown = wanted.extended(text("s"))  # positions behind the image go on where they should
        np.testing.assert_allclose(session.append(ord("s")), rig.cold(grown), atol=TOLERANCE)


def test_another_picture_is_seen_under_a_warm_session(rig: Rig) -> None:
    session, (a, b, _) = rig.session(), rig.pictures
    first = answered(session, timeline_of(text("look: "), a, text(" so?")))
    other = answered(session, timeline_of(text("look: "), b, text(" so?")))
    assert np.abs(first - other).max() > 100 * TOLERANCE


def test_pictures_are_encoded_once(rig: Rig) -> None:
    images, (a, b, _) = HeldImages(rig.encoder), rig.pictures
    for one in (a, b):
        images.give(one)
    session = Session(rig.model, images=images)
    for tail in ("1", "22", "3"):
        answered(session, timeline_of(text("x"), a, text("y"), b, text(tail)))
        answered(session, timeline_of(b, text(tail), a))
    assert images.encoded == 2


def test_vectors_keep_within_their_budget(rig: Rig) -> None:
    probe = HeldImages(rig.encoder)
    probe.give(rig.pictures[0])
    probe.vectors(rig.pictures[0].block.span(0, rig.pictures[0].fingerprint))
    images = HeldImages(rig.encoder, budget_bytes=probe.nbytes)
    for one in rig.pictures:
        images.give(one)
        images.vectors(one.block.span(0, one.fingerprint))
    assert 0 < images.nbytes <= 1.5 * probe.nbytes
    images.vectors(rig.pictures[0].block.span(0, rig.pictures[0].fingerprint))
    assert images.encoded == 4


def test_a_picture_that_nobody_gave_changes_nothing(rig: Rig) -> None:
    images, (a, b, _) = HeldImages(rig.encoder), rig.pictures
    images.give(a)
    session = Session(rig.model, images=images)
    answered(session, timeline_of(text("x"), a, text("y")))
    with pytest.raises(EngineError, match="was not given"):
        answered(session, timeline_of(text("x"), a, text("y"), b, text("z")))
    again = answered(session, timeline_of(text("x"), a, text("yy")))
    np.testing.assert_allclose(again, rig.cold(timeline_of(text("x"), a, text("yy"))), atol=1e-4)
