"""`ds4tui -p TEXT [-i IMAGE]`: one question, the answer on standard output.

Standard output holds the answer and nothing else (with --json one event a line); what is said
about the work goes to standard error, progress only if that is a terminal. Ctrl-C cancels the
job and keeps what was printed; a reader that hangs up (`| head -1`) cancels it quietly.
"""

import json
import math
import queue
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from ds4tui.assistant import Assistant, Job
from ds4tui.chat.messages import Image, Message
from ds4tui.config import Settings
from ds4tui.errors import Ds4Error, UsageError
from ds4tui.events import (
    Decision,
    EncodingProgress,
    Event,
    Failed,
    Finished,
    PrefillProgress,
    ReasoningText,
    TokenText,
    as_json,
)
from ds4tui.interrupts import ending_on_interrupt
from ds4tui.library.screens import sample_named
from ds4tui.pictures.paths import named

# Far more than any context holds; whoever pipes more has piped the wrong thing.
MAX_STDIN_BYTES = 64 * 2**20

# A cancelled job ends after the chunk or token at work.
CANCEL_TIMEOUT_S = 30.0

# A model may print what a terminal would obey. ESC and C1 begin such sequences.
_TERMINAL_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in [*range(0x20), *range(0x7F, 0xA0)]
    if chr(code) not in "\n\t"
}

OpenAssistant = Callable[[str, Settings, Callable[[str], None]], Assistant]


def one_shot(
    settings: Settings,
    prompt: str,
    as_json: bool,
    open_assistant: OpenAssistant,
    stdin: IO[bytes] | None = None,
    images: Sequence[str] = (),
) -> int:
    """Ask, print, and return the exit code. `stdin` is None if a terminal is there. The question
    is about the pictures in the files `images`, which stand before it.

    Raises UsageError if there is nothing to ask or a file is no picture, and what opening the
    model raises, or asking one that sees none.
    """
    screen = Screen(sys.stdout, sys.stderr, as_json)
    pictures = tuple(read_image(Path(name), screen) for name in images)
    text = question(prompt, stdin, is_needed=not images)
    with ending_on_interrupt():
        assistant = open_assistant(settings.model, settings, screen.note)
    try:
        messages = [Message("user", text, images=pictures)]
        if settings.system:
            messages.insert(0, Message("system", settings.system))
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        sampling = settings.sampling(assistant.info.sampling).params()
        job = assistant.chat(messages, sampling, events.put)
        return _follow(job, events, screen)
    finally:
        screen.clear()
        assistant.close()


def read_image(path: Path, screen: "Screen") -> Image:
    """The file, or the sample of the package that `path` asks for. Raises UsageError with the
    file's name and the reason for what is no picture."""
    from ds4tui.pictures.reading import read_picture  # brings Pillow

    paths, _ = named(str(path))  # as for drops: other spaces than the file's are understood
    found = paths[0] if len(paths) == 1 else path
    picture = read_picture(sample_named(str(path)) or found)
    if picture.note:
        screen.warn(f"{picture.name}: {picture.note}")
    return Image(picture.data, 0, picture.name)


def question(prompt: str, stdin: IO[bytes] | None, is_needed: bool = True) -> str:
    """The prompt, and behind it what was piped in. Raises UsageError if both are empty and
    something is needed."""
    # The shell's bytes may be no UTF-8: Python then hands over lone surrogates.
    asked = prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    piped = _piped_text(stdin) if stdin is not None else ""
    text = "\n\n".join(part for part in (asked, piped) if part.strip())
    if not text and is_needed:
        raise UsageError("There is nothing to ask: -p and standard input are empty.")
    return text


def _piped_text(stdin: IO[bytes]) -> str:
    raw = stdin.read(MAX_STDIN_BYTES + 1)
    if len(raw) > MAX_STDIN_BYTES:
        raise UsageError(f"Standard input holds more than {MAX_STDIN_BYTES // 2**20} MiB.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        print(
            f"ds4tui: standard input is not UTF-8 (byte {exc.start}): "
            "what cannot be read is replaced by \N{REPLACEMENT CHARACTER}",
            file=sys.stderr,
        )
        return raw.decode("utf-8-sig", "replace")


@dataclass(slots=True)
class Screen:
    """Standard output and standard error, and what may be written to which."""

    out: TextIO
    err: TextIO
    as_json: bool
    _noted: bool = False
    _ends_line: bool = True

    def note(self, text: str) -> None:
        """A passing word about the work, only for a terminal."""
        if self.err.isatty():
            print(f"\r\x1b[K{text}", end="", file=self.err, flush=True)
            self._noted = True

    def warn(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        print(f"ds4tui: {text}", file=self.err)

    def clear(self) -> None:
        if self._noted:
            print("\r\x1b[K", end="", file=self.err, flush=True)
            self._noted = False

    def show(self, event: Event) -> None:
        """Raises BrokenPipeError when the reader is gone."""
        if self.as_json:
            self._write(json.dumps(_finite(as_json(event))) + "\n")
        elif isinstance(event, TokenText):
            self.clear()
            self._write(event.text)
        if isinstance(event, Decision) and event.images_left_out:
            self.warn(_left_out_words(event.images_left_out))
        if isinstance(event, PrefillProgress):
            self.note(prefill_words(event))
        elif isinstance(event, ReasoningText):
            self.note("thinking")
        elif isinstance(event, EncodingProgress):
            self.note(f"image {event.done} of {event.total}")

    def finish(self) -> None:
        """End the last line."""
        if not self._ends_line:
            self._write("\n")

    def _write(self, text: str) -> None:
        if not text:
            return
        if self.out.isatty():
            text = text.translate(_TERMINAL_CONTROLS)
        self.out.write(text)
        self.out.flush()
        self._ends_line = text.endswith("\n")


def prefill_words(progress: PrefillProgress) -> str:
    share = progress.done / progress.total if progress.total else 1.0
    text = f"prefill {progress.done:,}/{progress.total:,} ({share:.0%})"
    if math.isfinite(progress.eta_s) and progress.tokens_per_s > 0:
        text += f" {progress.tokens_per_s:,.0f} tok/s ETA {progress.eta_s:,.0f}s"
    return text + (f", {progress.cached:,} from cache" if progress.cached else "")


def _left_out_words(images: int) -> str:
    what = "1 earlier picture is" if images == 1 else f"{images:,} earlier pictures are"
    return f"{what} not shown to the model (images_kept)"


def _follow(job: Job, events: "queue.SimpleQueue[Event]", screen: Screen) -> int:
    try:
        return _print_until_done(events, screen)
    except KeyboardInterrupt:
        job.cancel()
        # A second Ctrl-C ends the waiting too.
        _print_until_done(events, screen)
        return 130
    except BrokenPipeError:
        job.cancel()
        job.wait(CANCEL_TIMEOUT_S)
        raise


def _print_until_done(events: "queue.SimpleQueue[Event]", screen: Screen) -> int:
    while True:
        event = events.get()
        screen.show(event)
        if isinstance(event, Finished | Failed):
            screen.finish()
            break
    if isinstance(event, Finished):
        return 0
    if isinstance(event.error, Ds4Error):
        raise event.error
    screen.clear()
    print(f"ds4tui: {event.error}", file=screen.err)
    return 1


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def piped_stdin() -> IO[bytes] | None:
    """Standard input if something is piped or redirected into it."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    return sys.stdin.buffer
