"""Why something must be evaluated again: a small vocabulary that people can learn.

A cause is read off two outlines at the position where the timelines part, off the images there,
and off what is remembered of things that were evicted. It is never a guess about the person's
wishes: where the outlines do not tell, the plainest name is taken.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ds4tui.cache.outline import Outline, Turn, turn_at
from ds4tui.cache.timeline import ImageSpan, Timeline


class Cause(StrEnum):
    REPLY_RESERIALISED = "reply re-serialised"
    THINKING_DROPPED = "thinking dropped"
    TOOL_ARGUMENTS_REORDERED = "tool arguments reordered"
    SYSTEM_TEXT_CHANGED = "system text changed"
    TOOLS_CHANGED = "tools changed"
    IMAGE_REPLACED = "image replaced"
    IMAGE_REMOVED = "image removed"
    EARLY_MESSAGE_EDITED = "early message edited"
    OTHER_CONVERSATION = "other conversation"
    WINDOW_WRAPPED = "window wrapped"
    SNAPSHOT_EVICTED = "snapshot evicted"
    BRANCH_EVICTED = "branch evicted"
    MODEL_CHANGED = "model changed"
    SESSION_POISONED = "session poisoned"


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that would have helped and is gone: its first `tokens` ids are the wanted
    timeline's."""

    cause: Cause
    tokens: int


@dataclass(frozen=True, slots=True)
class Side:
    """One of two timelines that part: its length, turns and images. Of the held one, `left_out`
    tells how many ids the wanted one skips where they part, 0 if it is no mere omission."""

    length: int
    outline: Outline
    spans: tuple[ImageSpan, ...]
    left_out: int = 0


def divergence_cause(held: Side, wanted: Side, position: int) -> Cause | None:
    """Why `wanted` does not go on at `position` as `held` does, which shares all before it.

    None if it does: one of both ends there. Without outlines only images and the position can
    tell.
    """
    if position >= held.length or position >= wanted.length:
        return None
    image = _image_cause(held, wanted, position)
    if image is not None:
        return image
    if not held.outline or not wanted.outline:
        return Cause.EARLY_MESSAGE_EDITED if position else Cause.OTHER_CONVERSATION
    return _turn_cause(held, wanted, position)


# The shortest thinking block has a tag, a blank line and a tag; less that is left out is layout.
_THINKING_IDS_MIN = 3

# So many ids alike are no accident.
_PROBE = 4


def left_out(held: Timeline, wanted: Timeline, position: int) -> int:
    """How many ids of `held` from `position` on the `wanted` timeline leaves out before it goes
    on alike; 0 if it does not."""
    ids, probe = held.ids[position:], wanted.ids[position : position + _PROBE]
    if len(probe) < _PROBE:
        return 0
    starts = np.flatnonzero(ids[: len(ids) - _PROBE + 1] == probe[0])
    return next((int(i) for i in starts if np.array_equal(ids[i : i + _PROBE], probe)), 0)


# What stands before a picture belongs to it: blank lines, a marker. Timelines that part there part
# because of the picture. Text is longer.
_AROUND_IMAGE = 4


def _image_cause(held: Side, wanted: Side, position: int) -> Cause | None:
    was, now = _image_near(held, position), _image_near(wanted, position)
    if was is None:
        return None
    before, after = (Counter(s.fingerprint for s in side.spans) for side in (held, wanted))
    is_gone = after[was.fingerprint] < before[was.fingerprint]
    if now is None or now.fingerprint == was.fingerprint:
        return Cause.IMAGE_REMOVED if is_gone else None  # it has only moved, with the text
    # One that stood elsewhere has moved up, or they changed places; a further one is new.
    is_new = after[now.fingerprint] > before[now.fingerprint]
    if is_gone:
        return Cause.IMAGE_REPLACED if is_new else Cause.IMAGE_REMOVED
    return None if is_new else Cause.IMAGE_REPLACED


def _image_near(side: Side, position: int) -> ImageSpan | None:
    """The first picture from `position` on, if it is of the same turn and there is no more than
    what belongs to it before."""
    turn = turn_at(side.outline, position)
    end = min(position + _AROUND_IMAGE + 1, turn.end if turn is not None else side.length)
    return next((span for span in side.spans if position <= span.start < end), None)


def _turn_cause(held: Side, wanted: Side, position: int) -> Cause:
    was, now = turn_at(held.outline, position), turn_at(wanted.outline, position)
    if _is_system(was) or _is_system(now):
        return _system_cause(was, now)
    if _is_reply(was) and now is not None and now.role == "assistant":
        return _reply_cause(was, now, held.left_out)
    before = (turn for turn in wanted.outline if turn.end <= position)
    if all(turn.role in _BEFORE_MESSAGES for turn in before):
        return _first_message_cause(held.outline, wanted.outline, position)
    if was is not None and now is not None and _says_the_same(was, now):
        # The words stayed, the template's changed: the marks of thinking move with the last turn.
        return Cause.THINKING_DROPPED
    return Cause.EARLY_MESSAGE_EDITED


_BEFORE_MESSAGES = ("system", "opening")


def _is_system(turn: Turn | None) -> bool:
    return turn is not None and turn.role == "system"


def _is_reply(turn: Turn | None) -> bool:
    # What was sampled behind the last turn may not be in an outline yet.
    return turn is None or turn.role in ("assistant", "opening")


def _system_cause(was: Turn | None, now: Turn | None) -> Cause:
    if was is not None and now is not None and was.role == now.role:
        if was.tools_digest != now.tools_digest and was.digest == now.digest:
            return Cause.TOOLS_CHANGED
    return Cause.SYSTEM_TEXT_CHANGED


def _reply_cause(was: Turn | None, now: Turn, ids_left_out: int) -> Cause:
    if was is None or was.role == "opening" or not was.digest:
        # What was sampled is not known as text: what became of its ids tells.
        thought = ids_left_out >= _THINKING_IDS_MIN or (was is not None and was.has_reasoning)
        is_dropped = thought and not now.has_reasoning
        return Cause.THINKING_DROPPED if is_dropped else Cause.REPLY_RESERIALISED
    if was.digest != now.digest or was.calls_digest != now.calls_digest:
        return Cause.EARLY_MESSAGE_EDITED
    if was.has_reasoning != now.has_reasoning:
        return Cause.THINKING_DROPPED
    return Cause.TOOL_ARGUMENTS_REORDERED if now.calls_digest else Cause.REPLY_RESERIALISED


def _first_message_cause(held: Outline, wanted: Outline, position: int) -> Cause:
    """The first message differs: an edit if anything that was said later is said again."""
    later = {(t.role, t.digest) for t in held if _is_said_behind(t, position)}
    again = any((t.role, t.digest) in later for t in wanted if _is_said_behind(t, position))
    return Cause.EARLY_MESSAGE_EDITED if again else Cause.OTHER_CONVERSATION


def _is_said_behind(turn: Turn, position: int) -> bool:
    # The opening of a reply says nothing: all of them are alike.
    return turn.start > position and bool(turn.digest) and turn.role != "opening"


def _says_the_same(was: Turn, now: Turn) -> bool:
    return was.role == now.role and was.digest == now.digest and bool(was.digest)


def lost_cause(lost: Iterable[Lost], held: int, kept: int, keepable: int) -> Cause | None:
    """Of what is gone, what would have helped most: a branch that reached beyond `held` (of those
    that reached as far the one named first), or a snapshot behind `kept`, as far as `keepable`."""
    gone = list(lost)
    branches = [t for t in gone if t.cause is not Cause.SNAPSHOT_EVICTED and t.tokens > held]
    if branches:
        return max(branches, key=lambda thing: thing.tokens).cause
    snapshots = (t.tokens for t in gone if t.cause is Cause.SNAPSHOT_EVICTED)
    return Cause.SNAPSHOT_EVICTED if any(kept < at <= keepable for at in snapshots) else None
