"""ds4tui's own walk: a Session over a loaded model, as the engine thread uses it."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ds4tui.bench.memory import device_peak_bytes
from ds4tui.cache.memory import process_memory_bytes
from ds4tui.cache.timeline import Timeline
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.models.registry import CONTEXT_TOKENS_ASKED_MIN, load_model
from ds4tui.engine.paging import LoadWish
from ds4tui.engine.session import Session
from ds4tui.errors import UsageError

if TYPE_CHECKING:
    from ds4tui.bench.walk import Leg


class Ours:
    name = "ds4tui"

    def __init__(self, gguf: GGUFFile, context_tokens: int) -> None:
        """Raises UsageError if the model's own context is shorter than the walk."""
        model = load_model(gguf, LoadWish(max(context_tokens, CONTEXT_TOKENS_ASKED_MIN)))
        if model.context_tokens < context_tokens:
            raise UsageError(
                f"The walk takes {context_tokens:,} tokens, the model holds "
                f"{model.context_tokens:,}.",
                "Give shorter --frontiers.",
            )
        self.about = model.compute_path
        self._model = model
        self._session = Session(model)

    def leg(self, ids: Sequence[int], decode_tokens: int) -> "Leg":
        from ds4tui.bench.walk import Leg

        began_s = time.perf_counter()
        prefill = self._session.sync(Timeline.of(ids))
        while not prefill.finished:
            prefill.step(self._session.chunk_sizes[0])
        token = int(np.argmax(prefill.logits))
        read_s, kv_bytes = time.perf_counter(), self._session.kv_bytes
        for _ in range(decode_tokens - 1):
            token = int(np.argmax(self._session.append(token)))
        done_s = time.perf_counter()
        return Leg(
            len(ids),
            prefill.total,
            read_s - began_s,
            decode_tokens - 1,
            done_s - read_s,
            kv_bytes,
            process_memory_bytes()[1],
            device_peak_bytes(),
        )

    def forget(self) -> None:
        self._session = Session(self._model)

    def close(self) -> None:
        self.forget()
