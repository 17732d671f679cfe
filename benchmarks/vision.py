"""Pictures: what encoding one takes beside llama.cpp, and what a conversation about them reuses.

    python benchmarks/vision.py [-m NAME] [--mmproj FILE] [--threads N] [--rounds N]
                                [--only encode,turns,session] [--json]

encode   one picture, ours and llama.cpp's mtmd on the same two files, in turns; in time and in CPU
         time, which other processes disturb least. llama.cpp's is what a prompt with the picture
         takes beyond a prompt of as many text tokens (an idefics3 picture of one tile is encoded
         twice there, as tile and as overview: half of that counts)
turns    time to the first token of a cold question about a picture, and of the next one about it
session  ten steps of a conversation with pictures: rows evaluated over rows needed

The defaults are SmolLM2 and the screen reader of tests/data, for which llama.cpp gets a copy of the
text file in which two tokens are renamed (tools/screen_reader/llamacpp.py).
"""

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import mlx.core as mx

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Image, Message
from ds4tui.config import Settings, load_settings
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.requests import SamplingParams
from ds4tui.engine.vision.pictures import opened
from ds4tui.engine.vision.preprocess import prepared
from ds4tui.engine.vision.projectors import Encoder
from ds4tui.events import Decision, Event, Finished, TokenText
from ds4tui.kernels import choice
from ds4tui.kernels.cpu.threads import limit_threads
from ds4tui.library.resolve import resolve_model
from ds4tui.opening import open_assistant
from tests.screens import WEIGHTS as MMPROJ
from tests.screens import screen
from tools.screen_reader.llamacpp import rename

SHOTS = ["sample.png", "settings.png", "sample_03.png"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
ANSWER_S = 600.0
CLOCK_HZ = os.sysconf("SC_CLK_TCK")

SERVER = """
import sys, xllamacpp
model, projector, threads = sys.argv[1:]
p = xllamacpp.CommonParams()
p.model.path, p.mmproj.path, p.port = model, projector, 0
p.n_ctx, p.n_parallel, p.cache_ram_mib, p.fit_params = 2048, 1, 0, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(threads)
p.mmproj_use_gpu, p.endpoint_props = False, True
server = xllamacpp.Server(p)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaCpp:
    """Its server with an mmproj, in a process of its own; a context manager."""

    def __init__(self, model: Path, mmproj: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(model), str(mmproj), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        said = next(line for line in self._process.stdout if line.startswith("listening "))
        self._address = said.split()[1]
        with urllib.request.urlopen(f"{self._address}/props") as reply:
            self._marker = json.load(reply)["media_marker"]  # another one each time

    def complete(self, prompt: Any) -> tuple[float, float]:
        """(seconds, CPU seconds) of one token after `prompt`, with nothing cached."""
        body = {"prompt": prompt, "n_predict": 1, "cache_prompt": False, "temperature": 0}
        request = urllib.request.Request(
            f"{self._address}/completion", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        start_s, cpu_s = time.perf_counter(), self._cpu_s()
        with urllib.request.urlopen(request, timeout=ANSWER_S) as reply:
            self.evaluated = json.load(reply)["timings"]["prompt_n"]
        return time.perf_counter() - start_s, self._cpu_s() - cpu_s

    def picture(self, data: bytes) -> tuple[float, float]:
        """Of one encoding."""
        self.complete([0])  # forgets what a slot may hold
        encoded = [base64.b64encode(data).decode()]
        whole = self.complete({"prompt_string": self._marker, "multimodal_data": encoded})
        text = self.complete([1000] * self.evaluated)
        return (whole[0] - text[0]) / 2, (whole[1] - text[1]) / 2

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_HZ

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()


def measured(work: Callable[[], object]) -> tuple[float, float]:
    start_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start_s, time.process_time() - cpu_s


def measure_encode(model: Path, mmproj: Path, threads: int, rounds: int) -> dict[str, float]:
    limit_threads(threads)
    with GGUFFile.open(mmproj) as file:
        encoder = Encoder(file, choice.current().path(False))
    data = screen(SHOTS[0]).read_bytes()
    one = prepared(opened(data), encoder.config)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        rename(model, Path(folder) / "text.gguf")
        with LlamaCpp(Path(folder) / "text.gguf", mmproj, threads) as peer:
            encoder(one), peer.picture(data)  # kernels compiled, files read
            for _ in range(rounds):
                ours.append(measured(lambda: encoder(one)))
                theirs.append(peer.picture(data))
    columns = [[statistics.median(c) for c in zip(*runs, strict=True)] for runs in (ours, theirs)]
    (our_s, our_cpu_s), (their_s, their_cpu_s) = columns
    return {
        "threads": threads, "ours_s": our_s, "llama_cpp_s": their_s, "ratio": their_s / our_s,
        "ours_cpu_s": our_cpu_s, "llama_cpp_cpu_s": their_cpu_s,
        "ratio_cpu": their_cpu_s / our_cpu_s,
    }  # fmt: skip


class Asked:
    """An opened model, and what its answers took."""

    def __init__(self, name: str, mmproj: Path, folder: Path, settings: Settings) -> None:
        changed = replace(settings, mmproj=str(mmproj), kv_disk="on", kv_disk_dir=folder)
        self.assistant: Assistant = open_assistant(name, changed, lambda words: None)

    def ask(self, *messages: Message) -> tuple[Message, Decision, Finished]:
        events: list[Event] = []
        assert self.assistant.chat(messages, GREEDY, events.append).wait(ANSWER_S)
        text = "".join(event.text for event in events if isinstance(event, TokenText))
        decision = next(event for event in events if isinstance(event, Decision))
        finished = next(event for event in events if isinstance(event, Finished))
        return Message("assistant", text), decision, finished


def shot(number: int, at: int = 0) -> Image:
    return Image(screen(SHOTS[number]).read_bytes(), at, SHOTS[number])


def asking(words: str, *numbers: int) -> Message:
    return Message("user", words, images=tuple(shot(number) for number in numbers))


def measure_turns(make: Callable[[], Asked], rounds: int) -> dict[str, float]:
    desk, rows = make(), []
    for i in range(rounds):
        first = asking(f"{i}. Which buttons are there?", i % len(SHOTS))
        reply, cold, one = desk.ask(Message("system", f"You read screens. {i}"), first)
        more = Message("user", "What is the title?")
        _, warm, two = desk.ask(Message("system", f"You read screens. {i}"), first, reply, more)
        rows.append((cold.evaluated, one.usage.ttft_ms, warm.evaluated, two.usage.ttft_ms,
                     one.usage.encode_ms, two.usage.encode_ms))  # fmt: skip
    desk.assistant.close()
    # Pictures that were seen in an earlier round are held: the first rounds are the cold ones.
    names = ("cold_rows", "cold_ttft_ms", "warm_rows", "warm_ttft_ms", "cold_encode_ms",
             "warm_encode_ms")  # fmt: skip
    columns = zip(*rows[: len(SHOTS)], strict=True)
    return dict(zip(names, map(statistics.median, columns), strict=True))


def measure_session(make: Callable[[], Asked]) -> dict[str, Any]:
    """Needed is what follows the longest beginning that was ever resident; one row at least."""
    desk, known, steps = make(), [], []

    def step(what: str, *messages: Message) -> Message:
        timeline = desk.assistant.render(messages)
        common = max((timeline.common_prefix(old) for old in known), default=0)
        needed = len(timeline) - min(common, timeline.snapped(len(timeline) - 1))
        reply, decision, finished = desk.ask(*messages)
        known.append(timeline.extended(finished.token_ids))
        steps.append({"what": what, "needed": needed, "evaluated": decision.evaluated})
        return reply

    a, b = asking("Which buttons are there?", 0), asking("Read the text in this screenshot.", 1)
    title = Message("user", "What is the title?")
    one = step("a picture", a)
    two = step("a question about it", a, one, title)
    three = step("another picture", a, one, title, two, b)
    colour = Message("user", "Which colour is the background?")
    step("a question", a, one, title, two, b, three, colour)
    step("the same again", a, one, title, two, b, three, colour)
    kind = Message("user", "What kind of screen is this?")
    step("the tail edited", a, one, title, two, b, three, kind)
    swapped = asking("Which buttons are there?", 2)
    other = step("the first picture replaced", swapped)
    step("and back", a, one, title, two, b, three, kind, Message("assistant", "x"), colour)
    step("two pictures at once", swapped, other, asking("Are they alike?", 0, 2))
    desk.assistant.close()
    desk = make()
    step("after a restart", a, one, title, two, b, three, colour)
    held = desk.assistant.stats.images_encoded
    desk.assistant.close()
    evaluated, needed = (sum(s[key] for s in steps) for key in ("evaluated", "needed"))
    return {"steps": steps, "evaluated": evaluated, "needed": needed,
            "work_ratio": evaluated / needed, "encoded_after_restart": held}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--mmproj", type=Path, default=MMPROJ)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="encode,turns,session")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted, found = given.only.split(","), {}
    settings = load_settings({})
    mx.set_default_device(mx.cpu)
    if "encode" in wanted:
        model = resolve_model(given.model, settings.data_dir)
        found["encode"] = measure_encode(model, given.mmproj, given.threads, given.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        for what, measure in (
            ("turns", lambda make: measure_turns(make, given.rounds)),
            ("session", measure_session),
        ):
            if what in wanted:
                folder = Path(temporary) / what
                found[what] = measure(
                    lambda f=folder: Asked(given.model, given.mmproj, f, settings)
                )
    found["load"] = os.getloadavg()[0]
    print(json.dumps(found, indent=None if given.json else 1))


if __name__ == "__main__":
    main()
