"""A GGUF file, memory-mapped: its metadata, where its tensors lie, and their values.

Opening checks everything (gguf_format.py) and touches only the header; tensor data is read
through the map when asked for. What a quantised block means comes from the gguf package.
Needs no mlx. Instances may be shared by threads: nothing changes after `open` but memos.
"""

import copy
import math
import mmap
import os
import stat
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from ds4tui.engine.gguf_cursor import Buffer, shown
from ds4tui.engine.gguf_format import MAGIC, TensorInfo, read_header
from ds4tui.engine.gguf_parts import joined_tensors, part_paths
from ds4tui.errors import GGUFError, ModelNotFound

__all__ = ["GGUFFile", "TensorInfo"]

T = TypeVar("T")
D = TypeVar("D")

# Elements dequantised at a time. The reference code makes several temporaries of a tile's size:
# 4 MiB tiles stay near the caches and keep the peak at one tensor over the result.
TILE_ELEMENTS = 2**20

_NOT_A_MODEL = "Choose a .gguf file, or see `ds4tui models`."
_REQUIRED = object()
_KIND_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list of texts",
    np.ndarray: "an array of numbers",
}


class GGUFFile:
    """An open GGUF; of a split model, all of its parts as if they were one file, `path` the
    first. `close` (or leaving a `with`) lets go of the map; views that were handed out keep it
    alive for as long as they live. The file must not be shortened meanwhile: the system kills a
    process that reads a map behind its file's end."""

    def __init__(self, path: Path, source: mmap.mmap) -> None:
        header = read_header(source, path.name)
        paths, sources, headers = [path], [source], [header]
        if header.parts > 1:
            paths = part_paths(path, header)
            sources = [source if i == header.part else _map(p) for i, p in enumerate(paths)]
            headers = [
                header if i == header.part else read_header(s, p.name)
                for i, (s, p) in enumerate(zip(sources, paths, strict=True))
            ]
        self.path = paths[0]
        self.version = headers[0].version
        self.metadata: Mapping[str, Any] = headers[0].metadata
        self.tensors: Mapping[str, TensorInfo] = joined_tensors(paths, headers)
        self.file_bytes = sum(map(len, sources))
        self._parts: list[npt.NDArray[np.uint8]] | None = [
            np.frombuffer(s, np.uint8) for s in sources
        ]
        self.architecture: str = self.key("general.architecture", str)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "GGUFFile":
        """Open and check a file; of a split model any part, which opens all of them.

        Raises ModelNotFound if there is none, GGUFError for one that cannot be read, is not a
        GGUF, is damaged or truncated, or lacks parts.
        """
        where = Path(path)
        return cls(where, _map(where))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._parts = None

    def handle(self) -> Self:
        """Another handle on the same map, closed by itself: for who reads on when this one is
        closed."""
        return copy.copy(self)

    def _part(self, number: int) -> npt.NDArray[np.uint8]:
        if self._parts is None:
            raise ValueError(f"{self.path.name} is closed")
        return self._parts[number]

    @overload
    def key(self, name: str, kind: type[T]) -> T: ...
    @overload
    def key(self, name: str, kind: type[T], default: D) -> T | D: ...
    def key(self, name: str, kind: type[Any], default: Any = _REQUIRED) -> Any:
        """A metadata value of a known type; a name that begins with "." gets the architecture
        before it (".block_count" is "llama.block_count").

        `kind` is int, float (an int will do), bool, str, list (of str) or numpy.ndarray.
        Raises GGUFError naming the key if it is missing (and no default given) or ill-typed.
        """
        full = f"{self.architecture}{name}" if name.startswith(".") else name
        if full not in self.metadata:
            if default is not _REQUIRED:
                return default
            raise GGUFError(
                f"{self.path.name}: the key {shown(full)} is missing.",
                "Get another conversion of this model.",
            )
        value = self.metadata[full]
        if kind is float and type(value) is int:
            return float(value)
        nested = isinstance(value, list) and not all(isinstance(v, str) for v in value[:1])
        if type(value) is not kind or nested:
            held = "arrays" if nested else _KIND_WORDS[type(value)]
            raise GGUFError(
                f"{self.path.name}: the key {shown(full)} holds {held}, not {_KIND_WORDS[kind]}.",
                "Get another conversion of this model.",
            )
        return value

    def header(self) -> npt.NDArray[np.uint8]:
        """All bytes before the tensors (of a split model, of its first part, which has its
        keys): a read-only view of the map."""
        offsets = (t.offset for t in self.tensors.values() if t.part == 0)
        return self._part(0)[: min(offsets, default=None)]

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor: a read-only view of the map, uint8 [rows.., bytes of a row]."""
        info = self.tensor(name)
        flat = self._part(info.part)[info.offset : info.offset + info.nbytes]
        return flat.reshape(*info.shape[:-1], -1)

    def tensor(self, name: str) -> TensorInfo:
        """Raises GGUFError if there is no such tensor."""
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(
                f"{self.path.name}: the tensor {shown(name)} is missing.",
                "Get another conversion of this model.",
            )
        return info

    def dequantised(
        self, name: str, rows: slice | None = None, at: int | None = None
    ) -> npt.NDArray[np.float32]:
        """A tensor's values, float32, in the tensor's shape.

        `at` takes one of the first axis (of a tensor with three axes); `rows` only that part of
        the first axis that is left (of two or more, step 1).
        Needs the result and one small tile of memory. Raises GGUFError for a missing tensor and
        for types that have no dequantisation (whole numbers, intermediate formats).
        """
        self.require_values(name)
        info = self.tensor(name)
        raw, shape = self.raw(name), info.shape
        if at is not None:
            raw, shape = raw[at], shape[1:]
        if rows is not None:
            if len(shape) < 2 or rows.step not in (None, 1):
                raise ValueError(f"rows {rows} of a tensor of shape {shape}")
            raw = raw[rows]
            shape = (raw.shape[0], *shape[1:])
        result = np.empty(math.prod(shape), np.float32)
        block_elements, block_bytes = GGML_QUANT_SIZES[info.ggml_type]
        step = TILE_ELEMENTS // block_elements * block_bytes
        flat, at = raw.reshape(-1), 0
        for start in range(0, flat.size, step):
            tile = self._tile(flat[start : start + step], info)
            result[at : at + tile.size] = tile
            at += tile.size
        return result.reshape(shape)

    def require_values(self, name: str) -> None:
        """Raises GGUFError for a tensor of a type that has no dequantisation, unread."""
        info = self.tensor(name)
        if not _has_values(info.ggml_type):
            raise GGUFError(
                f"{self.path.name}: the tensor {shown(info.name)} is of type "
                f"{info.ggml_type.name}, which has no dequantisation.",
                "Get another quantisation of this model.",
            )

    def _tile(self, raw: npt.NDArray[np.uint8], info: TensorInfo) -> npt.NDArray[Any]:
        with np.errstate(all="ignore"):  # a damaged scale may be inf or nan: it stays that
            return np.asarray(quants.dequantize(raw, info.ggml_type))

    @property
    def parameters(self) -> int:
        return sum(math.prod(t.shape) for t in self.tensors.values())

    @property
    def quantisation_label(self) -> str:
        """The name people know the file's quantisation by, e.g. "Q4_K_M"; failing that the type
        that holds most of its bytes."""
        number = self.metadata.get("general.file_type")
        if isinstance(number, int) and number in LlamaFileType._value2member_map_:
            name = LlamaFileType(number).name
            if name != "GUESSED":
                return name.removeprefix("MOSTLY_").removeprefix("ALL_")
        held: Counter[GGMLQuantizationType] = Counter()
        for tensor in self.tensors.values():
            held[tensor.ggml_type] += tensor.nbytes
        return held.most_common(1)[0][0].name if held else "none"


def _map(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file that begins like a GGUF."""
    name = path.name or str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise GGUFError(f"{name} is a folder, not a GGUF file.", _NOT_A_MODEL)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise GGUFError(f"{name} is not a regular file.", _NOT_A_MODEL)
        if status.st_size == 0:
            raise GGUFError(f"{name} is empty.", "Download it again.")
        with path.open("rb") as file:
            source = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ModelNotFound(f"There is no file {path}.", _NOT_A_MODEL) from exc
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the path, or emptied meanwhile
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else exc
        raise GGUFError(f"{name} cannot be opened: {reason}.", _NOT_A_MODEL) from exc
    if source[: len(MAGIC)] != MAGIC:
        raise GGUFError(f"{name} is not a GGUF file: it {_look(source)}.", _NOT_A_MODEL)
    return source


_KNOWN_STARTS = (
    (b"version https://git-lfs", "is a Git LFS pointer; the model itself was not fetched"),
    (b"PK\3\4", "looks like a zip archive or a PyTorch checkpoint"),
    (b"\x1f\x8b", "looks like a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "looks like a zstd archive"),
    (b"\x80", "looks like a Python pickle"),
    (b"\x89HDF", "looks like an HDF5 file"),
    (b"lmgg", "is in the old GGML format"),
    (b"fmgg", "is in the old GGMF format"),
    (b"tjgg", "is in the old GGJT format"),
    (b"FUGG", "is a byte-swapped GGUF"),
)


def _look(source: Buffer) -> str:
    """What a file that is no GGUF looks like, as the end of a sentence."""
    start = source[:512]
    for magic, words in _KNOWN_STARTS:
        if start.startswith(magic):
            return words
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < len(source):
        return "looks like a safetensors file"
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "looks like a web page, perhaps an error page of the server"
    if text.startswith((b"{", b"[")):
        return "looks like JSON"
    if not start.strip(b"\0"):
        return "begins with zeros, as an unfinished download does"
    if len(source) < 32:
        return f"has only {len(source)} bytes"
    return f"begins with {start[:4]!r}"


@cache
def _has_values(ggml_type: GGMLQuantizationType) -> bool:
    _, block_bytes = GGML_QUANT_SIZES[ggml_type]
    try:
        with np.errstate(all="ignore"):
            quants.dequantize(np.zeros(block_bytes, np.uint8), ggml_type)
    except NotImplementedError:
        return False
    return True
