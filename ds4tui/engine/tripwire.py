"""Many long prompts and no reuse: something between the client and us is wrong, and is told.

A front-end that puts a clock or a counter at the start of its prompts makes every request cold,
and nothing else says so: each answer is right, only late. Pure; nothing of the clock.
"""

from collections import Counter, deque
from dataclasses import dataclass

# A prompt below this is computed in a moment, whatever was kept.
PROMPT_TOKENS_MIN = 1000
# Of the last so many long prompts, so many without reuse. The first one of a conversation has
# nothing to reuse, and an agent begins several: half of them would be no sign.
WATCHED = 6
MISSES = 4
# What is kept of a prompt whose first lines change: the template's own opening.
KEPT_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """One decision on a long prompt."""

    prompt: int
    kept: int
    cause: str | None  # None: nothing was there to be reused

    @property
    def is_miss(self) -> bool:
        return self.cause is not None and self.kept < KEPT_SHARE * self.prompt


class Tripwire:
    """`words` says what is wrong and `cause` its usual cause, both "" while nothing is. Owned by
    the engine thread."""

    def __init__(self) -> None:
        self._last: deque[Seen] = deque(maxlen=WATCHED)
        self.words = self.cause = ""

    def watch(self, prompt: int, kept: int, cause: str | None) -> str:
        """Look at one more decision; the words if they are new with it, else ""."""
        if prompt <= PROMPT_TOKENS_MIN:
            return ""
        self._last.append(Seen(prompt, kept, cause))
        before, (self.words, self.cause) = self.words, judged(tuple(self._last))
        return "" if before else self.words


def judged(seen: tuple[Seen, ...]) -> tuple[str, str]:
    """What is wrong with these decisions, in words, and the usual cause; both "" if it is less
    than MISSES misses."""
    misses = [one for one in seen if one.is_miss]
    if len(misses) < MISSES:
        return "", ""
    causes = Counter(one.cause for one in misses if one.cause)
    cause, count = causes.most_common(1)[0]
    tokens = sum(one.prompt - one.kept for one in misses)
    words = (
        f"{len(misses)} of the last {len(seen)} long prompts reused nothing ({tokens:,} tokens "
        f"computed anew); the usual cause: {cause} ({count} of {len(misses)})"
    )
    return words, cause
