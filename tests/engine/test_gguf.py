"""Good files read as gguf's own reader reads them; bad ones are refused in one clear sentence."""

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, quants

from ds4tui.engine import gguf as reader
from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError, ModelNotFound
from tests.engine import gguf_samples as samples
from tests.engine.gguf_samples import array_key, gguf_bytes, key, tensor, text, text_key, u32, u64

DEQUANTISABLE = sorted({GGMLQuantizationType.F32, GGMLQuantizationType.F16, *quants._type_traits})

WriteBytes = Callable[[bytes], Path]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return samples.write_sample(tmp_path / "sample.gguf")


@pytest.fixture
def written(tmp_path: Path) -> WriteBytes:
    def write(data: bytes) -> Path:
        path = tmp_path / "odd.gguf"
        path.write_bytes(data)
        return path

    return write


def refusal(path: Path) -> GGUFError:
    with pytest.raises(GGUFError) as caught:
        GGUFFile.open(path)
    assert path.name in caught.value.message
    assert caught.value.message.endswith(".")
    assert caught.value.hint
    assert len(str(caught.value)) < 500
    return caught.value


# -- what a good file says ---------------------------------------------------------------------


def test_metadata_is_what_the_reference_reader_reads(sample: Path) -> None:
    file = GGUFFile.open(sample)
    fields = {
        name: field
        for name, field in gguf.GGUFReader(sample).fields.items()
        if not name.startswith("GGUF.")
    }
    assert list(file.metadata) == list(fields)
    for name, field in fields.items():
        value = file.metadata[name]
        plain = value.tolist() if isinstance(value, np.ndarray) else value
        assert plain == field.contents(), name
        assert type(plain) is type(field.contents()), name


def test_tensors_are_what_the_reference_reader_reads(sample: Path) -> None:
    file = GGUFFile.open(sample)
    expected = gguf.GGUFReader(sample).tensors
    assert list(file.tensors) == [t.name for t in expected]
    for theirs in expected:
        ours = file.tensors[theirs.name]
        assert ours.shape == tuple(int(n) for n in reversed(theirs.shape))
        assert (ours.ggml_type, ours.nbytes) == (theirs.tensor_type, theirs.n_bytes)
        assert ours.offset == theirs.data_offset
        assert file.raw(theirs.name).tobytes() == theirs.data.tobytes()


def test_metadata_and_arrays_are_read_only(sample: Path) -> None:
    file = GGUFFile.open(sample)
    with pytest.raises(TypeError):
        file.metadata["general.name"] = "x"  # type: ignore[index]
    with pytest.raises(ValueError, match="read-only"):
        file.metadata["tokenizer.ggml.scores"][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        file.raw("q8_0.weight")[0] = 1


def test_keys_are_looked_up_by_type(sample: Path) -> None:
    file = GGUFFile.open(sample)
    assert file.architecture == "llama"
    assert file.key(".block_count", int) == 3
    assert file.key("llama.block_count", float) == 3.0
    assert type(file.key(".block_count", float)) is float
    assert file.key(".rope.freq_base", float) == 10000.0
    assert file.key(".flag", bool) is True
    assert file.key("tokenizer.ggml.tokens", list) == ["a", "", "ü", "<|end|>"]
    assert file.key("tokenizer.ggml.token_type", np.ndarray).tolist() == [1, 3]
    assert file.key(".absent", int, 5) == 5
    assert file.key(".absent", int, None) is None


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (".absent", int, "'llama.absent' is missing"),
        (".flag", int, "'llama.flag' holds true or false, not a whole number"),
        ("tokenizer.ggml.tokens", np.ndarray, "holds a list of texts, not an array of numbers"),
        ("tokenizer.ggml.scores", list, "holds an array of numbers, not a list of texts"),
        ("general.name", float, "'general.name' holds a text, not a number"),
        (".rope.freq_base", int, "'llama.rope.freq_base' holds a number, not a whole number"),
    ],
)
def test_a_missing_or_ill_typed_key_is_named(
    sample: Path, name: str, kind: type, words: str
) -> None:
    with pytest.raises(GGUFError, match=words):
        GGUFFile.open(sample).key(name, kind)


def test_a_default_does_not_hide_a_wrong_type(sample: Path) -> None:
    with pytest.raises(GGUFError, match="not a whole number"):
        GGUFFile.open(sample).key("general.name", int, 5)


def test_label_parameters_and_size(sample: Path) -> None:
    file = GGUFFile.open(sample)
    assert file.quantisation_label == "Q4_K_M"
    assert file.parameters == 8 + 15 + 5 * 4 * 256 + 2 * 3 * 64
    assert file.file_bytes == sample.stat().st_size


def test_label_without_a_known_file_type_is_the_type_of_most_bytes(tmp_path: Path) -> None:
    path = samples.write_gguf(
        tmp_path / "m.gguf", samples.sample_tensors(), {"general.file_type": np.uint32(999)}
    )
    assert GGUFFile.open(path).quantisation_label == "BF16"


def test_version_2_is_read(sample: Path, written: WriteBytes) -> None:
    data = bytearray(sample.read_bytes())
    data[4:8] = u32(2)
    file = GGUFFile.open(written(bytes(data)))
    assert file.version == 2
    assert dict(file.tensors) == dict(GGUFFile.open(sample).tensors)


@pytest.mark.parametrize("alignment", [1, 8, 128])
def test_other_alignments_are_read(tmp_path: Path, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    weights = {name: np.full(7, number, np.float32) for number, name in enumerate("abc")}
    writer.add_tensor("bytes", np.arange(3, dtype=np.int8))  # what follows may lie at odd places
    for name, values in weights.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(path)
    for name, values in weights.items():
        assert file.tensors[name].offset % alignment == 0
        np.testing.assert_array_equal(file.dequantised(name), values)


def test_nested_arrays_are_read(written: WriteBytes) -> None:
    numbers = u32(GGUFValueType.UINT8) + u64(2) + b"\1\2"
    texts = u32(GGUFValueType.STRING) + u64(1) + text("x")
    file = GGUFFile.open(written(gguf_bytes([array_key("k", 9, 2, numbers + texts)])))
    first, second = file.metadata["k"]
    assert (first.tolist(), second) == ([1, 2], ["x"])
    with pytest.raises(GGUFError, match="'k' holds arrays, not a list of texts"):
        file.key("k", list)


def test_views_outlive_the_file_and_the_file_can_be_closed(sample: Path) -> None:
    with GGUFFile.open(sample) as file:
        raw = file.raw("q4_0.weight")
        expected = raw.tobytes()
    assert raw.tobytes() == expected
    assert file.metadata["tokenizer.ggml.tokens"][3] == "<|end|>"
    with pytest.raises(ValueError, match="closed"):
        file.raw("q4_0.weight")


def test_opening_reads_no_mlx() -> None:
    program = (
        "import sys, ds4tui.engine.gguf; "
        "print([m for m in sys.modules if m.split('.')[0] in ('mlx', 'textual', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ggml_type", DEQUANTISABLE, ids=lambda t: t.name)
@pytest.mark.parametrize("shape", [(512,), (5, 512), (2, 3, 256)], ids=str)
def test_values_are_the_references(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ggml_type: GGMLQuantizationType,
    shape: tuple[int, ...],
) -> None:
    monkeypatch.setattr(reader, "TILE_ELEMENTS", 768)  # tiles end inside rows
    raw = samples.random_blocks(np.random.default_rng(1), shape, ggml_type)
    path = samples.write_gguf(tmp_path / "m.gguf", {"w": (raw, ggml_type)})
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, ggml_type)
    values = GGUFFile.open(path).dequantised("w")
    assert values.dtype == np.float32
    assert values.shape == shape
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("rows", [slice(1, 3), slice(0, 0), slice(2, 99), slice(None)], ids=str)
@pytest.mark.parametrize("name", ["q4_0.weight", "half.weight", "experts.weight"])
def test_rows_are_a_part_of_the_whole(sample: Path, name: str, rows: slice) -> None:
    file = GGUFFile.open(sample)
    np.testing.assert_array_equal(file.dequantised(name, rows), file.dequantised(name)[rows])


def test_rows_of_a_vector_are_a_mistake_of_the_caller(sample: Path) -> None:
    with pytest.raises(ValueError, match="rows"):
        GGUFFile.open(sample).dequantised("norm.weight", slice(0, 2))
    with pytest.raises(ValueError, match="rows"):
        GGUFFile.open(sample).dequantised("q4_0.weight", slice(0, 4, 2))


def test_a_part_needs_only_its_own_memory(tmp_path: Path) -> None:
    raw = samples.random_blocks(np.random.default_rng(2), (4096, 1024), GGMLQuantizationType.Q8_0)
    path = samples.write_gguf(tmp_path / "m.gguf", {"w": (raw, GGMLQuantizationType.Q8_0)})
    file = GGUFFile.open(path)
    part_bytes = peak_bytes(lambda: file.dequantised("w", slice(1000, 1128)))
    assert part_bytes < 4 * 2**20  # the rows themselves are 512 KiB; the tensor is 16 MiB
    whole_bytes = peak_bytes(lambda: file.dequantised("w"))
    assert whole_bytes < 4096 * 1024 * 4 + 24 * 2**20  # the result and one tile's temporaries


def test_types_without_dequantisation_are_named(tmp_path: Path) -> None:
    path = samples.write_gguf(
        tmp_path / "m.gguf", {"table": (np.arange(4, dtype=np.int32), GGMLQuantizationType.I32)}
    )
    with pytest.raises(GGUFError, match="'table' is of type I32"):
        GGUFFile.open(path).dequantised("table")


def test_a_missing_tensor_is_named(sample: Path) -> None:
    file = GGUFFile.open(sample)
    for look in (file.tensor, file.raw, file.dequantised):
        with pytest.raises(GGUFError, match=r"sample\.gguf: the tensor 'nope' is missing"):
            look("nope")


# -- what is no GGUF ---------------------------------------------------------------------------


def by_words(value: str | bytes) -> str:
    """Names a case by the words it expects."""
    return value[:32] if isinstance(value, str) else "file"


SAFETENSORS_HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1]}}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"GG", "has only 2 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html><body>404", "looks like a web page"),
        (b"<html lang=en>", "looks like a web page"),
        (b'{"error": "Invalid username or password."}', "looks like JSON"),
        (b"PK\3\4" + bytes(60), "looks like a zip archive"),
        (b"\x1f\x8b" + bytes(60), "looks like a gzip archive"),
        (u64(len(SAFETENSORS_HEADER)) + SAFETENSORS_HEADER + bytes(4), "looks like a safetensors"),
        (b"tjgg" + bytes(60), "old GGJT format"),
        (bytes(4096), "begins with zeros"),
        (b"\x7fELF" + bytes(60), r"begins with b'\\x7fELF'"),
    ],
    ids=by_words,
)
def test_what_is_no_gguf_is_named_for_what_it_looks_like(
    written: WriteBytes, data: bytes, words: str
) -> None:
    error = refusal(written(data))
    with pytest.raises(GGUFError, match=words):
        raise error


def test_a_folder_is_no_gguf(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path).message


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "not a regular file" in refusal(pipe).message


def test_what_is_not_there_is_not_found(sample: Path) -> None:
    for path in (sample.parent / "absent.gguf", sample / "inside-a-file.gguf"):
        with pytest.raises(ModelNotFound, match=path.name):
            GGUFFile.open(path)


@pytest.mark.parametrize("path", ["a\0b.gguf", "x" * 5000])
def test_impossible_paths_are_told(path: str) -> None:
    with pytest.raises(GGUFError, match="cannot be opened"):
        GGUFFile.open(path)


# -- what is damaged ---------------------------------------------------------------------------


def test_every_truncation_is_told_with_the_missing_bytes(sample: Path, written: WriteBytes) -> None:
    whole = sample.read_bytes()
    end = max(t.offset + t.nbytes for t in GGUFFile.open(sample).tensors.values())
    data_start = min(t.offset for t in GGUFFile.open(sample).tensors.values())
    for size in range(data_start, end, 7):
        message = refusal(written(whole[:size])).message
        assert f"is truncated: {end - size:,} of {end:,} bytes are missing" in message
    for size in range(8, data_start - 32, 7):
        refusal(written(whole[:size]))


ONE_KEY = key("k", GGUFValueType.UINT8, b"\1")
ONE_TENSOR = tensor("t", [8])
HUGE = 2**60


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gguf_bytes(version=1), "version 1; the oldest"),
        (gguf_bytes(version=0), "version 0; the oldest"),
        (gguf_bytes(version=4), "version 4; the newest"),
        (gguf_bytes(version=3 << 24), "big-endian"),
        (gguf_bytes(key_count=HUGE), "1,152,921,504,606,846,976 keys are declared"),
        (gguf_bytes(tensor_count=HUGE), "1,152,921,504,606,846,976 tensors are declared"),
        (gguf_bytes([bytes(2**20)], key_count=2**16 + 1), "at most 65,536"),
        (gguf_bytes([bytes(2**22)], tensor_count=2**16 + 1), "at most 65,536"),
        (gguf_bytes(key_count=2, keys=[u64(1)]), "truncated"),
        (gguf_bytes(architecture=b""), "'general.architecture' is missing"),
        (
            gguf_bytes(architecture=key("general.architecture", 0, b"\1")),
            "holds a whole number, not a text",
        ),
        (gguf_bytes([text_key("", "x")]), "said to be 0 bytes long"),
        (gguf_bytes([text_key(b"x" * 65_536, "x")]), "said to be 65,536 bytes long"),
        (gguf_bytes([u64(HUGE) + bytes(99)]), "said to be 1,152,921,504,606,846,976 bytes long"),
        (gguf_bytes([text_key(b"\xff", "x")]), "key number 2 is not UTF-8"),
        (gguf_bytes([ONE_KEY, ONE_KEY]), "the key 'k' stands in it twice"),
        (gguf_bytes([key("k", 13, b"\1")]), "unknown value type 13"),
        (gguf_bytes([key("k", GGUFValueType.BOOL, b"\2")]), "'k' is 2, not true or false"),
        (gguf_bytes([array_key("k", 7, 2, b"\1\2")]), "'k' are not all true or false"),
        (gguf_bytes([key("k", GGUFValueType.STRING, u64(HUGE))]), "truncated: .* bytes are miss"),
        (gguf_bytes([array_key("k", 8, HUGE, bytes(64))]), "texts in 'k' are declared"),
        (gguf_bytes([array_key("k", 10, HUGE, bytes(64))]), "numbers in 'k' are declared"),
        (gguf_bytes([array_key("k", 9, HUGE, bytes(64))]), "arrays in 'k' are declared"),
        (gguf_bytes([array_key("k", 8, 2, text("x") + u64(HUGE))]), "truncated: .* texts of 'k'"),
        (gguf_bytes([array_key("k", 8, 2, text("x") + u64(2**64 - 9))]), "truncated"),
        (gguf_bytes([array_key("k", 99, 1, bytes(64))]), "unknown value type 99"),
        (gguf_bytes([array_key("k", 9, 1, (u32(9) + u64(1)) * 50)]), "nested more than 4 deep"),
        (gguf_bytes([key("general.alignment", 4, u32(0))]), "alignment is 0"),
        (gguf_bytes([key("general.alignment", 4, u32(24))]), "alignment is 24"),
        (gguf_bytes([key("general.alignment", 5, u32(2**32 - 32))]), "alignment is -32"),
        (gguf_bytes([text_key("general.alignment", "32")]), "alignment is not a whole number"),
        (gguf_bytes([key("general.alignment", 7, b"\1")]), "alignment is not a whole number"),
        (
            gguf_bytes([key("split.count", 2, b"\3\0"), key("split.no", 2, b"\1\0")]),
            "part 2 of 3 of a split model, but its name does not end in -00002-of-00003.gguf",
        ),
        (
            gguf_bytes([key("split.count", 2, b"\3\0"), key("split.no", 2, b"\3\0")]),
            "says that it is part 4 of 3, which cannot be",
        ),
        (gguf_bytes([key("split.count", 4, u32(2**31))]), "part 1 of 2,147,483,648"),
        (gguf_bytes([key("split.count", 5, u32(2**32 - 1))]), "part 1 of -1, which cannot be"),
        (gguf_bytes([array_key("split.count", 4, 1, u32(2))]), "are not whole numbers"),
        (gguf_bytes([text_key("split.count", "3")]), "split.count and split.no are not whole"),
        (gguf_bytes(tensors=[ONE_TENSOR]), "truncated: .* bytes are missing"),
        (gguf_bytes(tensors=[ONE_TENSOR, ONE_TENSOR], data=bytes(64)), "'t' stands in it twice"),
        (gguf_bytes(tensors=[tensor(b"\xff", [8])], data=bytes(32)), "tensor number 1 is not UTF"),
        (gguf_bytes(tensors=[tensor("t", [])], data=bytes(32)), "'t' has 0 axes"),
        (gguf_bytes(tensors=[tensor("t", [1] * 5)], data=bytes(32)), "'t' has 5 axes"),
        (gguf_bytes(tensors=[text("t") + u32(2**32 - 1) + bytes(64)]), "'t' has 4,294,967,295 ax"),
        (gguf_bytes(tensors=[tensor("t", [8, 0])], data=bytes(32)), r"impossible shape \[0, 8\]"),
        (gguf_bytes(tensors=[tensor("t", [2**32, 2**32])], data=bytes(32)), "impossible shape"),
        (gguf_bytes(tensors=[tensor("t", [2**40])], data=bytes(32)), "truncated: 4,398,046,511,0"),
        (gguf_bytes(tensors=[tensor("t", [8], 4)], data=bytes(32)), "unknown quantisation type 4"),
        (gguf_bytes(tensors=[tensor("t", [31], 2)], data=bytes(32)), "no multiple of Q4_0's block"),
        (gguf_bytes(tensors=[tensor("t", [32, 3], 12)], data=bytes(999)), "multiple of Q4_K's"),
        (
            gguf_bytes(tensors=[tensor("t", [8], offset=8)], data=bytes(64)),
            "'t' does not begin at a multiple of 32",
        ),
        (
            gguf_bytes(tensors=[tensor("t", [8], offset=2**64 - 32)], data=bytes(64)),
            "truncated: 18,446,744,073,7",
        ),
        (
            gguf_bytes(tensors=[tensor("a", [9]), tensor("b", [1], offset=32)], data=bytes(64)),
            "'a' and 'b' overlap",
        ),
    ],
    ids=by_words,
)
def test_damage_is_told_in_one_sentence_and_costs_no_memory(
    written: WriteBytes, data: bytes, words: str
) -> None:
    path = written(data)
    errors = []
    used_bytes = peak_bytes(lambda: errors.append(refusal(path)))
    with pytest.raises(GGUFError, match=words):
        raise errors[0]
    assert used_bytes < 2**20


def test_long_and_odd_names_do_not_flood_the_message(written: WriteBytes) -> None:
    name = "x\n\x1b[2J" * 8000
    message = refusal(written(gguf_bytes([text_key(name, "a"), text_key(name, "b")]))).message
    assert "\n" not in message
    assert "\x1b" not in message


def test_text_that_is_not_utf8_matters_only_to_who_reads_it(written: WriteBytes) -> None:
    texts = text("fine") + text(b"\xff\xfe")
    keys = [text_key("general.name", b"\xe9"), array_key("tokenizer.ggml.tokens", 8, 2, texts)]
    file = GGUFFile.open(written(gguf_bytes(keys)))
    for name in ("general.name", "tokenizer.ggml.tokens"):
        with pytest.raises(GGUFError, match=f"{name}' holds text that is not UTF-8"):
            file.key(name, str)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that Python and NumPy held at once during `work`, above what they held before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
