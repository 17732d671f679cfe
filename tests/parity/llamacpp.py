"""llama.cpp as the independent reader of the same files.

It runs in a process of its own (an assertion inside it ends that process, not the tests) and is
asked over HTTP for next-token distributions. Everything is set to be exact rather than fast: f32
cache, no flash attention, no GPU, one thread, no reuse that was not asked for.
"""

import base64
import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image

# Runs until its standard input ends, which it also does when the tests die.
SERVER = """
import sys, xllamacpp as x
model, projector, ubatch, context = sys.argv[1:]
p = x.CommonParams()
p.model.path, p.mmproj.path, p.port = model, projector, 0
p.n_ctx, p.n_batch, p.n_ubatch, p.n_parallel = int(context), 512, int(ubatch), 1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
p.cache_type_k = p.cache_type_v = x.ggml_type.GGML_TYPE_F32
p.n_gpu_layers, p.mmproj_use_gpu = 0, False
p.warmup, p.fit_params, p.cache_ram_mib, p.endpoint_props = False, False, 0, True
server = x.Server(p)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""

ANSWER_SECONDS = 120
FORCED = 1000.0  # a logit bias that decides the choice


@dataclass(frozen=True)
class Choice:
    """One chosen token; `top` are (id, log-probability), best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]

    @property
    def gap(self) -> float:
        """How far the best is ahead of the second."""
        return self.top[0][1] - self.top[1][1]


class LlamaCpp:
    """llama.cpp with one model loaded; a context manager."""

    def __init__(
        self,
        model: Path,
        log: Path,
        projector: Path | None = None,
        ubatch: int = 512,
        context: int = 1024,
    ) -> None:
        self._log = log
        arguments = [str(model), str(projector or ""), str(ubatch), str(context)]
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.startswith("listening "):
            self.close()
            raise RuntimeError(f"llama.cpp does not load {model.name}: {self._reason()}")
        self._url = line.split()[1]

    def __enter__(self) -> "LlamaCpp":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _reason(self) -> str:
        """What the log says about a stop: its first error line, else the exit code."""
        lines = self._log.read_text(errors="replace").splitlines()
        signs = (" E ", "ASSERT", "rror:", "what():")
        found = [line for line in lines if any(sign in line for sign in signs)]
        return found[0][:240] if found else f"exit code {self._process.poll()}"

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(error.read().decode()[:300]) from None
        except (urllib.error.URLError, ConnectionError) as error:
            raise RuntimeError(f"{error}: {self._reason()}") from None

    def _complete(self, prompt: Any, count: int, top: int, **more: Any) -> list[Choice]:
        body = dict(prompt=prompt, n_predict=count, n_probs=top, temperature=0, **more)
        answer = self._ask("/completion", body)
        return [
            Choice(
                entry["id"],
                entry["logprob"],
                tuple((other["id"], other["logprob"]) for other in entry["top_logprobs"]),
            )
            for entry in answer["completion_probabilities"]
        ]

    def log_probabilities(self, prompt: Any, vocab_size: int, keep: bool = False) -> np.ndarray:
        """float64 [vocab_size]: the whole distribution after `prompt` (token ids, or a prompt
        object). `keep`: evaluate only what is new since the last prompt."""
        # "A" is chosen whatever the model says: a token that is half a UTF-8 character, or the
        # end, would come back without its probabilities. These are taken before the bias.
        forced = [[ord("A"), FORCED]]
        [choice] = self._complete(prompt, 1, vocab_size, cache_prompt=keep, logit_bias=forced)
        row = np.full(vocab_size, np.nan)
        for token, logprob in choice.top:
            row[token] = logprob
        return row

    def about_image(self, before: str, image: np.ndarray, after: str) -> dict[str, Any]:
        """A prompt object with `image` (uint8 [height, width, 3]) between two texts."""
        return self.about_images(before, image, after)

    def about_images(self, *parts: str | np.ndarray) -> dict[str, Any]:
        """A prompt object of texts and images."""
        marker = self._ask("/props")["media_marker"]
        texts = [part if isinstance(part, str) else marker for part in parts]
        images = [_png(part) for part in parts if not isinstance(part, str)]
        return dict(prompt_string="".join(texts), multimodal_data=images)

    def tokenize(self, text: str) -> list[int]:
        """As its own tokenizer does, with the special tokens that `text` names, and a BOS where
        the model wants one."""
        body = dict(content=text, add_special=True, parse_special=True)
        ids: list[int] = self._ask("/tokenize", body)["tokens"]
        return ids

    def greedy(self, ids: Sequence[int], count: int) -> list[Choice]:
        """The next `count` tokens at temperature 0 (fewer if one ends the text), each with its
        two best alternatives."""
        return self._complete(list(ids), count, 2, cache_prompt=False, return_tokens=True)

    def next_choice(self, ids: Sequence[int], forced: int) -> Choice:
        """What it thinks of `forced` after `ids`: that token's log-probability and the two best,
        all before the forcing. Keeps its cache from call to call."""
        bias = [[forced, FORCED]]
        [choice] = self._complete(list(ids), 1, 2, cache_prompt=True, logit_bias=bias)
        return choice


def _png(image: np.ndarray) -> str:
    """In base64."""
    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    return base64.b64encode(png.getvalue()).decode()
