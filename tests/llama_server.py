"""llama.cpp's own server on a file, the independent reader of tokenizers and templates."""

import http.client
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_READY_S = 60.0

_PROGRAM = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_ctx, params.n_batch, params.n_ubatch, params.n_parallel = 256, 32, 32, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup, params.fit_params, params.cache_ram_mib = False, False, 0
server = xllamacpp.Server(params)
sys.stdin.read()  # until the test closes the pipe or dies
"""


class LlamaServer:
    """Use in a `with`. Raises RuntimeError with the log's end if llama.cpp stops."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._log = log
        command = [sys.executable, "-c", _PROGRAM, str(model), str(self._port)]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT
            )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.ask("GET", "/health")
                return self
            except (OSError, RuntimeError):  # not listening, or still loading
                time.sleep(0.05)  # between two looks at whether it listens
        self.close()
        raise RuntimeError(f"llama.cpp did not start:\n{self._log.read_text()[-2000:]}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_READY_S)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"llama.cpp answers {path} with {response.status}: {answer}")
        return answer

    def tokenize(self, text: str, *, special: bool, add_bos: bool = False) -> list[int]:
        body = {"content": text, "parse_special": special, "add_special": add_bos}
        tokens: list[int] = self.ask("POST", "/tokenize", body)["tokens"]
        return tokens

    def detokenize(self, ids: list[int]) -> str:
        text: str = self.ask("POST", "/detokenize", {"tokens": ids})["content"]
        return text

    def apply_template(self, messages: list[dict[str, str]]) -> str:
        prompt: str = self.ask("POST", "/apply-template", {"messages": messages})["prompt"]
        return prompt
