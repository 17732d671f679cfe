"""A crash tells where and what, and nothing of what was written; the draft is there afterwards."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui import crash
from ds4tui.chat.store import ConversationStore
from ds4tui.config import log_path
from ds4tui.crash import (
    FRAMES_MAX,
    REPORTS_KEPT,
    discreet,
    message,
    note_model,
    reporting_threads,
    traceback_text,
    write_report,
)
from ds4tui.errors import EngineClosed, OutOfMemory, UsageError
from ds4tui.logs import logging_set_up
from tests.engine.test_worker import Bench
from tests.tui.test_real_terminal import LEAVE_ALTERNATE_SCREEN, SHOW_CURSOR, Terminal

SECRET = "xyzzy-3141"


def raised(error: BaseException) -> BaseException:
    prompt = f"my {SECRET}"  # a local variable, as a prompt would be
    try:
        raise error
    except BaseException as exc:
        assert prompt
        return exc


def with_cause() -> BaseException:
    try:
        try:
            {}[SECRET]
        except KeyError as exc:
            raise ValueError(f"cannot use {SECRET}") from exc
    except ValueError as exc:
        return exc


# Words


def test_a_traceback_has_places_code_and_types_only() -> None:
    text = traceback_text(with_cause())
    assert "in with_cause" in text and "raise ValueError(f" in text
    assert "KeyError\n\nwas the cause of:\n\nTraceback" in text and text.endswith("ValueError")
    assert SECRET not in text and str(Path(__file__).parent) not in text


def test_groups_contexts_and_loops_of_errors() -> None:
    inner = raised(KeyError(SECRET))
    assert isinstance(inner, KeyError)
    group = raised(ExceptionGroup(SECRET, [inner, ValueError(SECRET)]))
    group.__cause__ = inner
    inner.__cause__ = group
    text = traceback_text(group)
    assert text.count("KeyError") == 1 and "ValueError" in text and SECRET not in text


def test_a_deep_recursion_is_cut_in_the_middle() -> None:
    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        raise ValueError(SECRET)

    try:
        deeper(200)
    except ValueError as exc:
        text = traceback_text(exc)
    assert text.count("in deeper") == FRAMES_MAX - 1 and "... 142 more" in text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError(SECRET), "ValueError"),
        (UsageError(f"There is no file {SECRET}."), "UsageError"),
        (OSError(36, "File name too long", SECRET), "OSError: File name too long"),
        (OSError(SECRET), "OSError"),
        (OutOfMemory("The prompt", 2**20, 0), "The prompt needs 1 MiB, 0 MiB are available."),
    ],
)
def test_one_line_about_an_error(error: Exception, words: str) -> None:
    assert discreet(error).startswith(words) and SECRET not in discreet(error)


def test_words_are_there_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS4TUI_REPORT_WORDS", "1")
    path = write_report(with_cause(), "the test")
    assert path is not None and f"cannot use {SECRET}" in path.read_text()
    assert "what exceptions say is in it" in message(ValueError(), "the test", path)


# Reports


def test_a_report_names_versions_model_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "_model", "")
    note_model("smollm2")
    path = write_report(with_cause(), "the test")
    assert path is not None and path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    for part in ("ds4tui 0.", "Python: 3.", "textual 8.", "model: smollm2", "with_cause"):
        assert part in text
    assert SECRET not in text and "DS4TUI_REPORT_WORDS=1" in text
    told = message(ValueError(SECRET), "the test", path)
    assert str(path) in told and "(ValueError)" in told and SECRET not in told
    assert "\n" not in told


def test_old_reports_go_and_an_unwritable_folder_is_no_crash_of_its_own() -> None:
    folder = log_path().parent / "crashes"
    folder.mkdir(parents=True)
    for number in range(REPORTS_KEPT + 5):
        (folder / f"crash-20000101-{number:06}-1-1.txt").write_text("old")
    newest = write_report(ValueError(), "the test")
    assert len(list(folder.iterdir())) == REPORTS_KEPT and newest in folder.iterdir()
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
    folder.write_text("a file")
    assert write_report(ValueError(), "the test") is None
    assert "No report" in message(ValueError(), "the test", None)


# The log


def test_the_log_holds_no_words_of_exceptions() -> None:
    log = logging.getLogger("ds4tui.test")
    error = with_cause()
    with logging_set_up("debug"):
        log.warning("it failed: %s", error)
        log.error("it failed again: %(why)s", {"why": error})
        log.error("and here", exc_info=error)
        logging.getLogger("asyncio").error(f"exception in task {SECRET}", exc_info=error)
    text = log_path().read_text()
    assert "it failed: ValueError\n" in text and "raise ValueError(f" in text
    assert "a task or callback failed" in text
    assert SECRET not in text


def test_a_thread_that_ends_by_an_error_is_reported_and_says_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise ValueError(SECRET)

    with logging_set_up("info"), reporting_threads():
        thread = threading.Thread(target=fail, name="ds4tui-test")
        thread.start()
        thread.join()
    (report,) = (log_path().parent / "crashes").iterdir()
    assert "the thread ds4tui-test ended" in report.read_text()
    assert "in fail" in log_path().read_text() and SECRET not in log_path().read_text()
    assert capsys.readouterr() == ("", "")


def test_a_task_that_nobody_awaits_is_logged_without_words() -> None:
    async def fail() -> None:
        raise ValueError(SECRET)

    async def forget() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task

    with logging_set_up("info"):
        asyncio.run(forget())
    assert "in fail" in log_path().read_text() and SECRET not in log_path().read_text()


def test_an_engine_that_stops_writes_a_report_and_says_why_to_all_who_ask() -> None:
    bench = Bench()

    def fail() -> None:
        raise ValueError(SECRET)

    with logging_set_up("info"):
        bench.engine._calls.put(fail)
        bench.engine._thread.join(20)
    with pytest.raises(EngineClosed, match="The engine stopped: ValueError") as told:
        bench.submit()
    (report,) = (log_path().parent / "crashes").iterdir()
    assert str(report) in told.value.hint and bench.engine.stats.state == "closed"
    assert "the engine ended" in report.read_text() and "in _obey_calls" in report.read_text()
    assert SECRET not in report.read_text() + log_path().read_text()


# The app


PROGRAM = """
import asyncio, sys, threading
from pathlib import Path
import ds4tui.terminal
from ds4tui.app import Ds4App
from ds4tui.cli import main
from ds4tui.plain.chat import Ports
from tests.fakes import FakeAssistant

assistant = FakeAssistant("word " * 200, token_delay_s=float(sys.argv[2]))
unused = lambda *arguments: None
ports = Ports(lambda name, progress: assistant, unused, unused, unused)
ds4tui.terminal.ports_of = lambda settings, agents: ports

def crash(app):
    draft = app.chat_view.draft.text  # as a traceback would show it
    raise ValueError(f"words-{draft[-10:]}-of-an-error")

async def crash_later(app):
    crash(app)

Ds4App.switch_panel = crash  # on the loop
Ds4App.switch_disk = lambda app: app.set_timer(0.01, lambda: crash(app))
Ds4App.switch_agents = lambda app: app.run_worker(crash_later(app)) and None
sys.exit(main([]))
"""
KEYS = {"command": b"\x1bOQ", "timer": b"\x1b[15~", "worker": b"\x1b[17~"}  # F2, F5, F6


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path / "unused.db", 0.02, PROGRAM)
    yield opened
    if opened.process.poll() is None:
        opened.process.kill()
        opened.process.wait()
    opened.close()


@pytest.mark.parametrize("where", KEYS)
def test_a_crash_of_the_app_keeps_everything_and_tells_no_words(
    crashing: Terminal, where: str, tmp_path: Path
) -> None:
    on = crashing
    on.until(b"fake")
    on.type(b"a question\r")
    on.until(b"word word")
    on.type(f"a draft with {SECRET}".encode())
    on.until(SECRET.encode())
    on.type(KEYS[where])
    assert on.ended() == 1
    told = on.seen[on.seen.rindex(LEAVE_ALTERNATE_SCREEN) :]
    assert SHOW_CURSOR in on.seen and SECRET.encode() not in told
    assert b"of-an-error" not in on.seen and b"Traceback" not in on.seen
    assert told.count(b"ended by an error that nobody expected (") == 1
    (report,) = (tmp_path / "state" / "crashes").iterdir()
    assert str(report).encode() in told
    assert "in crash" in report.read_text() and "model: " in report.read_text()
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.name.startswith("conversations.sqlite3"):
            assert SECRET.encode() not in path.read_bytes(), path
            assert b"of-an-error" not in path.read_bytes(), path
    store = ConversationStore(tmp_path / "data" / "conversations.sqlite3")
    latest = store.latest()
    assert latest is not None
    asked, answered = store.load(latest.id).path
    assert asked.message.text == "a question" and answered.message.text.startswith("word")
    store.close()


def test_the_draft_of_a_crash_stands_in_the_prompt_afterwards(
    crashing: Terminal, tmp_path: Path
) -> None:
    crashing.until(b"fake")
    crashing.type(f"a draft with {SECRET}".encode())
    crashing.until(SECRET.encode())
    crashing.type(KEYS["command"])
    assert crashing.ended() == 1
    again = Terminal(tmp_path / "unused.db", 0.0, PROGRAM)
    try:
        again.until(SECRET.encode())
        again.type(b"\x11")
        assert again.ended() == 0
    finally:
        again.close()


def test_no_other_command_tells_words_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ds4tui.cli import main

    def broken(*arguments: object) -> int:
        raise ValueError(SECRET)

    monkeypatch.delenv("DS4TUI_DEBUG")
    monkeypatch.setattr("ds4tui.terminal.open_plain", broken)
    assert main(["--plain"]) == 1
    out, err = capsys.readouterr()
    assert "(ValueError)" in err and SECRET not in out + err + log_path().read_text()
