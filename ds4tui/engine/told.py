"""How a plan is told: as a Decision and as the log line of a request, with texts for ids."""

import logging
import time
from collections.abc import Iterable
from itertools import groupby

from ds4tui.cache.plan import Divergence, SyncPlan
from ds4tui.engine.requests import Origin
from ds4tui.engine.tokenizer import Tokenizer
from ds4tui.events import Decision

_requests_log = logging.getLogger("ds4tui.requests")  # a fixed name: scripts read it

# Stands for the rows of an image, of which there is no text.
IMAGE_WORDS = "[image]"


def decision_of(
    job_id: str,
    plan: SyncPlan,
    tokenizer: Tokenizer,
    *,
    origin: Origin,
    session: int,
    tripwire: str = "",
    images_left_out: int = 0,
) -> Decision:
    """The plan as an event, its windows as text; `session` is the number of the one that took
    the job."""
    return Decision.of(
        job_id,
        plan,
        windows=window_texts(plan.divergence, tokenizer),
        origin=origin,
        session=session,
        time_s=time.time(),
        tripwire=tripwire,
        images_left_out=images_left_out,
    )


def log_decision(decision: Decision) -> None:
    """The one line that says how a request was served; `reason`, which has blanks, is last."""
    _requests_log.info(
        "job=%s origin=%s session=%d kind=%s live=%d prompt=%d common=%d held=%d images=%s "
        "kept=%d evaluated=%d replayed=%d source=%s grade=%s cause=%s reason=%s",
        decision.job_id,
        decision.origin,
        decision.session,
        decision.kind,
        decision.live,
        decision.prompt,
        decision.common,
        decision.held,
        decision.images,
        decision.kept,
        decision.evaluated,
        decision.replayed,
        decision.source,
        decision.grade,
        (decision.cause or "none").replace(" ", "-"),
        decision.reason,
    )


def window_texts(divergence: Divergence | None, tokenizer: Tokenizer) -> tuple[str, str, str]:
    """What both sides share just before they part, then how each goes on."""
    if divergence is None:
        return "", "", ""
    live, wanted = divergence.live_window, divergence.wanted_window
    pairs = enumerate(zip(live, wanted, strict=False))
    # Where all is alike an image begins so on both sides: they part at its start.
    alike = min(len(live), len(wanted), divergence.position)
    shared = next((place for place, (a, b) in pairs if a != b), alike)
    texts = (live[:shared], live[shared:], wanted[shared:])
    return tuple(ids_text(ids, tokenizer) for ids in texts)  # type: ignore[return-value]


def ids_text(ids: Iterable[int], tokenizer: Tokenizer, *, skip_special: bool = False) -> str:
    """The text of ids, control tokens in their own words or left out; image rows are
    IMAGE_WORDS, once a run. Half a character at an end, cut by the window, is left out."""
    parts = [
        IMAGE_WORDS if is_image else tokenizer.decode(list(run), skip_special=skip_special)
        for is_image, run in groupby(ids, key=lambda token: token < 0)
    ]
    return "".join(parts).strip("\ufffd")
