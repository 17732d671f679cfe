"""The checks that tests rely on, each an assertion about a model or a session.

They stand alone so that planted faults can show that each of them turns red.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ds4tui.cache.timeline import Timeline
from ds4tui.engine.models.registry import Model
from ds4tui.engine.session import Session
from ds4tui.errors import EngineError
from tests.golden.files import golden, row
from tests.golden.make.tokens import ID
from tests.parity.ours import SCHEDULES, last_logits, walk
from tests.parity.three_way import log_softmax

# Of a logit of the tiny models, in float32: sums in another order differ by some 1e-5. Faults
# are seen because any one token moves the logits by 100 times as much (check_sensitivity).
TOLERANCE = 1e-4
FELT = 100 * TOLERANCE


def text_rows(name: str) -> int:
    """How many tokens of the prompt are text before any image: all, of a text family."""
    ids = golden(name)["ids"]
    images = np.flatnonzero(ids == ID["<image>"])
    return int(images[0]) if row(name)["vision"] else len(ids)


def check_golden(model: Model, name: str) -> None:
    """Logits at every position are Hugging Face's, however the prompt is cut into passes."""
    n = text_rows(name)
    want = golden(name)["logits"][:n]
    for schedule in SCHEDULES:
        gaps = np.abs(walk(model, golden(name)["ids"][:n], schedule) - want).max(axis=1)
        at = int(gaps.argmax())
        assert gaps[at] <= TOLERANCE, (
            f"{name}, {schedule}: logits differ by {gaps[at]:.2g} at position {at}"
        )


def check_sensitivity(model: Model, name: str, every: int = 1) -> None:
    """Any one token of the prompt (of so many one), replaced, moves the last log-probabilities
    visibly."""
    ids = golden(name)["ids"][: text_rows(name)]
    base = log_softmax(last_logits(model, ids))
    for position in range((len(ids) - 1) % every, len(ids), every):
        other = ids.copy()
        other[position] = (other[position] + 101) % 256
        change = np.abs(log_softmax(last_logits(model, other)) - base).max()
        assert change >= FELT, f"{name}: token {position} moves the logits by {change:.2g} only"


def check_reuse(session: Session, cold: Callable[[Sequence[int]], np.ndarray], name: str) -> None:
    """A session that extends, rewinds, forks and hits exactly has the logits of a cold start.

    `cold` gives the logits after a prompt from nothing. An error of the session's own guards
    is a finding like any other.
    """
    ids = golden(name)["ids"].tolist()
    try:
        for i, wanted in enumerate(histories(ids)):
            prefill = session.sync(Timeline.of(wanted))
            while not prefill.finished:
                prefill.step(CHUNK_ROWS)
            _compare(prefill.logits, cold(wanted), f"history {i}")
            for more in range(1, APPENDED + 1):  # what a stale row spoils may show only later
                grown = [*wanted, *ids[:more]]
                _compare(session.append(grown[-1]), cold(grown), f"history {i}, {more} appended")
    except (EngineError, RuntimeError, ValueError) as error:
        raise AssertionError(f"the session stopped: {error}") from error


CHUNK_ROWS = 8
APPENDED = 2


def histories(ids: list[int]) -> list[list[int]]:
    """Prompts that one session gets in turn, of the family's prompt and another branch."""
    branch = [(token + 7) % 256 for token in ids]
    return [
        ids[:20],
        ids[:34],  # a rewind over what was appended, then more
        ids[:34],  # wholly resident, but for what was appended
        [*ids[:34], *ids[:APPENDED]],  # wholly resident: the last token is evaluated again
        [*ids[:12], *branch[12:30]],  # a fork
        [*ids[:12], *branch[12:29], *ids[29:40]],
        [*ids[:1], *branch[1:25]],  # one token in common
        branch[:25],  # none
        ids,
    ]


def _compare(got: np.ndarray, want: np.ndarray, what: str) -> None:
    gap = float(np.abs(got - want).max())
    assert gap <= TOLERANCE, f"{what}: logits differ by {gap:.2g} from a cold start"
