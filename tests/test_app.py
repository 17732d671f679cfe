"""The chat as a person meets it: keys in, screen and store out, a fake engine behind."""

import threading
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.keys import _character_to_key

from ds4tui.chat.messages import Message
from ds4tui.chat.store import ConversationStore
from ds4tui.engine.requests import GenerateRequest
from ds4tui.errors import GGUFError, OutOfMemory, StoreError, UsageError
from tests.fakes import FakeAssistant
from tests.tui.harness import Driver, FakeServer, running


def asked_text(assistant: FakeAssistant, place: int) -> str:
    """What the engine was asked in its request number `place`, as text."""
    request: GenerateRequest = assistant.engine.requests[place]
    text: str = assistant.format.tokenizer.decode(request.timeline.ids.tolist())
    return text


def burst(on: Driver, text: str) -> None:
    """Type faster than the screen handles keys: all of them wait when the first is handled."""
    for character in text:
        key = {"\r": "enter"}.get(character) or _character_to_key(character)
        on.prompt.post_message(events.Key(key, character))


# Asking


async def test_a_question_is_answered_in_a_stream_with_its_numbers_under_it() -> None:
    assistant = FakeAssistant("Hello **you**.")
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.type("hi there")
        await on.press("enter")
        await on.until(lambda: on.questions == ["hi there"])
        assert on.prompt.text == ""
        await on.until(lambda: assistant.engine.jobs)
        assistant.engine.release(3 + 5)  # start, two chunks, five tokens
        await on.until(lambda: on.answers == ["Hello"])
        assert on.footers == ["writing"] and on.chat.is_busy
        assistant.engine.release()
        await on.answered()
        assert on.answers == ["Hello **you**."]
        assert "Hello you." in on.screen_text()
        (footer,) = on.footers
        for part in ("TTFT ", "prefill 11 at ", ", 0 cached", "decode 14 at ", " · stop"):
            assert part in footer


async def test_a_second_question_evaluates_only_what_is_new() -> None:
    assistant = FakeAssistant("first answer")
    async with running(assistant, size=(140, 45)) as on:
        await on.ask("one")
        await on.answered()
        await on.ask("two")
        await on.answered()
        usage = assistant.stats.usage
        assert usage.evaluated_tokens + usage.cached_tokens == usage.prompt_tokens
        assert usage.evaluated_tokens <= len("two") + 5
        assert f"{usage.cached_tokens} cached" in on.footers[1]
        await on.until(lambda: "extend +" in on.screen_text())


async def test_the_answer_is_drawn_in_few_batches_however_fast_tokens_come() -> None:
    assistant = FakeAssistant("x" * 3000)
    async with running(assistant) as on:
        added: list[str] = []
        await on.ask("go")
        (answer,) = on.chat.query("Answer")
        real = answer.add_text  # type: ignore[attr-defined]

        async def counting(text: str) -> None:
            added.append(text)
            await real(text)

        answer.add_text = counting  # type: ignore[attr-defined]
        await on.answered()
        assert on.answers == ["x" * 3000]
        assert len(added) < 300


@pytest.mark.parametrize("key", ["shift+enter", "alt+enter", "ctrl+j"])
async def test_newline_keys_insert_and_enter_sends(key: str) -> None:
    assistant = FakeAssistant()
    async with running(assistant) as on:
        await on.press("a", key, "b")
        assert on.prompt.text == "a\nb" and on.questions == []
        await on.press("enter")
        await on.until(lambda: on.questions == ["a\nb"])
        await on.answered()


async def test_the_prompt_grows_to_eight_lines_and_scrolls_then() -> None:
    async with running() as on:
        heights = []
        for _ in range(12):
            heights.append(on.prompt.size.height)
            await on.press("x", "ctrl+j")
            await on.pilot.pause()
        assert heights[0] == 1 and max(heights) == 8


async def test_blank_prompts_are_not_sent() -> None:
    assistant = FakeAssistant()
    async with running(assistant) as on:
        await on.press("space", "ctrl+j", "enter")
        await on.pilot.pause()
        assert on.questions == [] and on.prompt.text == " \n"


async def test_what_is_typed_ahead_of_a_busy_screen_is_a_new_draft() -> None:
    assistant = FakeAssistant()
    async with running(assistant) as on:
        burst(on, "question alpha\rtyped ahead")
        await on.until(lambda: on.questions)
        await on.answered()
        assert on.questions == ["question alpha"] and on.prompt.text == "typed ahead"


async def test_what_is_typed_after_a_command_stays() -> None:
    async with running() as on:
        burst(on, "/new\rtyped ahead")
        await on.until(lambda: on.prompt.text == "typed ahead")
        await on.type("/")
        assert on.prompt.text == "typed ahead/" and on.questions == []


@pytest.mark.parametrize("refused", ["/nonsense", "/new", "second"])
async def test_what_is_not_sent_now_comes_back_before_what_was_typed_since(refused: str) -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("first")
        burst(on, f"{refused}\r!")
        await on.until(lambda: on.prompt.text == f"{refused}\n!")
        assistant.engine.release()
        await on.answered()
        assert on.questions == ["first"] and on.prompt.text == f"{refused}\n!"


# Stopping


async def test_escape_in_prefill_stops_and_keeps_the_draft() -> None:
    assistant = FakeAssistant(chunk_tokens=8)
    assistant.engine.hold()
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await on.ask("a question of many chunks")
        await on.type("my draft")
        assistant.engine.release(2)  # the start and one chunk
        await on.until(lambda: "prefill 8/" in on.footers[0])
        await on.press("escape")
        await on.answered()
        assert on.prompt.text == "my draft"
        assert on.footers[0].endswith("· stopped · not part of the conversation")
        assert on.chat.chat.path == []  # without an answer it is no part of the conversation
        assistant.engine.release()
        await on.press("enter")
        await on.until(lambda: len(on.questions) == 2)
        await on.answered()
        assert "many chunks" not in asked_text(assistant, 1)
        kept = assistant.engine.requests[0].timeline.common_prefix(
            assistant.engine.requests[1].timeline
        )
        assert assistant.stats.usage.cached_tokens == kept


async def test_a_question_stopped_before_its_answer_comes_back_into_an_empty_prompt() -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("precious question")
        await on.press("escape")
        await on.answered()
        assert on.prompt.text == "precious question"


async def test_escape_closes_an_open_list_of_commands_before_it_stops_an_answer() -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("go")
        await on.until(lambda: assistant.engine.jobs)
        completions = on.app.query_one("#completions")
        await on.type("/")
        await on.until(lambda: completions.display)
        await on.press("escape")
        await on.until(lambda: not completions.display)
        assert on.chat.is_busy and on.prompt.text == "/" and "stopping" not in on.footers[0]
        await on.type("stop")
        await on.until(lambda: completions.display)
        await on.press("enter")
        await on.answered()
        assert "· stopped ·" in on.footers[0]


async def test_escape_in_decode_keeps_the_partial_text_marked_and_in_the_conversation() -> None:
    assistant = FakeAssistant("abcdefgh")
    assistant.engine.hold()
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await on.ask("go")
        await on.type("draft")
        await on.until(lambda: assistant.engine.jobs)
        assistant.engine.release(3 + 3)
        await on.until(lambda: on.answers == ["abc"])
        await on.press("escape")
        await on.answered()
        assert on.answers == ["abc"] and on.footers[0].endswith("· stopped")
        assert on.prompt.text == "draft"
        latest = store.latest()
        assert latest is not None
        stored = store.load(latest.id).path[-1]
        assert (stored.message.text, stored.status) == ("abc", "cancelled")
        assert stored.message.sampled_ids == tuple(b"abc")
        assistant.engine.release()
        await on.press("enter")
        await on.until(lambda: len(on.answers) == 2)
        await on.answered()
        assert "abc" in asked_text(assistant, 1)


# Sending while something is at work


async def test_enter_while_busy_queues_the_draft_where_it_stands() -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("first")
        await on.type("second")
        await on.press("enter")
        await on.until(lambda: "queued" in str(on.prompt.border_title))
        assert on.prompt.text == "second"
        await on.press("enter")  # taken back
        await on.until(lambda: "queued" not in str(on.prompt.border_title))
        await on.press("enter")
        await on.until(lambda: "queued" in str(on.prompt.border_title))
        assistant.engine.release()
        await on.until(lambda: on.questions == ["first", "second"])
        await on.answered()
        assert len(on.answers) == 2 and on.prompt.text == ""


async def test_a_change_takes_a_queued_draft_back() -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("first")
        await on.type("second")
        await on.press("enter", "!")
        await on.until(lambda: on.prompt.text == "second!", "it is changed")
        await on.until(lambda: "queued" not in str(on.prompt.border_title))
        assistant.engine.release()
        await on.answered()
        assert on.questions == ["first"] and on.prompt.text == "second!"


async def test_escape_takes_a_queued_draft_back_too() -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("first")
        await on.type("second")
        await on.press("enter", "escape")
        await on.answered()
        assert on.prompt.text == "second" and len(on.questions) == 1


async def test_a_question_queued_behind_a_stopped_one_is_sent_and_up_brings_both_back() -> None:
    assistant = FakeAssistant()
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("first")
        await on.until(lambda: assistant.engine.jobs)
        # The engine ends a stopped job with its next step: Enter comes before that is told.
        on.chat.stop()
        burst(on, "second\r")
        await on.until(lambda: on.questions == ["first", "second"])
        assistant.engine.release()
        await on.answered()
        assert on.answers == ["", "Hello from the fake model."] and on.prompt.text == ""
        await on.press("up")
        assert on.prompt.text == "second"
        await on.press("up")
        assert on.prompt.text == "first"


async def test_a_question_queued_for_a_model_that_fails_to_open_is_queued_no_more() -> None:
    go = threading.Event()

    def failing(name: str, progress: Any) -> FakeAssistant:
        progress("reading 272 tensors")
        assert go.wait(20)
        raise GGUFError("broken.gguf ends after 12 bytes.", "Fetch it again.")

    async with running(open_model=failing, is_open=False, size=(140, 40)) as on:
        await on.until(lambda: "reading 272" in on.screen_text())
        await on.type("early bird")
        await on.press("enter")
        assert "queued" in str(on.prompt.border_title)
        go.set()
        await on.until(lambda: on.notices)
        assert "queued" not in str(on.prompt.border_title) and on.prompt.text == "early bird"


async def test_typing_and_queueing_work_while_the_model_is_opened() -> None:
    go = threading.Event()
    assistant = FakeAssistant()

    def slow(name: str, progress: Any) -> FakeAssistant:
        progress("reading 272 tensors")
        assert go.wait(20)
        return assistant

    async with running(assistant, open_model=slow, is_open=False, size=(140, 40)) as on:
        await on.until(lambda: "smollm2: reading 272" in on.screen_text())
        await on.type("early bird")
        await on.press("enter")
        assert "sent when the model is open" in str(on.prompt.border_title)
        await on.press("ctrl+n")  # has to wait, and says so
        await on.until(lambda: any("has to wait" in t for t in on.toasts))
        go.set()
        await on.until(lambda: on.questions == ["early bird"])
        await on.answered()


async def test_a_toast_leaves_the_prompt_alone_in_a_small_terminal() -> None:
    async with running(size=(80, 24)) as on:
        await on.type("a draft")
        await on.until(lambda: "a draft" in on.screen_text())
        below = on.screen_text().splitlines()[-6:]
        for _ in range(2):
            on.app.notify("/new has to wait while an answer is written.")
        await on.until(lambda: on.screen_text().count("/new has to wait") == 2, "they are seen")
        assert on.screen_text().splitlines()[-6:] == below


# What goes wrong


async def test_an_engine_failure_is_told_with_its_hint_and_the_question_comes_back() -> None:
    error = OutOfMemory("A prompt of 9 tokens", 2 * 2**30, 2**30)
    assistant = FakeAssistant("abc", error=error, fail_after=2)
    store = ConversationStore.in_memory()
    async with running(assistant, store=store) as on:
        await on.ask("too much")
        await on.answered()
        assert on.answers == ["ab"] and "· failed · not part of" in on.footers[0]
        (notice,) = on.notices
        assert "needs 2,048 MiB" in notice and "smaller model" in notice
        assert on.prompt.text == "too much"
        latest = store.latest()
        assert latest is not None and store.load(latest.id).path == ()
        assistant.engine.error = None
        await on.press("enter")
        await on.until(lambda: len(on.answers) == 2)
        await on.answered()
        assert asked_text(assistant, 1).count("too much") == 1


async def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers() -> None:
    assistant = FakeAssistant(context_tokens=64)
    async with running(assistant) as on:
        await on.ask("x" * 100)
        await on.answered()
        assert "the context holds 64" in on.notices[0]
        assert on.prompt.text == "x" * 100


async def test_an_error_that_nobody_expected_is_told_and_the_app_lives_on() -> None:
    assistant = FakeAssistant(submit_error=RuntimeError("[/boom] no Stream(gpu, 0)"))
    async with running(assistant) as on:
        await on.ask("q")
        await on.answered()
        assert "[/boom] no Stream(gpu, 0)" in on.notices[0]
        assistant.engine.submit_error = None
        await on.press("enter")
        await on.until(lambda: on.answers == ["", "Hello from the fake model."])


async def test_a_model_that_cannot_be_opened_is_told_and_another_can_be() -> None:
    assistant = FakeAssistant()

    def open_model(name: str, progress: Any) -> FakeAssistant:
        if name == "broken":
            raise GGUFError("broken.gguf ends after 12 bytes.", "Fetch it again.")
        return assistant

    async with running(assistant, open_model=open_model, model_name="broken", is_open=False) as on:
        await on.until(lambda: on.notices)
        assert on.notices == ["error  broken.gguf ends after 12 bytes.\nFetch it again."]
        await on.type("hello")
        await on.press("enter")
        await on.until(lambda: any("No model is open" in t for t in on.toasts))
        assert on.prompt.text == "hello" and on.questions == []
        on.prompt.put("/model good")
        await on.pilot.pause()
        await on.press("enter")
        await on.until(lambda: on.app._slot.assistant is assistant)
        assert on.prompt.text == ""
        await on.ask("hello")
        await on.answered()
        assert on.answers == ["Hello from the fake model."]


async def test_a_failed_switch_of_models_opens_the_old_one_again() -> None:
    opened: list[str] = []

    def open_model(name: str, progress: Any) -> FakeAssistant:
        opened.append(name)
        if name == "bad":
            raise GGUFError("bad is no GGUF.")
        return FakeAssistant()

    async with running(open_model=open_model, model_name="good") as on:
        on.prompt.put("/model bad")
        await on.pilot.pause()
        await on.press("enter")
        await on.until(lambda: opened == ["good", "bad", "fake.gguf"])
        await on.until(lambda: on.app._slot.assistant is not None)
        assert on.notices == ["error  bad is no GGUF."]


# Conversations


async def test_continue_repaints_and_the_next_question_uses_the_sampled_ids(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"
    first = FakeAssistant("an answer")
    async with running(first, store=ConversationStore(path)) as on:
        await on.ask("the first line\nmore")
        await on.answered()
        await on.press("ctrl+q")
        await on.until(lambda: not on.app.is_running)

    second = FakeAssistant("more")
    async with running(second, store=ConversationStore(path), continue_last=True) as on:
        await on.until(lambda: on.answers == ["an answer"])
        assert on.questions == ["the first line\nmore"]
        await on.until(lambda: on.footers and "decode 9 at" in on.footers[0])
        await on.until(lambda: "the first line" in on.screen_text().splitlines()[0])
        await on.ask("next")
        await on.answered()
        before = first.engine.requests[0].timeline
        now = second.engine.requests[0].timeline
        assert now.common_prefix(before) == len(before)
        assert now.ids.tolist()[len(before) :][:9] == list(b"an answer")


async def test_sampled_ids_are_not_handed_to_another_model(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    store = ConversationStore(path)
    chat = store.create("t")
    _, answered = store.begin_turn(chat.id, None, Message("user", "q"))
    stats = {"ids_of": "another model"}
    store.update_message(answered, "text", (1, 2, 3), "complete", stats)
    store.close()
    assistant = FakeAssistant()
    async with running(assistant, store=ConversationStore(path), continue_last=True) as on:
        await on.until(lambda: on.answers == ["text"])
        await on.ask("next")
        await on.answered()
        assert "text" in asked_text(assistant, 0)


async def test_a_question_that_died_with_its_process_comes_back_into_the_prompt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"
    store = ConversationStore(path)
    chat = store.create("t")
    store.begin_turn(chat.id, None, Message("user", "unanswered"))
    store.close()
    async with running(store=ConversationStore(path), continue_last=True) as on:
        await on.until(lambda: on.prompt.text == "unanswered")
        assert on.questions == []


async def test_an_answer_that_died_with_its_process_is_shown_as_interrupted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"
    store = ConversationStore(path)
    chat = store.create("t")
    _, answered = store.begin_turn(chat.id, None, Message("user", "q"))
    store.update_message(answered, "half", (104,), "partial", None)
    store.close()
    async with running(store=ConversationStore(path), continue_last=True) as on:
        await on.until(lambda: on.answers == ["half"])
        assert "interrupted" in on.footers[0]


async def test_new_chat_leaves_the_old_one_in_the_list_and_resume_opens_it() -> None:
    store = ConversationStore.in_memory()
    async with running(store=store) as on:
        await on.ask("alpha question")
        await on.answered()
        await on.press("ctrl+n")
        await on.until(lambda: on.questions == [])
        await on.ask("beta question")
        await on.answered()
        assert [(c.title, c.model) for c in store.list()] == [
            ("beta question", "fake"),
            ("alpha question", "fake"),
        ]
        await on.type("/resume")
        await on.press("enter")
        await on.until(lambda: "2 conversations" in on.screen_text())
        await on.type("alph")
        await on.pilot.pause()
        await on.press("enter")
        await on.until(lambda: on.questions == ["alpha question"])
        await on.ask("again")
        await on.answered()
        assert [m.message.text for m in on.chat.chat.path if m.message.role == "user"] == [
            "alpha question",
            "again",
        ]


async def test_continue_without_a_conversation_says_so() -> None:
    async with running(continue_last=True) as on:
        await on.until(lambda: any("no conversation" in t for t in on.toasts))


async def test_a_database_that_cannot_be_used_is_told_and_the_chat_works() -> None:
    problem = StoreError("c.db is damaged.", "Move it away.")
    async with running(store=ConversationStore.in_memory(problem)) as on:
        await on.until(lambda: on.notices)
        assert "not kept: c.db is damaged." in on.notices[0] and "Move it away" in on.notices[0]
        await on.ask("q")
        await on.answered()
        assert len(on.answers) == 1


async def test_a_database_that_fails_at_work_moves_the_chat_to_memory(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "c.db")
    assistant = FakeAssistant()
    async with running(assistant, store=store) as on:
        await on.ask("one")
        await on.answered()
        store.close()
        await on.ask("two")
        await on.answered()
        await on.until(lambda: on.notices)
        assert "not kept" in on.notices[0]
        await on.ask("three")
        await on.answered()
        assert asked_text(assistant, 2).count("one") == 1 and "two" in asked_text(assistant, 2)


# Layout


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (120, 40), (40, 12)])
async def test_the_panel_stands_beside_wide_chats_and_is_a_strip_in_narrow_ones(
    size: tuple[int, int],
) -> None:
    async with running(size=size) as on:
        panel, strip = on.app.query_one("#panel"), on.app.query_one("#strip")
        is_wide = size[0] >= 110
        assert (panel.display, strip.display) == (is_wide, not is_wide)
        await on.ask("hi")
        await on.answered()
        resident = on.app._slot.assistant.stats.resident_tokens  # type: ignore[union-attr]
        await on.until(lambda: f"{resident} / 4,096" in on.screen_text().replace("/4", " / 4"))
        await on.press("f2")
        await on.until(lambda: (panel.display, strip.display) == (not is_wide, is_wide))
        await on.press("f2")
        await on.until(lambda: (panel.display, strip.display) == (is_wide, not is_wide))


async def test_the_panel_shows_a_prefill_at_work() -> None:
    assistant = FakeAssistant(chunk_tokens=16)
    assistant.engine.hold()
    async with running(assistant, size=(140, 45)) as on:
        await on.ask("x" * 100)
        assistant.engine.release(3)
        await on.until(lambda: "prefill 32/103 (31%)" in on.screen_text().replace("\n", " "))
        await on.until(lambda: "prefilling for you" in on.screen_text())
        assistant.engine.release()
        await on.answered()
        await on.until(lambda: "idle" in on.screen_text())
        await on.until(lambda: not on.app._poll._active.is_set(), "the meters stand still")  # type: ignore[union-attr]


async def test_scrolling_up_lets_go_of_the_end_and_coming_back_follows_again() -> None:
    assistant = FakeAssistant("\n\n".join(f"line {i}" for i in range(60)))
    assistant.engine.hold()
    async with running(assistant) as on:
        await on.ask("go")
        await on.until(lambda: assistant.engine.jobs)
        assistant.engine.release(3 + 300)
        await on.until(lambda: "line 25" in on.screen_text())
        await on.press("pageup")
        await on.until(lambda: not on.transcript.is_at_end)
        at = on.transcript.scroll_y
        await on.until(lambda: "more below" in str(on.prompt.border_title))
        assistant.engine.release()
        await on.answered()
        assert on.transcript.scroll_y == at
        await on.press("ctrl+end")
        await on.until(lambda: "line 59" in on.screen_text() and on.transcript.is_at_end)


async def test_a_resized_terminal_still_follows_the_end() -> None:
    assistant = FakeAssistant("\n\n".join(f"line {i}" for i in range(30)))
    async with running(assistant, size=(120, 40)) as on:
        await on.press("pageup")  # nothing to scroll: it must not let go of the end
        await on.ask("one")
        await on.answered()
        for size in ((80, 24), (60, 12), (140, 50)):
            await on.pilot.resize_terminal(*size)
            await on.until(lambda: "line 29" in on.screen_text())
            assert on.transcript.is_at_end
        await on.pilot.resize_terminal(80, 24)
        strip = f"{assistant.stats.resident_tokens}/4,096 resident · cold"
        await on.until(lambda: strip in on.screen_text(), "the strip is as wide as the terminal")
        await on.ask("two")
        await on.answered()
        await on.until(lambda: "line 29" in on.screen_text() and "cached" in on.screen_text())


async def test_typing_while_the_transcript_has_the_focus_goes_to_the_prompt() -> None:
    async with running() as on:
        await on.press("tab")
        assert on.app.focused is on.transcript
        await on.type("xy")
        await on.until(lambda: on.prompt.text == "xy" and on.app.focused is on.prompt)


# Text that nobody should trust

EVIL = (
    "[bold]x[/] [/nope] [@click=app.quit]q[/] \x1b[2J\x1b]0;t\x07 `[/c]`\n\n"
    "| [/a] |\n|--|\n| [/b] |\n"
)


async def test_text_is_never_markup_nor_a_terminal_command() -> None:
    assistant = FakeAssistant(EVIL)
    store = ConversationStore.in_memory()
    async with running(assistant, store=store, size=(120, 40)) as on:
        await on.ask(EVIL)
        await on.answered()
        text = on.screen_text()
        assert "[bold]x[/] [/nope]" in text and "\x1b" not in text and "\x07" not in text
        assert on.answers == [EVIL]  # what is kept is what was written
        assert "[/a]" in text and "[/b]" in text and "[/c]" in text
        await on.press("ctrl+r")
        await on.until(lambda: "1 conversation" in on.screen_text())
        await on.press("escape")
        assert on.app.is_running


async def test_a_paste_is_cleaned_and_a_huge_one_arrives_whole() -> None:
    async with running() as on:
        on.prompt.post_message(events.Paste("a\x1b[31mred\x1b[0m\x07b\r\nc"))
        await on.until(lambda: on.prompt.text == "ared␇b\nc")
        await on.press("ctrl+a", "ctrl+end")
        on.prompt.take()
        huge = "\n".join(f"line {i} of a long paste" for i in range(5000))
        on.prompt.post_message(events.Paste(huge))
        await on.until(lambda: on.prompt.text == "[pasted 5,000 lines]")
        await on.press("!")
        await on.until(lambda: on.chat.draft.text == huge + "!")


async def test_a_link_is_shown_and_copied_and_never_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []
    assistant = FakeAssistant("see [this](https://example.org/x?a=%22%1b[2J) now")
    async with running(assistant) as on:
        monkeypatch.setattr(on.app, "open_url", lambda url, **_: opened.append(url))
        await on.ask("q")
        await on.answered()
        await on.pilot.click("AnswerMarkdown", offset=(6, 0))
        await on.until(lambda: any("https://example.org/x" in t for t in on.toasts))
        assert opened == [] and "\x1b" not in "".join(on.toasts) + on.app.clipboard


# Commands


async def test_commands_complete_and_run_from_the_prompt() -> None:
    async with running() as on:
        await on.type("/he")
        await on.until(lambda: on.app.query_one("#completions").display)
        await on.press("enter")
        await on.until(lambda: "Commands" in on.screen_text())
        assert on.prompt.text == ""
        await on.press("escape")
        await on.type("/sys")
        await on.until(lambda: on.app.query_one("#completions").display)
        await on.press("tab")
        await on.until(lambda: on.prompt.text == "/system ")
        await on.type("Be brief.")
        await on.press("enter")
        await on.until(lambda: on.notices)
        assert on.chat.chat.system == "Be brief."


async def test_an_unknown_command_is_refused_and_a_path_is_sent() -> None:
    assistant = FakeAssistant()
    async with running(assistant) as on:
        await on.type("/nonsense[bold] x")
        await on.press("enter")
        await on.until(lambda: "no command /nonsense[bold]" in on.screen_text())
        assert on.prompt.text == "/nonsense[bold] x"
        on.prompt.take()
        await on.ask("/etc/hosts is a file")
        await on.answered()
        assert "/etc/hosts is a file" in asked_text(assistant, 0)


async def test_the_system_prompt_is_sent_and_its_cost_is_told() -> None:
    assistant = FakeAssistant("four")
    async with running(assistant, system="Old.") as on:
        await on.ask("question")
        await on.answered()
        resident = assistant.stats.resident_tokens
        on.prompt.put("/system New one.")
        await on.pilot.pause()
        await on.press("enter")
        await on.until(lambda: on.notices)
        # The role marker of the system turn is all that both timelines share.
        assert f"of {resident} resident tokens the next question keeps 1 and drops" in on.notices[0]
        assert f"drops {resident - 1}" in on.notices[0]
        await on.ask("next")
        await on.answered()
        assert asked_text(assistant, 1).startswith("New one.question")
        assert assistant.stats.usage.cached_tokens == 1


async def test_the_cost_of_a_system_prompt_is_against_what_was_sent() -> None:
    assistant = FakeAssistant("four")
    async with running(assistant, system="Old.") as on:
        await on.ask("question")
        await on.answered()
        resident = assistant.stats.resident_tokens
        told: list[str] = []
        for system in ("New one.", "New two.", "Old."):
            on.prompt.put(f"/system {system}")
            await on.pilot.pause()
            await on.press("enter")
            await on.until(lambda: len(on.notices) > len(told))
            told.append(on.notices[-1])
        assert "keeps 1 and drops" in told[1]  # New one. was never sent
        assert f"keeps {resident} and drops 0" in told[2]


async def test_the_server_is_a_switch_and_a_busy_port_is_told() -> None:
    servers: list[FakeServer] = []
    error: list[Exception] = []

    def start(assistant: Any) -> FakeServer:
        if error:
            raise error[0]
        servers.append(FakeServer())
        return servers[-1]

    async with running(start_server=start, size=(140, 45)) as on:
        await on.press("f4")
        await on.until(lambda: "http://127.0.0.1:8484" in on.screen_text())
        await on.type("/serve")
        await on.press("enter")
        await on.until(lambda: servers[0].is_stopped)
        await on.until(lambda: "off, F4 turns it on" in on.screen_text())
        error.append(UsageError("Port 8484 is in use.", "Choose another one with --port."))
        await on.press("f4")
        await on.until(lambda: on.notices)
        assert on.notices == ["error  Port 8484 is in use.\nChoose another one with --port."]


async def test_a_server_that_is_open_to_the_network_is_a_warning() -> None:
    warning = "The server on 0.0.0.0 can be reached from the network and needs no key."
    async with running(start_server=lambda assistant: FakeServer(warning)) as on:
        await on.press("f4")
        await on.until(lambda: warning in on.toasts)


async def test_a_command_that_breaks_is_told_and_the_app_lives_on() -> None:
    def start(assistant: Any) -> FakeServer:
        raise RuntimeError("[/odd] thing")

    async with running(start_server=start) as on:
        await on.press("f4")
        await on.until(lambda: on.notices)
        assert "That failed: [/odd] thing." in on.notices[0] and on.app.is_running


async def test_copy_takes_the_last_answer_and_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds4tui.tui.clipboard.clipboard_commands", lambda *_: ())
    async with running(FakeAssistant("**raw** text")) as on:
        await on.ask("q")
        await on.answered()
        await on.type("/copy")
        await on.press("enter")
        await on.until(lambda: len(on.app.screen_stack) == 2)
        await on.press("enter")
        await on.until(lambda: any("was sent to the terminal" in t for t in on.toasts))
        assert on.app.clipboard == "**raw** text"


async def test_up_in_an_empty_prompt_brings_back_what_was_sent() -> None:
    async with running() as on:
        for question in ("one", "two"):
            await on.ask(question)
            await on.answered()
        await on.press("up")
        assert on.prompt.text == "two"
        await on.press("up")
        assert on.prompt.text == "one"
        await on.press("down", "down")
        assert on.prompt.text == ""


async def test_a_theme_is_chosen_and_kept(own_folders: Path) -> None:
    async with running(theme="no such theme") as on:
        assert on.app.theme == "textual-dark"
        on.app.theme = "nord"
        await on.until(lambda: (own_folders / "state" / "state.toml").exists())
        assert 'theme = "nord"' in (own_folders / "state" / "state.toml").read_text()
    async with running() as on:
        assert on.app.theme == "nord"


# Leaving


async def test_quitting_while_busy_keeps_the_partial_text_and_closes_the_engine(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"
    assistant = FakeAssistant("abcdef")
    assistant.engine.hold()
    async with running(assistant, store=ConversationStore(path)) as on:
        await on.ask("go")
        await on.until(lambda: assistant.engine.jobs)
        await on.type("a draft")
        assistant.engine.release(3 + 2)
        await on.until(lambda: on.answers == ["ab"])
        await on.press("ctrl+q")
        await on.until(lambda: not on.app.is_running, "the app ended")
        assert assistant.stats.state == "closed"
    store = ConversationStore(path)
    latest = store.latest()
    assert latest is not None
    last = store.load(latest.id).path[-1]
    assert (last.message.text, last.status) == ("ab", "cancelled")
    async with running(store=store, continue_last=True) as on:
        await on.until(lambda: on.prompt.text == "a draft")


async def test_an_app_that_ends_by_an_error_closes_the_engine() -> None:
    assistant = FakeAssistant()
    with pytest.raises(ZeroDivisionError):
        async with running(assistant) as on:
            on.app.call_later(lambda: 1 // 0)
            await on.until(lambda: not on.app.is_running)
            assert assistant.stats.state == "closed"


async def test_one_ctrl_c_hints_two_quit() -> None:
    async with running() as on:
        await on.type("draft")
        await on.press("ctrl+c")
        await on.until(lambda: any("again quits" in t for t in on.toasts))
        assert on.app.is_running and on.prompt.text == "draft"
        await on.press("ctrl+c")
        await on.until(lambda: not on.app.is_running)


async def test_ctrl_c_copies_a_selection_and_does_not_quit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ds4tui.tui.clipboard.clipboard_commands", lambda *_: ())
    async with running() as on:
        await on.type("some text")
        await on.press("shift+home", "ctrl+c", "ctrl+c")
        await on.until(lambda: on.app.clipboard == "some text")
        assert on.app.is_running and on.prompt.text == "some text"


async def test_quitting_while_a_model_opens_does_not_wait_and_closes_it_later() -> None:
    go = threading.Event()
    assistant = FakeAssistant()

    def slow(name: str, progress: Any) -> FakeAssistant:
        assert go.wait(20)
        return assistant

    async with running(assistant, open_model=slow, is_open=False) as on:
        await on.press("ctrl+q")
        await on.until(lambda: not on.app.is_running)
        go.set()
        await on.until(lambda: assistant.stats.state == "closed")
