"""An answer as lines: what is decided, read and thought is said, then the words as they come."""

import time
from collections.abc import Callable

from ds4tui.events import Decision, EncodingProgress, Event, PrefillProgress, Queued, ReasoningText
from ds4tui.plain import telling
from ds4tui.plain.lines import Lines
from ds4tui.tui.turn import TurnEnd
from ds4tui.tui.words import counted, left_out_words

# A person who listens wants to know that it goes on, and to be left alone.
SAY_EVERY_S = 5.0
LONGEST_WORD = 40


class SpokenAnswer:
    """Satisfies turn.AnswerView. Belongs to the loop."""

    def __init__(
        self,
        lines: Lines,
        clock: Callable[[], float] = time.monotonic,
        shows_thoughts: bool = False,
    ) -> None:
        self._lines = lines
        self._shows_thoughts = shows_thoughts
        self._clock = clock
        self._said_s = clock()
        self._thought = 0  # tokens
        self._rest = ""  # the beginning of a word that is not whole
        self._has_begun = False

    def hear(self, event: Event) -> None:
        """Say what is worth saying of it."""
        match event:
            case Queued(ahead=ahead) if ahead:
                self._say(f"Waiting: {counted(ahead, 'request')} before this one.")
            case Decision():
                self._say(telling.decision(event))
                if event.images_left_out:
                    self._say(f"{left_out_words(event.images_left_out)}.")
            case EncodingProgress():
                self._say(telling.encoding(event))
            case PrefillProgress():
                self._say_now_and_then(telling.prefill(event))
            case ReasoningText():
                self._think(event.text, len(event.token_ids))

    def _think(self, text: str, tokens: int) -> None:
        is_first, self._thought = not self._thought, self._thought + tokens
        if is_first:
            self._say("Thinking.")
        if self._shows_thoughts:
            self._write(text)
        elif not is_first:
            self._say_now_and_then(f"Still thinking: {counted(self._thought, 'token')}.")

    async def add_text(self, text: str) -> None:
        """Write it by whole words: half of one is no word to a listener."""
        if not self._has_begun:
            self._has_begun = True
            self._end_word()
            if self._thought:
                self._say(f"Thought for {counted(self._thought, 'token')}.")
            self._say("Answer:")
        self._write(text)

    def _write(self, text: str) -> None:
        whole, self._rest = by_words(self._rest + text)
        self._lines.write(whole)

    def _end_word(self) -> None:
        self._lines.write(self._rest)
        self._rest = ""

    def show_progress(self, words: str) -> None:
        """What the app shows; here the events are told."""

    def end(self, end: TurnEnd) -> None:
        """Say how it ended, and if it is kept."""
        self._end_word()
        if end.error is None:
            self._lines.say(telling.ended(end.usage, end.stop_reason, end.status))
        if not end.answered:
            self._lines.say("There is no answer; the conversation is what it was.")

    def _say(self, words: str) -> None:
        self._said_s = self._clock()
        self._lines.say(words)

    def _say_now_and_then(self, words: str) -> None:
        if self._clock() - self._said_s >= SAY_EVERY_S:
            self._say(words)


def by_words(text: str) -> tuple[str, str]:
    """(up to the end of the last whole word, the rest)."""
    rest = "" if text[-1:].isspace() else _last_word(text)
    if len(rest) > LONGEST_WORD:  # scripts without spaces
        return text, ""
    return text[: len(text) - len(rest)], rest


def _last_word(text: str) -> str:
    words = text.split()
    return words[-1] if words else ""
