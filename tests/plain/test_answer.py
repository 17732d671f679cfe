"""What is said while an answer is at work, and when."""

import io

from hypothesis import given
from hypothesis import strategies as st

from ds4tui.chat.messages import Message
from ds4tui.events import EncodingProgress, PrefillProgress, Queued, ReasoningText, Usage
from ds4tui.plain.answer import LONGEST_WORD, SpokenAnswer, by_words
from ds4tui.plain.lines import Lines
from ds4tui.tui.turn import TurnEnd


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def spoken() -> tuple[SpokenAnswer, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    return SpokenAnswer(Lines(io.StringIO(), out), clock), out, clock


def ended(text: str) -> TurnEnd:
    return TurnEnd(Message("user", "?"), text, "complete", "stop", Usage())


def test_a_long_prefill_is_told_now_and_then() -> None:
    answer, out, clock = spoken()
    for done in range(1, 101):
        clock.now_s += 0.2  # 20 s in all
        answer.hear(PrefillProgress("1", done * 10, 1000, 5, 50.0, (1000 - done * 10) / 50))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("Reading: 250 of 1,000 tokens, 25 percent, 50.0 tokens a second")
    assert lines[0].endswith(", 15 seconds left.")


def test_a_short_prefill_is_not_told() -> None:
    answer, out, _ = spoken()
    answer.hear(Queued("1", 0))
    answer.hear(PrefillProgress("1", 5, 5, 0, 50.0, 0.0))
    assert out.getvalue() == ""


async def test_thinking_is_announced_and_counted_before_the_answer() -> None:
    answer, out, clock = spoken()
    answer.hear(Queued("1", 2))
    answer.hear(EncodingProgress("1", 1, 1, "shot.png", 850.0))
    for _ in range(3):
        answer.hear(ReasoningText("1", "hm", (1, 2)))
        clock.now_s += 4
    await answer.add_text("Yes.")
    answer.end(ended("Yes."))
    assert out.getvalue().splitlines() == [
        "Waiting: 2 requests before this one.",
        "Picture 1 of 1 is seen: shot.png, in 0.85 seconds.",
        "Thinking.",
        "Still thinking: 6 tokens.",
        "Thought for 6 tokens.",
        "Answer:",
        "Yes.",
        "End of answer: stop.",
    ]


async def test_words_come_whole() -> None:
    answer, out, _ = spoken()
    written = []
    for piece in ("Hel", "lo wor", "ld", "\nnew"):
        await answer.add_text(piece)
        written.append(out.getvalue().removeprefix("Answer:\n"))
    assert written == ["", "Hello ", "Hello ", "Hello world\n"]
    answer.end(ended("Hello world\nnew"))
    assert "Hello world\nnew\nEnd of answer" in out.getvalue()


@given(st.text())
def test_nothing_is_lost_between_words(text: str) -> None:
    whole, rest = by_words(text)
    assert whole + rest == text
    assert len(rest) <= LONGEST_WORD and not any(c.isspace() for c in rest)
