"""Prompts with several pictures through the real Session, against Hugging Face's logits, and
what the encoders make of each picture.

Everything is as it is for people: pictures come as files, are recognised, laid out and encoded.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import Model
from ds4tui.engine.session import Session
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.engine.vision.recognition import Picture, Recogniser
from ds4tui.kernels import choice
from tests.engine.vision.asking import ids_of, timeline_of
from tests.engine.vision.pictures import encoded
from tests.golden.files import SCENES, families, golden_path, projector_path, scenes
from tests.golden.make.tokens import ID
from tests.parity.checks import FELT, TOLERANCE
from tests.parity.ours import load

VISION = [name for name, facts in families().items() if facts["vision"]]
KERNELS = ["auto", "openblas", "reference"]


@dataclass
class Rig:
    name: str
    model: Model
    encoder: Encoder
    pictures: list[Picture]

    def session(self) -> Session:
        images = HeldImages(self.encoder)
        for picture in self.pictures:
            images.give(picture)
        return Session(self.model, memory=MemoryTier(2**24), images=images)

    def timeline(self, scene: str) -> Timeline:
        return timeline_of(
            *(ids_of(p) if isinstance(p, str) else self.pictures[p] for p in SCENES[scene])
        )


def recogniser(name: str, **settings: Any) -> Recogniser:
    """With other `settings` of its config than the file has."""
    with GGUFFile.open(projector_path(name)) as file:
        recognise = Recogniser(file, ids_of, ID["<image>"])
    for key, value in settings.items():
        object.__setattr__(recognise.config, key, value)
    return recognise


def recognised(name: str) -> list[Picture]:
    recognise = recogniser(name, pixels=(1, 2**24))  # tiny ones are not enlarged
    arrays = scenes(name)
    return [recognise(encoded(Image.fromarray(arrays[f"P{i}"]))) for i in range(2)]


@cache
def rig(name: str) -> Rig:
    with GGUFFile.open(projector_path(name)) as file:
        encoder = Encoder(file, choice.current().path(False))
    return Rig(name, load(golden_path(name)), encoder, recognised(name))


@pytest.fixture(params=[(name, kernels) for name in VISION for kernels in KERNELS], ids="-".join)
def seeing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rig:
    name, kernels = request.param
    monkeypatch.setenv("DS4TUI_KERNELS", kernels)
    rig.cache_clear()
    return rig(name)


def walked(session: Session, wanted: Timeline, rows: int, end: int) -> np.ndarray:
    """The logits behind the first `end` rows of `wanted`, in chunks of `rows`."""
    prefill = session.sync(wanted.prefix(end))
    while not prefill.finished:
        prefill.step(rows)
    return prefill.logits


def gap(rig: Rig, scene: str, session: Session, rows: int, stepped: bool = False) -> float:
    """Largest difference of a logit at the last row of the scene, or, `stepped`, at each row of
    text behind its last picture, a token at a time."""
    wanted, expected = rig.timeline(scene), scenes(rig.name)[f"{scene}_logits"]
    at = wanted.spans[-1].end + 1 if stepped else len(wanted)
    gaps = [np.abs(walked(session, wanted, rows, at) - expected[at - 1])]
    for position in range(at, len(wanted)):
        gaps.append(np.abs(session.append(int(wanted.ids[position])) - expected[position]))
    return float(np.max(gaps))  # of NaN if the golden row is not there


# -- what tests ask, that faults are to turn red ---------------------------------------------------


def check_layout(rig: Rig) -> None:
    """Every row is where the golden prompt has it, and the ids are its own."""
    for scene in SCENES:
        wanted, ids = rig.timeline(scene), scenes(rig.name)[f"{scene}_ids"].copy()
        laid_out = wanted.ids.copy()
        for span in wanted.spans:
            laid_out[span.start : span.end] = span.token_ids
        assert laid_out.tolist() == ids.tolist(), scene


def check_vectors(rig: Rig) -> None:
    arrays = scenes(rig.name)
    for i, picture in enumerate(rig.pictures):
        made = rig.encoder(picture.load())
        wanted = [arrays[f"P{i}_vectors"]]
        wanted += [arrays[key] for key in sorted(arrays) if key.startswith(f"P{i}_added_")]
        assert len(made.added) == len(wanted) - 1
        for ours, theirs in zip((made.rows, *made.added), wanted, strict=True):
            np.testing.assert_allclose(np.array(ours), theirs, atol=TOLERANCE, rtol=TOLERANCE)


def check_scenes(rig: Rig, rows: int, stepped: bool = False, one_session: bool = False) -> None:
    """In `one_session` each scene takes over what it shares with those before, forth and back."""
    session = rig.session()
    order = [*SCENES, *reversed(SCENES)] if one_session else [*SCENES]
    for scene in order:
        session = session if one_session else rig.session()
        worst = gap(rig, scene, session, rows, stepped)
        assert worst <= TOLERANCE, f"{rig.name}, {scene}: logits differ by {worst:.2g}"


def test_pictures_lie_as_in_the_prompts_of_transformers(seeing: Rig) -> None:
    check_layout(seeing)


def test_encoders_give_what_those_of_transformers_do(seeing: Rig) -> None:
    check_vectors(seeing)


@pytest.mark.parametrize(("rows", "stepped"), [(512, False), (8, False), (32, True)])
def test_logits_about_several_pictures(seeing: Rig, rows: int, stepped: bool) -> None:
    check_scenes(seeing, rows, stepped)


def test_logits_in_a_warm_session(seeing: Rig) -> None:
    check_scenes(seeing, 32, one_session=True)


def check_tiles(rows: int, tiles: slice | list[int] = slice(None)) -> None:
    """`tiles` in place of those that the encoder is to take. The settings are those of a model
    that brings pictures to 96 pixels."""
    arrays, made = scenes("idefics3"), rig("idefics3")
    recognise = recogniser("idefics3", longest_edge=96)
    picture = recognise(encoded(Image.fromarray(arrays["P2"])))
    ours = picture.load()
    assert np.abs(ours.pixels.astype(int) - arrays["tiles"]).max() <= 1  # Pillow releases differ
    same = replace(picture, load=lambda: replace(ours, pixels=arrays["tiles"][tiles]))
    wanted = timeline_of(ids_of("see "), same, ids_of(" so?"))
    [span] = wanted.spans
    ids = np.concatenate([wanted.ids[: span.start], span.token_ids, wanted.ids[span.end :]])
    assert ids.tolist() == arrays["tiles_ids"].tolist()
    session = replace(made, pictures=[same]).session()
    for end in range(span.end + 1, len(wanted) + 1):
        gap = np.abs(walked(session, wanted, rows, end) - arrays["tiles_logits"][end - 1]).max()
        assert gap <= TOLERANCE, f"logits differ by {gap:.2g}"


@pytest.mark.parametrize("rows", [512, 8])
def test_logits_about_a_picture_in_tiles(rows: int) -> None:
    check_tiles(rows)


@pytest.mark.parametrize("name", VISION)
def test_scenes_would_tell_pictures_apart(name: str) -> None:
    """Goldens of the same text about other pictures are far from each other."""
    last = [scenes(name)[f"{scene}_logits"][-1] for scene in ("two", "twice", "swapped")]
    assert min(np.abs(last[i] - last[i - 1]).max() for i in range(3)) > FELT
