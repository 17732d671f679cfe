"""What a live stream keeps of its rate when a second client arrives with a long prompt.

    python benchmarks/live_stream.py [-m NAME] [--prompt-tokens 14000] [--live agent|person]
                                     [--window 8] [--windows N] [--json]

One process holds the model, two sessions and the server; clients are processes of their own that
only read and note when what came. A reply is streamed all the time. The second client asks for some
seconds, hangs up for as many (what was evaluated stays), asks the same again, until it is answered
or N times: so windows with and without it take turns on the same machine, and each is compared with
its neighbours. A window begins when the request is at work. `token_ms` are medians between two
tokens: of the tokens, then, and not of the chunks between some. Rates of the prefill are of what
was evaluated; `prefill_alone` is of another prompt as long, with no stream. With `--live person`
the stream is the app's own, at the engine, and the prompt an agent's over HTTP.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Message
from ds4tui.config import load_settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.events import Event, Failed, Finished, TokenText
from ds4tui.opening import open_assistant
from ds4tui.server.runner import ServerHandle

WORDS = (Path(__file__).parent.parent / "tests" / "data" / "alice.txt").read_text()
ASKED = "Count from one upwards, in words, and never stop."
BEGUN_TOKENS = 20
ROOM_TOKENS = 64  # that the template and the answer take
ANSWER_S = 3600.0

# Sends what it is given and prints when each event of the answer came, on the system's clock.
READER = """
import socket, sys, time
request = sys.stdin.buffer.read()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    sock.sendall(request)
    while got := sock.recv(65536):
        now_s = time.monotonic()
        for _ in range(got.count(b'"content"') - got.count(b'"role"')):  # the opening has both
            print(now_s, flush=True)
"""


class Stream:
    """A reply, and when each piece of it came."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.ended = threading.Event()
        self.stop: Callable[[], object] = lambda: None

    def wait(self, tokens: int) -> None:
        while len(self.times_s) < tokens and not self.ended.is_set():
            time.sleep(0.002)


class Bench:
    def __init__(self, assistant: Assistant, port: int, live: str) -> None:
        self.assistant, self.port, self.live = assistant, port, live
        # The end of turn: the stream must not end by itself.
        self.never = tuple((i, -100.0) for i in sorted(assistant.format.stop_token_ids))

    def request(self, text: str, tokens: int) -> bytes:
        fields = {
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": tokens,
            "stream": True,
            "logit_bias": {str(token): bias for token, bias in self.never},
        }
        body = json.dumps(fields).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def http(self, text: str, tokens: int) -> Stream:
        stream = Stream()
        command = [sys.executable, "-c", READER, str(self.port)]
        reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stream.stop = reader.kill

        def read() -> None:
            assert reader.stdout is not None
            for line in reader.stdout:
                stream.times_s.append(float(line))
            stream.ended.set()

        assert reader.stdin is not None
        reader.stdin.write(self.request(text, tokens))
        reader.stdin.close()
        threading.Thread(target=read, daemon=True).start()
        return stream

    def typed(self, text: str, tokens: int) -> Stream:
        stream = Stream()

        def hear(event: Event) -> None:
            if isinstance(event, TokenText):
                stream.times_s.append(time.monotonic())
            elif isinstance(event, Finished | Failed):
                stream.ended.set()

        params = SamplingParams(temperature=0, max_tokens=tokens, logit_bias=self.never)
        stream.stop = self.assistant.chat([Message("user", text)], params, hear).cancel
        return stream

    def begin_live(self, tokens: int) -> Stream:
        return (self.typed if self.live == "person" else self.http)(ASKED, tokens)

    def prompt(self, tokens: int, name: str) -> tuple[str, int]:
        """A text of that many tokens as it is asked, beginning as no other, and how many."""
        text, pieces = f"{name} {WORDS}", [f"{name}"]
        while self._count(text) < tokens:
            pieces.append(WORDS)
            text = " ".join(pieces)
        low, high = 1, len(text)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high) if self._count(text[:middle]) <= tokens else (low, middle - 1)
            )
        return text[:low], self._count(text[:low])

    def _count(self, text: str) -> int:
        return len(self.assistant.render([Message("user", text)]))

    def settle(self, stream: Stream) -> None:
        stream.stop()
        deadline = time.monotonic() + ANSWER_S
        while self.assistant.stats.state != "idle" and time.monotonic() < deadline:
            time.sleep(0.01)

    def prefill_alone_s(self, text: str) -> float:
        """Seconds until the first token of an answer to `text`."""
        began_s = time.monotonic()
        answer = self.http(text, 1)
        answer.wait(1)
        self.settle(answer)
        if not answer.times_s:
            raise SystemExit("the long prompt was not answered")
        return answer.times_s[0] - began_s

    def fresh(self, live: Stream | None) -> Stream:
        """A stream that is at work, with room for some windows more."""
        room = self.assistant.info.context_tokens - self._count(ASKED) - 1
        if live is not None and len(live.times_s) < room // 2 and not live.ended.is_set():
            return live
        if live is not None:
            self.settle(live)
        live = self.begin_live(room)
        live.wait(BEGUN_TOKENS)
        return live

    def measure(self, tokens: int, window_s: float, most: int) -> dict[str, Any]:
        alone_text, asked = self.prompt(tokens, "Alone.")
        text, _ = self.prompt(tokens, "Beside.")
        alone_s = self.prefill_alone_s(alone_text)
        live, spent_s = self.fresh(None), 0.0
        gaps: tuple[list[float], list[float]] = [], []  # of the stream: alone, beside
        evaluated = self.assistant.stats.total_evaluated_tokens
        windows: list[tuple[float, float]] = []  # rates of the stream: alone, then beside
        is_over = False
        while not is_over:
            live = self.fresh(live)
            alone = _window(live, window_s)
            asking = self.http(text, 1)
            _until(lambda: self.at_work() == 2, window_s)  # it has been started, and read
            began_s = time.monotonic()
            answered = _until(lambda: bool(asking.times_s), window_s)  # noqa: B023
            ended_s = asking.times_s[0] if answered else time.monotonic()
            asking.stop()
            spent_s += ended_s - began_s
            windows.append((_rate(live, *alone), _rate(live, began_s, ended_s)))
            gaps[0].extend(_gaps(live, *alone))
            gaps[1].extend(_gaps(live, began_s, ended_s))
            print(
                "stream alone {:.1f}, beside {:.1f} tokens/s".format(*windows[-1]), file=sys.stderr
            )
            _until(lambda: self.at_work() == 1, window_s)
            is_over = answered or len(windows) == most
        windows.append((_rate(live, *_window(live, window_s)), 0.0))
        self.settle(live)
        evaluated = self.assistant.stats.total_evaluated_tokens - evaluated
        before, after = windows[:-1], windows[1:]
        kept = [2 * b[1] / (b[0] + a[0]) for b, a in zip(before, after, strict=True)]
        return {
            "prompt_tokens": asked,
            "windows": len(kept),
            "stream_alone_tps": statistics.median(each[0] for each in windows),
            "stream_beside_tps": statistics.median(each[1] for each in before),
            "kept": statistics.median(kept),
            "kept_least": min(kept),
            "token_ms_alone": statistics.median(gaps[0]) * 1e3,
            "token_ms_beside": statistics.median(gaps[1]) * 1e3,
            "longest_pause_ms": max(gaps[1]) * 1e3,
            "prefill_alone_tps": asked / alone_s,
            "prefill_beside_tps": evaluated / spent_s,
            "stretched": (asked / alone_s) / (evaluated / spent_s),
        }

    def at_work(self) -> int:
        return sum(bool(session.job_id) for session in self.assistant.stats.sessions)


def _until(holds: Callable[[], bool], at_most_s: float) -> bool:
    deadline = time.monotonic() + at_most_s
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.002)
    return holds()


def _window(live: Stream, seconds: float) -> tuple[float, float]:
    began_s = time.monotonic()
    _until(live.ended.is_set, seconds)
    return began_s, time.monotonic()


def _within(live: Stream, began_s: float, ended_s: float) -> list[float]:
    return [at for at in live.times_s if began_s < at <= ended_s]


def _rate(live: Stream, began_s: float, ended_s: float) -> float:
    return len(_within(live, began_s, ended_s)) / (ended_s - began_s)


def _gaps(live: Stream, began_s: float, ended_s: float) -> list[float]:
    return [after - before for before, after in pairwise(_within(live, began_s, ended_s))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--prompt-tokens", type=int, default=14_000)
    parser.add_argument("--live", choices=("agent", "person"), default="agent")
    parser.add_argument("--window", type=float, default=8.0, help="seconds (8)")
    parser.add_argument("--windows", type=int, default=0, help="so many at most (0: all it takes)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = replace(load_settings({"model": args.model}), kv_disk="off", sessions=2)
    load = os.getloadavg()[0]
    assistant = open_assistant(args.model, settings, lambda words: None)
    server = ServerHandle.start(assistant, "127.0.0.1", 0)
    try:
        bench = Bench(assistant, server.port, args.live)
        tokens = min(args.prompt_tokens, assistant.info.context_tokens - ROOM_TOKENS)
        measured = bench.measure(tokens, args.window, args.windows)
    finally:
        server.stop()
        assistant.close()
    told: dict[str, Any] = {"model": assistant.info.name, "live": args.live, "load_before": load}
    told |= measured
    if args.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name:20} {value:.4g}" if isinstance(value, float) else f"{name:20} {value}")


if __name__ == "__main__":
    main()
