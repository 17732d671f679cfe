"""Whatever the bytes: a file is read, or refused with GGUFError, in bounded time and memory."""

import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError
from tests.engine import gguf_samples as samples
from tests.engine.gguf_samples import array_key, gguf_bytes, key, tensor, text, text_key, u32, u64
from tests.scale import scaled

# A byte of a file becomes at most about 20 of float32 (IQ1_S) or of Python's books (short
# texts), besides temporaries of the same size; codebooks are unpacked once a process.
BYTES_PER_FILE_BYTE = 128
BYTES_ANYWAY = 4 * 2**20

fuzzed = settings(max_examples=scaled(300), deadline=timedelta(seconds=10))


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], bool]:
    path = tmp_path_factory.mktemp("fuzz") / "fuzzed.gguf"

    def read_all(data: bytes) -> bool:
        """Whether `data` was accepted; fails if reading it went wrong."""
        path.write_bytes(data)
        tracemalloc.start()
        try:
            accepted = _read_all(path)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < BYTES_ANYWAY + BYTES_PER_FILE_BYTE * len(data)
        return accepted

    return read_all


def _read_all(path: Path) -> bool:
    try:
        file = GGUFFile.open(path)
    except GGUFError as error:
        assert path.name in error.message
        assert error.hint
        return False
    for name in file.metadata:
        _or_refused(lambda name=name: file.metadata[name])
    for name, info in file.tensors.items():
        assert 0 < info.offset <= info.offset + info.nbytes <= file.file_bytes
        assert file.raw(name).nbytes == info.nbytes
        _or_refused(lambda name=name: file.dequantised(name))
    assert file.quantisation_label
    return True


def _or_refused(look: Callable[[], object]) -> None:
    try:
        look()
    except GGUFError as error:
        assert error.hint


# -- good files, damaged -----------------------------------------------------------------------


@st.composite
def damages(draw: st.DrawFn, size: int) -> Callable[[bytes], bytes]:
    """One way to damage `size` bytes, more often in the header than behind it."""
    places = st.integers(0, min(size, 1500)) | st.integers(0, size)
    at, other = draw(places), draw(places)
    length = draw(st.integers(1, 64))
    odd = draw(
        st.binary(min_size=1, max_size=16)
        | st.sampled_from([2**60, 2**63, 2**64 - 1, 2**32, 0, 1]).map(u64)
        | st.sampled_from([0, 4, 8, 9, 13, 2**31, 2**32 - 1]).map(u32)
    )
    return draw(
        st.sampled_from(
            [
                lambda data: data[:at],
                lambda data: data[:at] + odd + data[at + len(odd) :],
                lambda data: data[:at] + odd + data[at:],
                lambda data: data[:at] + data[at + length :],
                lambda data: data[:at] + data[other : other + length] + data[at:],
                lambda data: (
                    data[:at] + bytes(b ^ 1 << at % 8 for b in data[at : at + 1]) + data[at + 1 :]
                ),
            ]
        )
    )


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return samples.write_sample(tmp_path_factory.mktemp("sample") / "sample.gguf").read_bytes()


@fuzzed
@given(st.lists(damages(4096), min_size=1, max_size=4))
def test_a_damaged_file_is_read_or_refused(
    read: Callable[[bytes], bool], sample: bytes, steps: list[Callable[[bytes], bytes]]
) -> None:
    data = sample
    for step in steps:
        data = step(data)
    read(data)


# -- headers made up ---------------------------------------------------------------------------

counts = st.integers(0, 3) | st.sampled_from([2**16, 2**24, 2**32, 2**60, 2**63, 2**64 - 1])
names = st.sampled_from(["k", "general.alignment", "split.count", "general.name"]) | st.binary(
    max_size=12
)
value_types = st.integers(0, 13)
array_items = st.recursive(
    st.binary(max_size=40) | st.lists(st.binary(max_size=5).map(text), max_size=4).map(b"".join),
    lambda inner: st.builds(
        lambda kind, count, items: u32(kind) + u64(count) + b"".join(items),
        value_types,
        counts,
        st.lists(inner, max_size=4),
    ),
    max_leaves=8,
)
keys = (
    st.builds(text_key, names, st.binary(max_size=20))
    | st.builds(key, names, value_types, st.binary(max_size=9))
    | st.builds(array_key, st.just("list"), value_types, counts, array_items)
    | st.builds(lambda n: key("general.alignment", 4, u32(n)), st.integers(0, 2**32 - 1))
    | st.builds(lambda n: key("general.alignment", 4, u32(2**n)), st.integers(0, 31))
)
types = st.sampled_from(list(GGMLQuantizationType)) | st.integers(0, 2**32 - 1)
lengths = st.sampled_from([1, 2, 32, 64, 128, 256, 512]) | st.integers(0, 2**64 - 1)
tensors = st.builds(
    tensor,
    st.sampled_from(["a", "b", "c"]) | st.binary(max_size=9),
    st.lists(lengths, max_size=5),
    types,
    st.integers(0, 8).map(lambda n: 32 * n) | st.integers(0, 2**64 - 1),
)


@fuzzed
@given(
    st.builds(
        gguf_bytes,
        keys=st.lists(keys, max_size=4),
        tensors=st.lists(tensors, max_size=3),
        data=st.integers(0, 5000).map(bytes),
        version=st.sampled_from([3, 3, 3, 2, 1, 4, 3 << 24]),
        key_count=st.none() | counts,
        tensor_count=st.none() | counts,
    )
)
@example(gguf_bytes([array_key("k", 9, 2**15, (u32(0) + u64(0)) * 2**15)]))
@example(gguf_bytes([array_key("k", 8, 2**16, u64(0) * 2**16)]))
def test_a_made_up_header_is_read_or_refused(read: Callable[[bytes], bool], data: bytes) -> None:
    read(data)


@st.composite
def good_files(draw: st.DrawFn) -> bytes:
    """Headers that hold together, with any bits as data."""
    described, data = [], b""
    for number in range(draw(st.integers(0, 4))):
        ggml_type = draw(st.sampled_from(list(GGMLQuantizationType)))
        block_elements, block_bytes = GGML_QUANT_SIZES[ggml_type]
        blocks, rest = draw(st.integers(1, 3)), draw(st.lists(st.integers(1, 3), max_size=3))
        described.append(
            tensor(f"t{number}", [blocks * block_elements, *rest], ggml_type, len(data))
        )
        for length in rest:
            blocks *= length
        seed = draw(st.binary(min_size=1, max_size=16))
        raw = (seed * (blocks * block_bytes))[: blocks * block_bytes]
        data += raw + bytes(-len(raw) % 32)
    good_keys = draw(
        st.lists(st.text(max_size=8).map(lambda s: text(s)), max_size=6).map(
            lambda texts: [array_key("texts", 8, len(texts), b"".join(texts))]
        )
    )
    return gguf_bytes(good_keys, described, data)


@fuzzed
@given(good_files())
def test_a_file_that_holds_together_is_read(read: Callable[[bytes], bool], data: bytes) -> None:
    assert read(data)
