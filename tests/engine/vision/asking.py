"""A session that is asked about pictures, and the timelines of such prompts."""

from collections.abc import Sequence

import numpy as np

from ds4tui.cache.timeline import ImageSpan, Timeline
from ds4tui.engine.session import Session
from ds4tui.engine.vision.layout import row_ids
from ds4tui.engine.vision.recognition import Picture
from tests.golden.make.tokens import ID


def ids_of(text: str) -> list[int]:
    """In the golden vocabulary: markers as their tokens, the rest as bytes."""
    for marker, token in ID.items():
        before, found, after = text.partition(marker)
        if found and marker != "\n\n":
            return [*ids_of(before), token, *ids_of(after)]
    return list(text.encode())


def timeline_of(*parts: Sequence[int] | Picture) -> Timeline:
    """Texts and pictures one behind the other."""
    ids: list[int] = []
    spans: list[ImageSpan] = []
    for part in parts:
        if isinstance(part, Picture):
            spans.append(part.block.span(len(ids), part.fingerprint))
            ids += row_ids(part.fingerprint, part.block.rows).tolist()
        else:
            ids += part
    return Timeline.of(ids, tuple(spans))


def answered(session: Session, wanted: Timeline) -> np.ndarray:
    """float32 [vocab]: the logits behind `wanted`."""
    prefill = session.sync(wanted)
    while not prefill.finished:
        prefill.step(32)
    return prefill.logits


def greedy(session: Session, wanted: Timeline, stops: Sequence[int], most: int = 60) -> list[int]:
    logits, ids = answered(session, wanted), []
    while len(ids) < most and int(logits.argmax()) not in stops:
        ids.append(int(logits.argmax()))
        logits = session.append(ids[-1])
    return ids
