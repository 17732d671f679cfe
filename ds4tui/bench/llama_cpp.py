"""llama.cpp's walk, through its server out of the xllamacpp wheel, in a process of its own.

Its defaults are kept (batch 2048, micro-batch 512, f16 cache, flash attention as it chooses);
given are the file, the context and the number of threads. Its own clock times it.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4tui.bench import llama_server
from ds4tui.bench.memory import resident_bytes_of
from ds4tui.errors import EngineError, UsageError

if TYPE_CHECKING:
    from ds4tui.bench.walk import Leg

ANSWER_S = 600.0  # longer than any leg; a server that hangs must not hang us


class LlamaCpp:
    """One server with one slot. `close` ends it."""

    name = "llama.cpp"

    def __init__(self, model_path: Path, context_tokens: int, threads: int) -> None:
        """Raises UsageError if xllamacpp is not installed, EngineError if it does not start."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise UsageError(
                "--against llama.cpp needs the package xllamacpp, which is not installed.",
                "Run: pip install xllamacpp",
            )
        self._log = tempfile.TemporaryFile("a+", errors="replace")  # read beside its writes
        # By its path, without the folder on sys.path: it needs nothing of this package.
        command = [sys.executable, "-P", llama_server.__file__]
        self._server = subprocess.Popen(
            [*command, str(model_path), str(context_tokens), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self._url = self._ready()
            self.about = self._threads_in_log(threads)
            self._kv_bytes = kv_bytes_in_log(self._log_text())
        except BaseException:
            self.close()
            raise

    def leg(self, ids: Sequence[int], decode_tokens: int) -> "Leg":
        from ds4tui.bench.walk import Leg

        timings = self._complete(list(ids), decode_tokens)["timings"]
        steps = timings["predicted_n"] - 1
        if steps != decode_tokens - 1:
            raise EngineError(f"llama.cpp decoded {steps + 1} tokens instead of {decode_tokens}.")
        # `predicted_ms` runs from the first token, which comes out of the prompt, to the last.
        return Leg(
            len(ids),
            timings["prompt_n"],
            timings["prompt_ms"] / 1e3,
            steps,
            timings["predicted_ms"] / 1e3,
            self._kv_bytes,
            resident_bytes_of(self._server.pid),
        )

    def forget(self) -> None:
        """A prompt of one unlikely token drops what the slot holds but for a common start."""
        self._complete([0], 1)

    def close(self) -> None:
        if self._server.stdin is not None:
            self._server.stdin.close()  # it ends when there is nobody to serve
        try:
            self._server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        if self._server.stdout is not None:
            self._server.stdout.close()
        self._log.close()

    def _ready(self) -> str:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            if line.startswith(llama_server.READY):
                return line.removeprefix(llama_server.READY).strip()
        raise EngineError(f"llama.cpp did not start: {self._why()}")

    def _complete(self, ids: list[int], decode_tokens: int) -> dict[str, Any]:
        body = {
            "prompt": ids,
            "n_predict": decode_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        request = urllib.request.Request(
            f"{self._url}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                values: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as exc:
            said = exc.read().decode(errors="replace")[:300]
            raise EngineError(f"llama.cpp refused: {said}") from exc
        except OSError as exc:
            raise EngineError(f"llama.cpp stopped answering ({exc}): {self._why()}") from exc
        return values

    def _threads_in_log(self, threads: int) -> str:
        """What it says it uses. EngineError if it is not what was asked for: no fair race."""
        found = re.findall(r"n_threads = (\d+)", self._log_text())
        if found and int(found[-1]) != threads:
            raise EngineError(f"llama.cpp uses {found[-1]} threads instead of {threads}.")
        said = "says so" if found else "does not say"
        cache = "f16 cache of the whole walk from the start"
        return f"{threads} threads asked for ({said}); {cache}, micro-batch 512"

    def _why(self) -> str:
        lines = [line.strip() for line in self._log_text().splitlines() if line.strip()]
        bad = [line for line in lines if "error" in line.lower() or " E " in line]
        return (bad or lines or ["it said nothing"])[-1][:300]

    def _log_text(self) -> str:
        self._log.seek(0)
        return self._log.read()


def kv_bytes_in_log(text: str) -> int | None:
    """What it allocated for keys and values: once, for the whole context. None if it does not
    say."""
    found = re.findall(r"KV buffer size *= *([\d.]+) MiB", text)
    return round(sum(map(float, found)) * 2**20) if found else None
