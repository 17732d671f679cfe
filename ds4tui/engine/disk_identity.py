"""What of a model decides its numbers, as a short name: KV rows of one name serve no other.

It covers the weights, the keys of the architecture (rope, windows, sizes), what loading does to
weights, which kernels compute on which device, how rows are kept, and the engine's own numerics.
The tokenizer and the chat template are left out: a timeline is ids.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import xxhash

from ds4tui.engine.disk_arrays import is_on_device
from ds4tui.engine.gguf import GGUFFile
from ds4tui.engine.gguf_format import TensorInfo
from ds4tui.engine.state import LayerState

# Raised whenever a change of the engine makes other rows of the same weights than before; a test
# compares what states hold with what they held at that version.
NUMERICS_VERSION = 1

# Reading takes about 0.1 s a gigabyte of a file that is in memory, and the disk's time else.
WHOLE_FILE_BYTES_MAX = 1 << 30
# Of larger files: so much at the start, in the middle and at the end of each tensor, and when
# the file was last written.
_SAMPLE_BYTES = 16 << 10

_THREADS = re.compile(r"(, | on )\d+ threads?\b")
_NO_NUMBERS = ("general.", "tokenizer.", "split.")


class _Model(Protocol):
    compute_path: str
    weights_policy: Any  # kernels.policy.LoadedWeightsPolicy

    def new_state(self) -> Any: ...


def model_identity(gguf: GGUFFile, model: _Model) -> bytes:
    """16 bytes, xxh3_128. Reads the file, or samples of one of more than a gigabyte."""
    digest = xxhash.xxh3_128()
    for word in _words(gguf, model):
        data = word.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    is_small = gguf.file_bytes <= WHOLE_FILE_BYTES_MAX
    for name in sorted(gguf.tensors):
        raw = gguf.raw(name)
        for start, end in _ranges(gguf.tensors[name], is_small):
            digest.update(raw[start:end].data)
    return digest.digest()


def _words(gguf: GGUFFile, model: _Model) -> Iterator[str]:
    yield f"numerics {NUMERICS_VERSION}"
    yield f"{gguf.architecture}, {gguf.file_bytes} bytes"
    for key in sorted(gguf.metadata):
        if not key.startswith(_NO_NUMBERS):
            yield f"{key}={gguf.metadata[key]!r}"
    for name in sorted(gguf.tensors):
        tensor = gguf.tensors[name]
        yield f"{name} {tensor.shape} {tensor.ggml_type.name}"
    if gguf.file_bytes > WHOLE_FILE_BYTES_MAX:
        yield f"written {gguf.path.stat().st_mtime_ns}"
    yield model.weights_policy.identity
    # Threads share rows out; each row's sum is made by one of them, in one order.
    yield _THREADS.sub("", model.compute_path)
    yield from layer_words(model.new_state().layers)


def layer_words(layers: Sequence[LayerState]) -> Iterator[str]:
    """Of each layer, how it keeps its rows."""
    for layer in layers:
        where = "device" if is_on_device(layer) else "host"
        yield f"{type(layer).__name__} {getattr(layer, 'window', 0)} {where}"


def _ranges(tensor: TensorInfo, is_whole: bool) -> Iterator[tuple[int, int]]:
    size = tensor.nbytes
    if is_whole or size <= 3 * _SAMPLE_BYTES:
        yield 0, size
        return
    for start in (0, (size - _SAMPLE_BYTES) // 2, size - _SAMPLE_BYTES):
        yield start, start + _SAMPLE_BYTES
