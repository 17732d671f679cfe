"""The window over a long conversation."""

import asyncio

from textual.app import App, ComposeResult

from ds4tui.chat.messages import Message
from ds4tui.chat.store import StoredMessage
from ds4tui.tui.messages import Answer, Notice, Question
from ds4tui.tui.transcript import (
    LOADED_MESSAGES,
    MOUNTED_MESSAGES,
    RICH_MESSAGES,
    Transcript,
)


class Page(App[None]):
    CSS_PATH = "../../ds4tui/tui/ds4.tcss"

    def compose(self) -> ComposeResult:
        yield Transcript(id="transcript")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    def texts(self) -> list[str]:
        return [
            view.text if isinstance(view, Answer) else str(view.content)
            for view in self.query("Question, Answer, Notice").results(Question | Answer | Notice)  # type: ignore[type-var]
        ]

    def lines(self) -> list[str]:
        return [s.text.rstrip() for s in self.screen._compositor.render_strips(self.size)]


def stored(count: int) -> list[StoredMessage]:
    roles = ("user", "assistant")
    return [
        StoredMessage(n, n - 1 or None, Message(roles[n % 2], f"m{n}"), "complete", None, 0.0)  # type: ignore[arg-type]
        for n in range(count)
    ]


async def ask(transcript: Transcript, number: int) -> None:
    await transcript.add_question(f"q{number}")
    answer = await transcript.add_answer()
    await answer.add_text(f"a{number}")
    await transcript.end_turn(answer, "footer", is_aside=False)


async def test_a_loaded_conversation_shows_its_end_at_once_and_the_rest_on_demand() -> None:
    app = Page()
    async with app.run_test(size=(60, 30)) as pilot:
        await app.transcript.show(stored(55))
        await pilot.pause()
        assert app.texts() == [f"m{n}" for n in range(55 - LOADED_MESSAGES, 55)]
        assert not any(a.is_rich for a in app.query(Answer))  # at once: not yet Markdown
        assert any("m54" in line for line in app.lines())
        await app.transcript.enrich()
        assert [a.is_rich for a in app.query(Answer)] == [
            n >= 55 - RICH_MESSAGES for n in range(55 - LOADED_MESSAGES, 55) if n % 2
        ]

        await app.transcript.scroll_towards("home")
        await pilot.pause()
        assert "35 earlier messages" in app.lines()[0]
        await app.transcript.scroll_towards("page_up")
        assert app.texts() == [f"m{n}" for n in range(15, 55)]
        async with asyncio.timeout(20):
            while "m35" not in app.lines()[0]:  # what was in view is again
                await pilot.pause()
        for _ in range(20):
            await app.transcript.scroll_towards("page_up")
            await pilot.pause()
        assert app.texts() == [f"m{n}" for n in range(55)]
        assert not any("earlier" in line for line in app.lines())


async def test_a_growing_conversation_keeps_few_widgets() -> None:
    app = Page()
    async with app.run_test(size=(60, 30)) as pilot:
        turns = MOUNTED_MESSAGES
        for number in range(turns):
            await ask(app.transcript, number)
        await pilot.pause()
        texts = app.texts()
        assert len(texts) == MOUNTED_MESSAGES and texts[-1] == f"a{turns - 1}"
        rich = [a.text for a in app.query(Answer) if a.is_rich]
        assert rich == [f"a{n}" for n in range(turns - RICH_MESSAGES // 2, turns)]
        assert app.transcript.is_at_end
        assert len(list(app.transcript.walk_children())) < 300


async def test_nothing_is_unmounted_under_somebody_who_reads_further_up() -> None:
    app = Page()
    async with app.run_test(size=(60, 12)) as pilot:
        for number in range(MOUNTED_MESSAGES // 2):
            await ask(app.transcript, number)
        await app.transcript.scroll_towards("home")
        await pilot.pause()
        await ask(app.transcript, 999)
        await pilot.pause()
        assert len(app.texts()) == MOUNTED_MESSAGES or app.texts()[0] == "q0"


async def test_a_cut_takes_what_stands_behind_it_and_asides_are_not_counted() -> None:
    app = Page()
    async with app.run_test(size=(80, 30)) as pilot:
        await ask(app.transcript, 1)
        await app.transcript.add_question("stopped")
        await app.transcript.end_turn(await app.transcript.add_answer(), "stopped", is_aside=True)
        await ask(app.transcript, 2)
        await app.transcript.add_notice(Notice("said"), "said")
        await app.transcript.cut(3)
        await pilot.pause()
        assert app.texts() == ["q1", "a1", "stopped", "", "q2"]
        await app.transcript.cut(2)
        await app.transcript.cut(2)
        await pilot.pause()
        assert app.texts() == ["q1", "a1", "stopped", ""]


async def test_a_cut_far_up_mounts_what_stands_before_it() -> None:
    app = Page()
    async with app.run_test(size=(80, 30)) as pilot:
        for number in range(MOUNTED_MESSAGES):
            await ask(app.transcript, number)
        await app.transcript.cut(3)
        await pilot.pause()
        assert app.texts() == ["q0", "a0", "q1"]
        await ask(app.transcript, 9)
        await pilot.pause()
        assert app.texts() == ["q0", "a0", "q1", "q9", "a9"]


async def test_marks_are_shown_on_mounted_messages_and_on_those_mounted_later() -> None:
    app = Page()
    async with app.run_test(size=(80, 30)) as pilot:
        for number in range(MOUNTED_MESSAGES):
            await ask(app.transcript, number)
        app.transcript.mark([f"<{at}>" for at in range(2 * MOUNTED_MESSAGES)])
        await pilot.pause()
        last = 2 * MOUNTED_MESSAGES - 2
        assert app.texts()[-2] == f"q{MOUNTED_MESSAGES - 1}\n<{last}>"
        for _ in range(MOUNTED_MESSAGES):
            await app.transcript.show_earlier()
        await pilot.pause()
        assert app.texts()[0] == "q0\n<0>"
        app.transcript.mark([""] * 2 * MOUNTED_MESSAGES)
        await pilot.pause()
        assert app.texts()[0] == "q0"


async def test_clearing_brings_the_welcome_back() -> None:
    app = Page()
    async with app.run_test(size=(80, 30)) as pilot:
        assert "ds4tui" in "\n".join(app.lines())
        await ask(app.transcript, 1)
        await app.transcript.add_notice(Notice("[/x] said", "hint"), "[/x] said")
        await pilot.pause()
        assert app.texts() == ["q1", "a1", "[/x] said\nhint"]
        await app.transcript.clear()
        await pilot.pause()
        assert app.texts() == [] and "never computes a token twice" in "\n".join(app.lines())


async def test_a_long_question_is_folded_until_it_is_clicked() -> None:
    app = Page()
    async with app.run_test(size=(80, 60)) as pilot:
        await app.transcript.add_question("\n".join(f"row {n}" for n in range(40)))
        await pilot.pause()
        text = "\n".join(app.lines())
        assert "row 11" in text and "row 12" not in text and "more characters" in text
        await pilot.click(Question)
        await pilot.pause()
        assert "row 39" in "\n".join(app.lines())
