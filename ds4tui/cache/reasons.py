"""The sentence that says what a plan does: what is kept from where, what is computed again and
why, what becomes of the old branch and how many tokens it holds."""

from ds4tui.cache.candidates import Situation, Way, can_keep_any
from ds4tui.cache.causes import Cause
from ds4tui.cache.offers import HOLDER_LIVE, NO_OFFERS, HeldRows

_PLACES = {
    "live": "the live state",
    "parked": "a parked branch",
    "segment": "a kept segment",
    "page": "the disk",
    "session": "another session",
}


def reason(
    situation: Situation, way: Way, held: int, cause: Cause | None, poisoned: str | None
) -> str:
    """`held` is how much of the wanted timeline anything resident matches."""
    if not way.kept:
        start = f"{_obstacle(situation, held, poisoned)}: {tokens(situation.prompt)} from the start"
        return _joined(start, _old_branch(situation, way, is_start=True))
    again = _again(situation, way, held)
    if held >= situation.prompt:
        count = situation.prompt - way.kept
        lead = "one token" if count == 1 else tokens(count)
        where = _places(situation, way)
        lead += f" evaluated again: the whole prompt is resident{f' in {where}' if where else ''}"
        return _joined(lead, again, _after_it(situation, way))
    new = situation.prompt - held
    if situation.common == situation.live == held and way.base == "live":
        return _joined(f"{tokens(new, 'new ')} after {held:,} that are resident", again)
    why = f" ({cause})" if cause else ""
    where = _places(situation, way)
    if where:
        lead = f"{tokens(new, 'new ')} after {held:,} that are held{why}: {way.kept:,} from {where}"
        return _joined(lead, again, _old_branch(situation, way))
    old = _old_branch(situation, way)
    return _joined(f"fork at {held:,}{why}: {f'{old}, ' if old else ''}{new:,} new", again)


def tokens(count: int, adjective: str = "") -> str:
    return f"{count:,} {adjective}token{'' if count == 1 else 's'}"


def _joined(*clauses: str) -> str:
    return "; ".join(clause for clause in clauses if clause)


def _obstacle(situation: Situation, held: int, poisoned: str | None) -> str:
    """Why nothing can be kept."""
    if poisoned is not None:
        return f"the state was given up ({poisoned})"
    if not held:
        live = situation.live
        if live:
            return f"nothing in common with the {tokens(live)} that are resident"
        return "nothing is resident"
    if not situation.limit:
        return "the prompt has nothing before its last token"
    to = min(held, situation.limit)
    if can_keep_any(situation):
        return f"the {tokens(to)} that are held are computed sooner than copied"
    if situation.common:
        return f"the state cannot go back from {situation.live:,} to {to:,}"
    return f"no state can be made of the {to:,} that are held"


def _again(situation: Situation, way: Way, held: int) -> str:
    """What of the held tokens is not kept, where that is more than the one that must be."""
    replayed = min(held, situation.limit) - way.kept
    if not replayed:
        return ""
    if not situation.needs_snapshots:
        return f"{tokens(replayed)} before that are computed sooner than copied"
    where = "the nearest snapshot" if way.snapshot is not None else "the nearest state"
    return f"{tokens(replayed)} before that evaluated again from {way.kept:,}, {where}"


def _kind(held: HeldRows) -> str:
    # Other sessions' live rows come as segments without a number of the tier's.
    return "session" if held.kind == "segment" and held.holder_id < 0 else held.kind


def _places(situation: Situation, way: Way) -> str:
    """Where the kept rows come from; "" if all are the live state's."""
    counts: dict[str, int] = {}
    kinds = {held.holder_id: _kind(held) for held in situation.offers.rows}
    base = {"live": "live", "parked": "parked", "fresh": ""}[way.base]
    if way.base_rows:
        counts[base] = way.base_rows
    for part in way.parts:
        kind = "live" if part.holder == HOLDER_LIVE else kinds[part.holder]
        counts[kind] = counts.get(kind, 0) + part.end - part.start
    if set(counts) <= {"live"}:
        return ""
    if len(counts) == 1:
        return _PLACES[next(iter(counts))]
    return " and ".join(f"{_PLACES[kind]} ({count:,})" for kind, count in counts.items())


def _after_it(situation: Situation, way: Way) -> str:
    """Of a prompt that is wholly resident: what becomes of what lies behind it."""
    if way.put_away == "drop" and situation.live > situation.common == situation.prompt:
        return f"{tokens(situation.live - situation.common)} after it dropped{_no_room(situation)}"
    return _old_branch(situation, way)


def _old_branch(situation: Situation, way: Way, *, is_start: bool = False) -> str:
    left = situation.live - min(situation.common, way.kept)
    if situation.common == situation.live:
        said = ""  # it is no other branch: what is kept aside of it is evaluated again at once
    elif way.put_away == "whole":
        said = f"the old branch of {tokens(situation.live)} is parked whole"
    elif way.put_away == "tail":
        is_are = "is" if left == 1 else "are"
        said = f"{tokens(left)} of the old branch {is_are} kept aside"
    elif way.put_away == "drop" and not (is_start and situation.offers is NO_OFFERS):
        said = f"{tokens(left)} of the old branch dropped{_no_room(situation)}"
    elif way.put_away == "nothing" and left:
        said = f"the old branch of {tokens(situation.live)} is held already"
    else:
        said = ""
    if way.base_tail == "drop":
        said = _joined(said, "the end of the parked branch is dropped (no room)")
    return said


def _no_room(situation: Situation) -> str:
    return "" if situation.offers is NO_OFFERS else " (no room)"
