"""A split model is read as the one file that it was; parts that do not belong together are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError
from tests.engine import gguf_samples as samples
from tests.engine.gguf_samples import array_key, gguf_bytes, key, tensor, text_key, u32
from tests.scale import scaled


def names_of(count: int) -> list[str]:
    return [f"m-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def split_sample(folder: Path, count: int = 3, tensors_in_first: bool = True) -> list[Path]:
    """The sample as llama-gguf-split cuts it: all keys in the first part."""
    tensors = list(samples.sample_tensors().items())
    bins = count if tensors_in_first else count - 1
    shares = [dict(tensors[i::bins]) for i in range(bins)]
    if not tensors_in_first:
        shares = [{}, *shares]
    paths = []
    for number, (name, share) in enumerate(zip(names_of(count), shares, strict=True)):
        keys = dict(samples.SAMPLE_KEYS) if number == 0 else {}
        keys |= {
            "split.no": np.uint16(number),
            "split.count": np.uint16(count),
            "split.tensors.count": np.int32(len(tensors)),
        }
        paths.append(samples.write_gguf(folder / name, share, keys))
    return paths


@pytest.mark.parametrize("tensors_in_first", [True, False])
@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_the_whole(tmp_path: Path, opened: int, tensors_in_first: bool) -> None:
    whole = GGUFFile.open(samples.write_sample(tmp_path / "whole.gguf"))
    paths = split_sample(tmp_path, 3, tensors_in_first)
    with GGUFFile.open(paths[opened]) as file:
        assert file.path == paths[0]
        assert file.file_bytes == sum(path.stat().st_size for path in paths)
        assert set(file.tensors) == set(whole.tensors)
        for name, info in whole.tensors.items():
            assert file.tensors[name].shape == info.shape
            assert file.raw(name).tobytes() == whole.raw(name).tobytes()
            np.testing.assert_array_equal(file.dequantised(name), whole.dequantised(name))
        for name in whole.metadata:
            ours, theirs = file.metadata[name], whole.metadata[name]
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
        assert (file.architecture, file.parameters, file.quantisation_label) == (
            whole.architecture, whole.parameters, whole.quantisation_label,
        )  # fmt: skip
        first_tensor = min(t.offset for t in file.tensors.values() if t.part == 0) \
            if tensors_in_first else paths[0].stat().st_size  # fmt: skip
        assert file.header().nbytes == first_tensor
    with pytest.raises(ValueError, match="closed"):
        file.raw(next(iter(file.tensors)))


def test_a_file_that_says_it_is_one_part_of_one_is_whole(tmp_path: Path) -> None:
    path = split_sample(tmp_path, 1)[0].rename(tmp_path / "other.gguf")
    assert GGUFFile.open(path).path == path


def refusal(path: Path, words: str) -> None:
    with pytest.raises(GGUFError, match=words) as caught:
        GGUFFile.open(path)
    assert caught.value.hint and caught.value.message.endswith(".")
    assert "\n" not in caught.value.message and len(str(caught.value)) < 500


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = split_sample(tmp_path)
    paths[1].unlink()
    refusal(paths[0], "part 1 of 3 of a split model; missing beside it: m-00002-of-00003.gguf")
    many = tmp_path / "many-00001-of-00009.gguf"
    keys = {"split.no": np.uint16(0), "split.count": np.uint16(9)}
    refusal(samples.write_gguf(many, {}, keys), "missing beside it: .* and 5 more")


def test_a_part_under_another_name_is_told_its_name(tmp_path: Path) -> None:
    paths = split_sample(tmp_path)
    refusal(paths[1].rename(tmp_path / "x.gguf"), "does not end in -00002-of-00003.gguf")


def test_a_truncated_part_is_named(tmp_path: Path) -> None:
    paths = split_sample(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-100])
    refusal(paths[0], "m-00003-of-00003.gguf is truncated")
    paths[2].write_bytes(b"")
    refusal(paths[0], "m-00003-of-00003.gguf is empty")


def part_bytes(number: int, count: int = 2, total: int = 2, name: str = "", *keys: bytes) -> bytes:
    described = [tensor(name or f"t{number}", [8])]
    marks = [
        key("split.no", 2, number.to_bytes(2, "little")),
        key("split.count", 2, count.to_bytes(2, "little")),
        key("split.tensors.count", 5, u32(total)),
    ]
    return gguf_bytes([*marks, *keys], described, bytes(32))


def write_parts(folder: Path, *parts: bytes) -> Path:
    names = names_of(len(parts))
    for name, data in zip(names, parts, strict=True):
        (folder / name).write_bytes(data)
    return folder / names[0]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (part_bytes(0), "00002.gguf says that it is part 1 of 2"),
        (part_bytes(1, 3), "00002.gguf says that it is part 2 of 3"),
        (gguf_bytes(), "00002.gguf says that it is part 1 of 1"),
        (part_bytes(1, name="t0"), "'t0' stands in m-00001-of-00002.gguf too"),
        (part_bytes(1, total=3), "'split.tensors.count' is not that of the first part"),
        (part_bytes(1, 2, 2, "", text_key("general.name", "b")), "parts are of different models"),
        (part_bytes(1, 2, 2, "", array_key("general.name", 4, 2, bytes(8))), "different models"),
    ],
)
def test_parts_that_do_not_belong_together(tmp_path: Path, second: bytes, words: str) -> None:
    first = part_bytes(0, 2, 2, "", text_key("general.name", "a"))
    refusal(write_parts(tmp_path, first, second), words)


def test_a_wrong_count_of_tensors_is_told(tmp_path: Path) -> None:
    path = write_parts(tmp_path, part_bytes(0, total=5), part_bytes(1, total=5))
    refusal(path, "5 tensors are declared for all parts, 2 are in them")


@settings(max_examples=scaled(100))
@given(
    at=st.integers(0, 600),
    odd=st.binary(min_size=1, max_size=8),
    part=st.integers(0, 1),
)
def test_a_damaged_part_is_read_or_refused(
    parts: Callable[[], list[Path]], at: int, odd: bytes, part: int
) -> None:
    paths = parts()
    good = paths[part].read_bytes()
    paths[part].write_bytes(good[:at] + odd + good[at + len(odd) :])
    try:
        file = GGUFFile.open(paths[0])
    except GGUFError as error:
        assert error.hint and "m-0000" in error.message
    else:
        for name, info in file.tensors.items():
            assert file.raw(name).nbytes == info.nbytes


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], list[Path]]:
    folder = tmp_path_factory.mktemp("parts")
    return lambda: split_sample(folder, 2)
