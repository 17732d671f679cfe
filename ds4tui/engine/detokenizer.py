"""Token ids to text that is final, one token at a time.

Two things make text not final: a token may end inside a character, and what was said so far may
be the beginning of a stop string. Both are held back. Knows nothing of jobs or events.
"""

import codecs

from ds4tui.engine.tokenizer import Tokenizer


class StreamDetokenizer:
    """Not for use by several threads at once.

    All `push` results and the one of `finish`, joined, are `tokenizer.decode(ids)` up to where
    the first stop string begins. `stop_string` is the one found, else None; once it is set,
    nothing more is given. `continues` says that the ids continue a text: then a blank before
    the first word is no ornament of the encoding, and stays.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, continues: bool = False
    ) -> None:
        self.stop_string: str | None = None
        self._tokenizer = tokenizer
        self._begins = not continues
        # Shortest first: of two that begin at one place the shorter is complete earlier.
        self._stops = sorted(stop, key=len)
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token_id: int) -> str:
        """Text that became final with this token, often ""."""
        begins, self._begins = self._begins, False
        if self.stop_string is not None or self._tokenizer.is_control(token_id):
            return ""
        read = self._tokenizer.first_bytes if begins else self._tokenizer.token_bytes
        return self._take(self._characters.decode(read(token_id)))

    def finish(self) -> str:
        """What was held back, now that nothing follows. It may hold a stop string still: where
        a longer one had begun before it and was not completed."""
        if self.stop_string is not None:
            return ""
        return self._take(self._characters.decode(b"", final=True), last=True)

    def _take(self, text: str, last: bool = False) -> str:
        self._held += text
        begins = len(self._held) if last else self._unfinished_stop()
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        at, stop = min(found, key=lambda f: f[0], default=(len(self._held), None))
        if stop is not None and at <= begins:
            self.stop_string = stop
            begins = at
        ready, self._held = self._held[:begins], self._held[begins:]
        return ready

    def _unfinished_stop(self) -> int:
        """Where the earliest suffix begins that is a proper prefix of a stop string."""
        end = len(self._held)
        longest = len(self._stops[-1]) if self._stops else 0
        for at in range(max(0, end - longest + 1), end):
            if any(
                self._held.startswith(stop[: end - at], at)
                for stop in self._stops
                if len(stop) > end - at
            ):
                return at
        return end
