"""One question, one answer, through a pipe and on a terminal; the engine is a fake."""

import io
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ds4tui.config import Settings
from ds4tui.errors import EngineError, ModelNotFound, UsageError
from ds4tui.events import PrefillProgress, TokenText
from ds4tui.oneshot import MAX_STDIN_BYTES, Screen, one_shot, prefill_words, question
from tests.chat.sights import FakeVision
from tests.engine.vision.pictures import encoded, picture
from tests.fakes import FakeAssistant

REPLY = "Grüße, wörld.\nTwo lines."


def ask(
    assistant: FakeAssistant,
    prompt: str = "hi",
    as_json: bool = False,
    system: str = "",
    images: Sequence[Path] = (),
) -> int:
    settings = replace(Settings(), system=system)
    files = [str(path) for path in images]
    return one_shot(settings, prompt, as_json, lambda *given: assistant, images=files)


def test_the_answer_is_all_that_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assistant = FakeAssistant(REPLY)
    assert ask(assistant) == 0
    assert capsys.readouterr() == (REPLY + "\n", "")
    assert assistant.stats.state == "closed"


def test_an_answer_that_ends_its_line_gets_no_second_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ask(FakeAssistant("one\n")) == 0
    assert capsys.readouterr().out == "one\n"


def test_reasoning_is_no_part_of_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        assistant = FakeAssistant("<think>Hm.</think>Yes.")
        assistant.format.template = "fake <think>"
        assert ask(assistant, as_json=as_json) == 0
        out, err = capsys.readouterr()
        assert err == "" and (as_json or out == "Yes.\n")
    thoughts = [
        e["text"] for e in map(json.loads, out.splitlines()) if e["type"] == "ReasoningText"
    ]
    assert "".join(thoughts) == "Hm."


def test_json_is_one_event_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(FakeAssistant(REPLY), as_json=True) == 0
    out, err = capsys.readouterr()
    events = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert [events[0]["type"], events[1]["type"]] == ["Queued", "Decision"]
    assert "".join(e["text"] for e in events if e["type"] == "TokenText") == REPLY
    assert events[-1]["type"] == "Finished" and events[-1]["stop_reason"] == "stop"
    assert err == ""


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(sys.stdout, sys.stderr, as_json=True)
    screen.show(PrefillProgress("1", 1, 2, 0, 0.0, float("inf")))
    line = capsys.readouterr().out
    assert json.loads(line, parse_constant=pytest.fail)["eta_s"] is None


def test_the_system_prompt_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    plain, told = FakeAssistant("x"), FakeAssistant("x")
    ask(plain)
    ask(told, system="Be brief.")
    sent = [bytes(i for i in a.engine.requests[0].timeline.ids if i < 256) for a in (plain, told)]
    assert b"Be brief." not in sent[0]
    assert sent[1].index(b"Be brief.") < sent[1].index(b"hi")


def test_a_failed_job_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineError, match="it broke"):
        ask(FakeAssistant(REPLY, error=EngineError("it broke"), fail_after=4))
    assert capsys.readouterr().out == "Grü\n"
    assert ask(FakeAssistant(REPLY, error=ValueError("odd"), fail_after=0)) == 1
    assert capsys.readouterr().err == "ds4tui: odd\n"


def test_what_opening_raises_comes_through() -> None:
    def missing(name: str, settings: Settings, say: Callable[[str], None]) -> FakeAssistant:
        raise ModelNotFound("not here", "Run: ds4tui pull smollm2")

    with pytest.raises(ModelNotFound):
        one_shot(Settings(), "hi", False, missing)


# --- the question ---


def test_standard_input_is_added_to_the_prompt() -> None:
    assert question("Why?", io.BytesIO(b"a log\n")) == "Why?\n\na log\n"
    assert question("", io.BytesIO(b"a log\n")) == "a log\n"
    assert question("Why?", io.BytesIO(b"")) == "Why?"
    assert question("Why?", None) == "Why?"
    assert question("Why?", io.BytesIO(b"\xef\xbb\xbfwith a mark")) == "Why?\n\nwith a mark"


def test_nothing_to_ask() -> None:
    for piped in (None, io.BytesIO(b""), io.BytesIO(b" \n")):
        with pytest.raises(UsageError, match="nothing to ask"):
            question(" ", piped)


def test_bytes_that_are_no_utf8_are_replaced_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert question("?", io.BytesIO(b"caf\xe9!")) == "?\n\ncaf\N{REPLACEMENT CHARACTER}!"
    assert "not UTF-8 (byte 3)" in capsys.readouterr().err
    assert question(os.fsdecode(b"caf\xe9"), None) == "caf\N{REPLACEMENT CHARACTER}"


def test_too_much_is_refused() -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            assert size == MAX_STDIN_BYTES + 1
            return bytes(size)

    with pytest.raises(UsageError, match="more than 64 MiB"):
        question("?", Endless())  # type: ignore[arg-type]


# --- a real process ---

PROGRAM = """
import sys
from ds4tui import cli, opening
from tests.chat.sights import FakeVision
from tests.engine.vision.pictures import encoded, picture
from tests.fakes import FakeAssistant

class Telling(FakeAssistant):
    def chat(self, messages, sampling, listener):
        job = super().chat(messages, sampling, listener)
        real = job.cancel
        def cancel():
            print("cancelled", file=sys.stderr, flush=True)
            real()
        job.cancel = cancel
        return job

opening.open_assistant = lambda name, settings, say: Telling("line\\n" * 400, token_delay_s=0.005)
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def program() -> list[str]:
    return [sys.executable, "-c", PROGRAM]


def test_ctrl_c_cancels_keeps_what_was_printed_and_exits_130(program: list[str]) -> None:
    with subprocess.Popen(
        [*program, "-p", "hi"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "line\n"
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.stderr.read() == "cancelled\n"
        assert process.wait(30) == 130
    assert len(rest) < len("line\n") * 399
    assert ("line\n" + rest).endswith("\n")


def test_a_reader_that_hangs_up_cancels_quietly(program: list[str]) -> None:
    with subprocess.Popen(
        [*program, "-p", "hi"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr.read() == "cancelled\n"
        assert process.wait(30) == 0


def test_a_pipe_holds_no_terminal_sequences(program: list[str]) -> None:
    ran = subprocess.run(
        [*program, "-p", "hi", "--max-tokens", "8"], input=b"piped\n", capture_output=True
    )
    assert ran.returncode == 0
    assert (ran.stdout, ran.stderr) == (b"line\nlin\n", b"")


def test_on_a_terminal_progress_is_shown_and_wiped(program: list[str]) -> None:
    out, code = on_terminal([*program, "-p", "hi " * 300, "--max-tokens", "8"])
    assert code == 0
    assert b"prefill 64/" in out
    # The last thing drawn over the progress is the answer.
    assert out.replace(b"\r\n", b"\n").endswith(b"\r\x1b[Kline\nlin\n")


def on_terminal(command: list[str]) -> tuple[bytes, int]:
    """What a command draws on a terminal of its own, and its exit code."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    drawn = b""
    while select.select([leader], [], [], 30)[0]:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # how Linux says that the other end is closed; macOS gives nothing
            chunk = b""
        if not chunk:
            break
        drawn += chunk
    os.close(leader)
    return drawn, process.wait(30)


def test_a_model_cannot_steer_the_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        screen = Screen(out, io.StringIO(), as_json=False)
        screen.show(TokenText("1", "a\x1b]0;title\x07\tb\x9b2J\n", ()))
    replaced = "\N{REPLACEMENT CHARACTER}"
    assert terminal.getvalue() == f"a{replaced}]0;title{replaced}\tb{replaced}2J\n"
    assert pipe.getvalue() == "a\x1b]0;title\x07\tb\x9b2J\n"


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_fault(program: list[str], redirection: str) -> None:
    command = shlex.join([*program, "-p", "hi", "--max-tokens", "8"]) + " " + redirection
    ran = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout == (b"line\nlin\n" if redirection == "2>&-" else b"")


def test_a_character_that_cannot_be_shown_is_replaced() -> None:
    program = PROGRAM.replace('"line\\n" * 400', '"\\N{SNOWMAN}!"')
    ran = subprocess.run(
        [sys.executable, "-c", program, "-p", "hi"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"?!\n", b"")


def test_without_a_terminal_there_is_a_sentence_and_no_app(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "ds4tui"], input="hello", capture_output=True, text=True
    )
    assert ran.returncode == 2 and ran.stdout == ""
    assert "needs a terminal" in ran.stderr and "ds4tui -p TEXT" in ran.stderr


def test_prefill_words() -> None:
    shown = PrefillProgress("1", 3072, 8214, 2048, 512.3, 10.04)
    assert prefill_words(shown) == ("prefill 3,072/8,214 (37%) 512 tok/s ETA 10s, 2,048 from cache")
    assert prefill_words(PrefillProgress("1", 0, 9, 0, 0.0, float("inf"))) == "prefill 0/9 (0%)"


def test_no_thread_outlives_an_answer() -> None:
    before = threading.active_count()
    ask(FakeAssistant("x"))
    assert threading.active_count() == before


# --- pictures -----------------------------------------------------------------


def picture_file(path: Path, width: int = 8) -> Path:
    path.write_bytes(encoded(picture(width, 8)))
    return path


def test_a_question_is_about_pictures_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vision = FakeVision(vectors=5)
    assistant = FakeAssistant("A cat.", vision=vision)
    files = [picture_file(tmp_path / name, n) for n, name in enumerate(("b.png", "a.png"), 8)]
    assert ask(assistant, "What is it?", images=files) == 0
    assert capsys.readouterr() == ("A cat.\n", "")
    assert vision.decoded == [file.read_bytes() for file in files]
    (request,) = assistant.engine.requests
    seen = [vision(file.read_bytes()).fingerprint for file in files]
    assert [span.fingerprint for span in request.timeline.spans] == seen
    assert {p.fingerprint for p in request.pictures} == set(seen)


def test_pictures_alone_are_a_question(tmp_path: Path) -> None:
    assistant = FakeAssistant("A cat.", vision=FakeVision())
    assert ask(assistant, "", images=[picture_file(tmp_path / "a.png")]) == 0


def test_a_file_is_found_whatever_spaces_are_in_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture_file(tmp_path / "Shot at 9.41.07\u202fAM.png")
    named = tmp_path / "Shot at 9.41.07 AM.png"
    assert ask(FakeAssistant("A cat.", vision=FakeVision()), images=[named]) == 0
    assert capsys.readouterr() == ("A cat.\n", "")


def test_pictures_that_the_model_is_not_shown_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assistant = FakeAssistant("A cat.", vision=FakeVision(), images_kept=1)
    files = [picture_file(tmp_path / name, n) for n, name in enumerate(("a.png", "b.png"), 8)]
    assert ask(assistant, images=files) == 0
    told = "ds4tui: 1 earlier picture is not shown to the model (images_kept)\n"
    assert capsys.readouterr() == ("A cat.\n", told)


def test_what_is_no_picture_is_named_before_a_model_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no picture")
    with pytest.raises(UsageError, match=r"^a\.png is no picture"):
        one_shot(Settings(), "hi", False, pytest.fail, images=[str(tmp_path / "a.png")])
    with pytest.raises(UsageError, match=r"There is no file .*none\.png"):
        one_shot(Settings(), "hi", False, pytest.fail, images=[str(tmp_path / "none.png")])


def test_the_first_of_several_frames_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [picture(8, 8), picture(8, 8).rotate(90)]
    (tmp_path / "a.gif").write_bytes(
        encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    )
    assert ask(FakeAssistant("A cat.", vision=FakeVision()), images=[tmp_path / "a.gif"]) == 0
    assert capsys.readouterr() == ("A cat.\n", "ds4tui: a.gif: first of 2 frames\n")


def test_a_model_that_sees_nothing_says_so(tmp_path: Path) -> None:
    assistant = FakeAssistant("A cat.", vision_refusal="fake sees no pictures: load another.")
    with pytest.raises(UsageError, match="fake sees no pictures: load another"):
        ask(assistant, images=[picture_file(tmp_path / "a.png")])
    assert assistant.engine.requests == [] and assistant.stats.state == "closed"
