"""A tiny model of a family that sees, for the judges of random histories: its timelines hold
pictures, each of which is a run of ids that nothing may cut."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ds4tui.cache.memory_tier import MemoryTier
from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.config import load_settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import load_model
from ds4tui.engine.session import Session
from ds4tui.engine.vision.held import HeldImages
from ds4tui.engine.vision.layout import ImageBlock, row_ids
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.engine.vision.recognition import Recogniser
from ds4tui.kernels import choice
from tests.engine.histories import FailingModel, Operation, drain
from tests.engine.vision.asking import ids_of
from tests.engine.vision.pictures import encoded, picture
from tests.golden.files import golden_path, projector_path
from tests.golden.make.tokens import ID

SIZES = [(40, 32), (32, 40), (30, 30)]  # not all square


class Watched(FailingModel):
    """A model whose every row must have the position that its place in the timeline has."""

    def __init__(self, model: Any, rig: "SeeingRig") -> None:
        super().__init__(model)
        self.rig = rig
        self.session: Session | None = None

    def forward(self, rows: Any, state: Any) -> Any:
        if self.session is not None:  # not of a cold run
            start = state.length
            whole = self.rig.wanted_of(self.session)[: start + len(rows)]
            right = self.rig.positions(whole)[:, start:]
            same = np.broadcast_to(rows.positions, (3, len(rows))) == right
            assert same.all(), "rows at other positions"
        return super().forward(rows, state)


class SeeingRig:
    """As tests.engine.histories.Rig."""

    tolerance = 1e-4  # the tiny model's float32 in other chunks

    def __init__(self, name: str) -> None:
        self.name = name
        with GGUFFile.open(golden_path(name)) as gguf:
            self.model = load_model(gguf, load_settings({}))
        with GGUFFile.open(projector_path(name)) as file:
            self.encoder = Encoder(file, choice.current().path(False))
            recognise = Recogniser(file, ids_of, ID["<image>"])
        # Small enough for a tiny context
        object.__setattr__(recognise.config, "pixels", (1, 32 * 40))
        shots = [picture(*size).rotate(90 * i) for i, size in enumerate(SIZES)]
        self.pictures = [recognise(encoded(shot)) for shot in shots]
        self.images = self.held()
        self.vocab_size = 256  # of text: a marker alone is no picture
        self._by_first_id = {int(row_ids(p.fingerprint, p.block.rows)[0]): p for p in self.pictures}
        self._cold: dict[tuple[int, ...], np.ndarray] = {}

    @property
    def truncates(self) -> bool:
        return not self.model.new_state().needs_snapshots

    def held(self) -> HeldImages:
        """Images of their own, to be counted."""
        images = HeldImages(self.encoder)
        images.give(*self.pictures)
        return images

    def session(self, memory: MemoryTier | None = None, number: int = 1) -> Session:
        model = Watched(self.model, self)
        session = Session(model, (8, 4, 2), None, memory, number, images=self.images)
        model.session = session
        return session

    def cold_logits(self, ids: list[int]) -> np.ndarray:
        key = tuple(ids)
        if key not in self._cold:
            session = Session(self.model, images=self.held())
            self._cold[key] = drain(session.sync(self.timeline(ids))).logits
        return self._cold[key]

    def timeline(self, ids: list[int]) -> Timeline:
        return Timeline.of(ids, tuple(self._spans(ids)))

    def _spans(self, ids: list[int]) -> Iterator[ImageSpan]:
        place = 0
        while place < len(ids):
            if ids[place] >= 0:
                place += 1
                continue
            picture = self._by_first_id[ids[place]]
            yield picture.block.span(place, picture.fingerprint)
            place += picture.block.rows

    def new_ids(self, operation: Operation) -> list[int]:
        """Text with a picture or two among it, at the start for some seeds."""
        text = operation.new_ids(self.vocab_size)
        half, end, seed = len(text) // 2, len(text), operation.seed
        places = ((), (0,), (half,), (min(1, end), end), (end,), (0, 0))[seed % 6]
        for place in reversed(places):
            shown = self.pictures[(seed + place) % len(self.pictures)]
            text[place:place] = row_ids(shown.fingerprint, shown.block.rows).tolist()
        return text

    def wanted_of(self, session: Session) -> list[int]:
        prefill = session._prefill
        whole = session.timeline if prefill is None else prefill.wanted
        return whole.ids.tolist()

    def positions(self, ids: list[int]) -> np.ndarray:
        """int32 [3, T], counted row by row; beyond `ids` text goes on."""
        found, at, place = [], 0, 0
        while place < len(ids):
            block: ImageBlock | None = None
            if ids[place] < 0:
                block = self._by_first_id[ids[place]].block
            if block is None or block.positions is None:
                rows = 1 if block is None else block.rows
                found += [[at + i] * 3 for i in range(rows)]
            else:
                rows = block.rows
                found += (block.positions.T + at).tolist()
            at += 1 if block is None else block.advance
            place += rows
        return np.array(found, dtype=np.int32).reshape(-1, 3).T

    def examine(self, state: Any, ids: list[int]) -> None:
        """As that of test_session_real.FamilyRig."""


@contextmanager
def counted(rig: SeeingRig) -> Iterator[HeldImages]:
    """Sessions made meanwhile have nothing encoded yet."""
    before, rig.images = rig.images, rig.held()
    yield rig.images
    rig.images = before
