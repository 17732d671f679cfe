"""What the HTTP layer costs beside the bare engine, and how soon a hang-up ends the work.

    python benchmarks/http_layer.py [-m NAME] [--tokens 128] [--repeats 9] [--json]

One process holds the model and the server; clients are processes of their own that only read.
Bare and over HTTP take turns with the same request, so both meet the same machine: compare within a
run only. CPU time is that of the whole process (engine, server, both loops).
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from ds4tui.assistant import Assistant
from ds4tui.chat.messages import Message
from ds4tui.config import load_settings
from ds4tui.engine.requests import SamplingParams
from ds4tui.events import Event, Failed, Finished, Usage
from ds4tui.opening import open_assistant
from ds4tui.server.runner import ServerHandle

WORDS = (Path(__file__).parent.parent / "tests" / "data" / "alice.txt").read_text()
ASKED = "Tell a long story about a rabbit, a queen and a garden, in many short sentences."
PATH = "/v1/chat/completions"
PATIENCE_S = 30.0

# Sends what it is given and swallows the answer, as a client in another process would.
READER = """
import socket, sys
request = sys.stdin.buffer.read()
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    sock.sendall(request)
    while sock.recv(65536):
        pass
"""


class Bench:
    def __init__(self, assistant: Assistant, port: int, tokens: int) -> None:
        self.assistant, self.port, self.tokens = assistant, port, tokens

    def bare(self, tokens: int) -> Usage:
        ended = threading.Event()
        told: list[Event] = []

        def listen(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                told.append(event)
                ended.set()

        params = SamplingParams(temperature=0, max_tokens=tokens)
        self.assistant.chat([Message("user", ASKED)], params, listen)
        ended.wait()
        assert isinstance(told[0], Finished), told
        return told[0].usage

    def http(self, tokens: int) -> Usage:
        request = self.request(ASKED, tokens, stream=True)
        command = [sys.executable, "-c", READER, str(self.port)]
        subprocess.run(command, input=request, check=True)
        return self.assistant.stats.usage

    def request(self, text: str, tokens: int, stream: bool) -> bytes:
        fields = {
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": tokens,
            "stream": stream,
        }
        body = json.dumps(fields).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def overhead(self, repeats: int) -> dict[str, Any]:
        legs: dict[str, list[tuple[float, float]]] = {"bare": [], "http": []}
        for number in range(repeats + 1):
            order = ["bare", "http"] if number % 2 else ["http", "bare"]
            for name in order:
                cpu_s = time.process_time()
                usage = (self.bare if name == "bare" else self.http)(self.tokens)
                cpu_s = time.process_time() - cpu_s
                steps = usage.completion_tokens - 1
                if number:  # the first round evaluates the prompt
                    legs[name].append((usage.decode_ms / steps, cpu_s * 1e3 / steps))
        wall, cpu = (
            {name: statistics.median(leg[which] for leg in found) for name, found in legs.items()}
            for which in (0, 1)
        )
        ratios = [h[0] / b[0] for h, b in zip(legs["http"], legs["bare"], strict=True)]
        return {
            "tokens": self.tokens,
            "bare_ms_a_token": wall["bare"],
            "http_ms_a_token": wall["http"],
            "overhead_wall": statistics.median(ratios) - 1,
            "bare_cpu_ms_a_token": cpu["bare"],
            "http_cpu_ms_a_token": cpu["http"],
            "overhead_cpu": cpu["http"] / cpu["bare"] - 1,
        }

    def latency(self, repeats: int) -> dict[str, Any]:
        """Of requests for one token whose prompt is resident, one connection each."""
        found: dict[str, list[float]] = {"bare": [], "http": [], "health": []}
        for _ in range(repeats * 4):
            found["bare"].append(_seconds(lambda: self.bare(1)))
            found["http"].append(_seconds(lambda: self.ask(self.request(ASKED, 1, stream=False))))
            health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            found["health"].append(_seconds(lambda health=health: self.ask(health)))  # type: ignore[misc]
        medians = {name: statistics.median(each) * 1e3 for name, each in found.items()}
        return {
            "bare_request_ms": medians["bare"],
            "http_request_ms": medians["http"],
            "added_ms": medians["http"] - medians["bare"],
            "http_requests_a_second": 1e3 / medians["http"],
            "health_requests_a_second": 1e3 / medians["health"],
        }

    def ask(self, request: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(request)
            while sock.recv(65536):
                pass

    def hang_up(self, repeats: int) -> dict[str, Any]:
        """From the client's close to an idle engine, in decode and in prefill, streamed or not."""
        found: dict[str, list[float]] = {}
        for number in range(repeats):
            for where in ("decode", "prefill"):
                for stream in (True, False):
                    name = f"{where}_{'stream' if stream else 'whole'}_ms"
                    took_s = self._hang_up(where, stream, number)
                    found.setdefault(name, []).append(took_s * 1e3)
        told: dict[str, Any] = {name: statistics.median(each) for name, each in found.items()}
        return told | {f"{name}_worst": max(each) for name, each in found.items()}

    def _hang_up(self, where: str, stream: bool, number: int) -> float:
        # Another beginning each time: nothing of it is resident.
        text = ASKED if where == "decode" else f"{number} {stream} {WORDS[:8_000]}"
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            sock.sendall(self.request(text, 400, stream))
            _wait(lambda: self._is_at(where))
        began = time.perf_counter()
        _wait(lambda: self.assistant.stats.state == "idle")
        return time.perf_counter() - began

    def _is_at(self, where: str) -> bool:
        """In prefill: behind the first chunk, while the second is evaluated."""
        stats = self.assistant.stats
        if where == "decode":
            return stats.state == "decoding"
        prefill = stats.prefill
        return (
            stats.state == "prefilling" and prefill is not None and 0 < prefill.done < prefill.total
        )


def _wait(predicate: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not predicate():
        if time.monotonic() > deadline:
            raise SystemExit("the engine never came to what was waited for")
        time.sleep(0.0005)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = replace(load_settings({"model": args.model}), kv_disk="off")
    load = os.getloadavg()[0]
    assistant = open_assistant(args.model, settings, lambda words: None)
    server = ServerHandle.start(assistant, "127.0.0.1", 0)
    try:
        bench = Bench(assistant, server.port, args.tokens)
        told: dict[str, Any] = {"model": assistant.info.name, "load_before": load}
        told |= bench.overhead(args.repeats)
        told |= bench.latency(args.repeats)
        told["hang_up"] = bench.hang_up(args.repeats)
    finally:
        server.stop()
        assistant.close()
    if args.json:
        print(json.dumps(told))
        return
    for name, value in {**told, **told.pop("hang_up")}.items():
        print(f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    main()
