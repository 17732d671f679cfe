"""Records: what is written comes back to the bit, and whatever else is found is refused."""

import errno
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ds4tui.cache import kvfile
from ds4tui.cache.kvarrays import DTYPES, HostBounded, HostPage, HostRows, HostSnapshot
from ds4tui.cache.kvfile import (
    RecordFile,
    WritingStopped,
    read_head,
    record_parts,
    write_record,
)
from ds4tui.cache.kvformat import FIXED, CorruptRecord, RecordHead, prefix_key
from ds4tui.cache.timeline import Timeline
from tests.cache.kv_samples import (
    IDENTITY,
    LAYERS,
    same_page,
    same_rows,
    same_snapshot,
    true_page,
    true_snapshot,
)
from tests.cache.pictures import span, with_images
from tests.scale import scaled

TIMELINE = Timeline.of(range(40))


def page_head(timeline: Timeline, page: HostPage, **changes: Any) -> RecordHead:
    places, _ = record_parts(page)
    spans = tuple(s for s in timeline.spans if page.start <= s.start < page.end)
    head = RecordHead(
        kind="page",
        identity=IDENTITY,
        parent=prefix_key(IDENTITY, timeline, page.start),
        start=page.start,
        end=page.end,
        ids=timeline.ids[page.start : page.end],
        spans=spans,
        layer_count=len(page.layers),
        arrays=tuple(places),
    )
    return replace(head, **changes)


def snapshot_head(timeline: Timeline, snapshot: HostSnapshot) -> RecordHead:
    places, _ = record_parts(snapshot)
    at, key = snapshot.position, prefix_key(IDENTITY, timeline, snapshot.position)
    return RecordHead(
        "snapshot", IDENTITY, key, at, at, timeline.ids[:0], (), LAYERS, tuple(places)
    )


def written_page(
    folder: Path, timeline: Timeline = TIMELINE, start: int = 8, end: int = 20
) -> Path:
    page = true_page(timeline, start, end)
    head = write_record(folder, page_head(timeline, page), record_parts(page)[1])
    return folder / head.name


def written_snapshot(folder: Path) -> Path:
    snapshot = true_snapshot(TIMELINE)
    head = write_record(folder, snapshot_head(TIMELINE, snapshot), record_parts(snapshot)[1])
    return folder / head.name


def read_whole(path: Path) -> HostPage | HostSnapshot:
    with RecordFile(path) as file:
        return file.page() if file.head.kind == "page" else file.snapshot()


# -- there and back ------------------------------------------------------------------------------


def test_a_page_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = written_page(tmp_path)
    with RecordFile(path) as file:
        assert same_page(file.page(), true_page(TIMELINE, 8, 20))
        assert np.array_equal(file.head.ids, TIMELINE.ids[8:20])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_part_of_a_page_is_that_part(tmp_path: Path) -> None:
    with RecordFile(written_page(tmp_path)) as file:
        page = file.page()
    for layer in range(LAYERS):
        assert same_rows(page.rows(layer, 11, 15), true_page(TIMELINE, 11, 15).layers[layer])
    assert same_page(page.from_row(13), true_page(TIMELINE, 13, 20))
    with pytest.raises(ValueError, match="7 to 12"):
        page.rows(0, 7, 12)


def test_one_layer_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RecordFile(written_page(tmp_path)) as file:
        for layer in range(LAYERS):
            assert same_rows(file.layer_rows(layer), true_page(TIMELINE, 8, 20).layers[layer])
        with pytest.raises(ValueError, match="is not a snapshot"):
            file.snapshot()


def test_a_snapshot_comes_back_with_its_logits(tmp_path: Path) -> None:
    with RecordFile(written_snapshot(tmp_path)) as file:
        assert same_snapshot(file.snapshot(), true_snapshot(TIMELINE))
        with pytest.raises(ValueError, match="is not a page"):
            file.page()
    bare = true_snapshot(TIMELINE.prefix(5), logits=False)
    head = write_record(tmp_path, snapshot_head(TIMELINE, bare), record_parts(bare)[1])
    assert same_snapshot(read_whole(tmp_path / head.name), bare)  # type: ignore[arg-type]


def test_images_travel_with_their_page(tmp_path: Path) -> None:
    timeline = with_images(1, 2, span(0, 3, 7), 5)
    path = written_page(tmp_path, timeline, 1, 6)
    head, nbytes = read_head(path)
    assert head.spans == timeline.spans
    assert nbytes == path.stat().st_size


@given(data=st.data())
@settings(max_examples=scaled(40))
def test_arrays_of_any_dtype_and_shape_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    layers: list[HostBounded | None] = []
    for _ in range(data.draw(st.integers(1, 4))):
        shapes = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=3))
        names = [data.draw(st.sampled_from(sorted(DTYPES))) for _ in shapes]
        arrays = tuple(
            np.frombuffer(os.urandom(int(np.prod(s)) * DTYPES[n].itemsize), DTYPES[n]).reshape(s)
            for s, n in zip(shapes, names, strict=True)
        )
        layers.append(HostBounded(arrays, tuple(names)) if arrays else None)
    snapshot = HostSnapshot(40, tuple(layers))
    head = replace(snapshot_head(TIMELINE, snapshot), layer_count=len(layers))
    head = write_record(folder, head, record_parts(snapshot)[1])
    found = read_whole(folder / head.name)
    for held, wanted in zip(found.layers, layers, strict=True):
        assert (held is None) is (wanted is None)
        for a, b in zip(held.arrays if held else (), wanted.arrays if wanted else (), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# -- what is damaged -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["page", "snapshot"])
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample")
    return written_page(folder) if request.param == "page" else written_snapshot(folder)


@pytest.fixture
def other_bytes(sample: Path) -> Iterator[Callable[[bytes], None]]:
    """Asserts that other bytes under the record's name are refused."""
    good = sample.read_bytes()

    def refuse(changed: bytes) -> None:
        assert changed != good
        sample.write_bytes(changed)
        with pytest.raises(CorruptRecord) as found:
            read_whole(sample)
        assert found.value.is_damage or found.value.fault == "version"

    yield refuse
    sample.write_bytes(good)


def test_every_cut_is_noticed(sample: Path, other_bytes: Callable[[bytes], None]) -> None:
    good = sample.read_bytes()
    for length in {*range(120), *range(0, len(good), 37), len(good) - 1}:
        other_bytes(good[:length])


def test_every_flipped_byte_is_noticed(sample: Path, other_bytes: Callable[[bytes], None]) -> None:
    """Of head, ids, arrays and the padding between them."""
    good = sample.read_bytes()
    for place in range(len(good)):
        other_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])


def test_foreign_bytes_are_refused(sample: Path, other_bytes: Callable[[bytes], None]) -> None:
    good = sample.read_bytes()
    for changed in (b"", b"GGUF" + good[4:], good + b"\0", good + good, bytes(len(good)), b"{}"):
        other_bytes(changed)


@given(data=st.data())
@settings(max_examples=scaled(200))
def test_random_damage_never_gives_other_arrays(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = written_page(folder)
    good = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(good)))
        end = data.draw(st.integers(start, min(len(good), start + 80)))
        good[start:end] = data.draw(st.binary(max_size=80))
    path.write_bytes(good)
    try:
        found = read_whole(path)
    except CorruptRecord:
        return
    assert same_page(found, true_page(TIMELINE, 8, 20))  # type: ignore[arg-type]


def forged(path: Path, change: Callable[[dict[str, Any]], None], ids: bytes | None = None) -> None:
    """Change the text of a record's head, with right lengths and checksums."""
    good = path.read_bytes()
    magic, version, text_bytes, ids_count, _, _ = FIXED.unpack(good[: FIXED.size])
    text = json.loads(good[FIXED.size :][:text_bytes])
    own = good[FIXED.size + text_bytes :][: 8 * ids_count] if ids is None else ids
    payload = good[FIXED.size + text_bytes + 8 * ids_count :]
    change(text)
    raw = json.dumps(text).encode()
    raw += b" " * (-(FIXED.size + len(raw) + len(own)) % 64)
    length = FIXED.size + len(raw) + len(own) + len(payload)
    fields = (magic, version, len(raw), len(own) // 8, length)
    checked = FIXED.pack(*fields, 0)[:-8]
    checksum = xxhash.xxh3_64_intdigest(checked + raw + own)
    path.write_bytes(checked + struct.pack("<Q", checksum) + raw + own + payload)


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda text: text.__setitem__(key, value)


def _set_array(place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda text: text["arrays"][0].__setitem__(place, value)


@pytest.mark.parametrize(
    "change",
    [
        _set("kind", "other"),
        _set("start", -1),
        _set("start", 8.0),
        _set("end", True),
        _set("end", 1 << 60),
        _set("layers", 1),
        _set("parent", "ab"),
        _set("identity", "zz"),
        _set("identity", ""),
        _set("created_at", float("nan")),
        _set("recompute_ms", -1),
        _set("stem", None),
        _set("spans", [[8, 3, "00" * 16, [1, 1, 1]]]),
        _set("spans", [[8, 3, "00", [1, 1, 1]]]),
        _set("spans", 5),
        _set("arrays", []),
        _set_array(0, 9),
        _set_array(0, "0"),
        _set_array(1, "complex64"),
        _set_array(2, [1 << 40, 1 << 40]),
        _set_array(2, [2, 4, 13]),
        _set_array(2, [-2, -4, 12]),
        _set_array(3, 3),
        _set_array(3, None),
        _set_array(4, "nothing"),
        lambda text: text.pop("what"),
        lambda text: text["arrays"].append(text["arrays"][0]),
    ],
)
def test_a_head_that_lies_is_refused_though_its_checksum_is_right(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = written_page(tmp_path)
    forged(path, change)
    with pytest.raises(CorruptRecord) as found:
        read_whole(path)
    assert found.value.fault == "foreign"


def test_a_forged_head_that_is_right_is_read(tmp_path: Path) -> None:
    """Or the test above would prove nothing."""
    path = written_page(tmp_path)
    forged(path, _set("what", "a story"))
    assert read_head(path)[0].what == "a story"
    forged(path, _set("what", "a story"), np.arange(12).tobytes())
    with pytest.raises(CorruptRecord, match="It is the record") as found:
        read_whole(path)
    assert found.value.fault == "misplaced"


@pytest.mark.parametrize(("place", "width"), [(12, 4), (16, 8), (24, 8)])
def test_huge_declared_lengths_allocate_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, width: int
) -> None:
    path = written_page(tmp_path)
    good = path.read_bytes()
    asked: list[int] = []
    allocate = kvfile._new_buffer

    def counted(count: int) -> Any:
        asked.append(count)
        return allocate(count)

    monkeypatch.setattr(kvfile, "_new_buffer", counted)
    for value in (1 << 31, (1 << 8 * width) - 1, (1 << 8 * width - 1)):
        path.write_bytes(good[:place] + value.to_bytes(width, "little") + good[place + width :])
        with pytest.raises(CorruptRecord):
            read_whole(path)
    assert sum(asked) < 10_000


# -- what the system does ------------------------------------------------------------------------


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    path = written_page(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    for make, fault in (
        (lambda: os.mkfifo(path), "foreign"),
        (lambda: path.symlink_to(elsewhere), "foreign"),
        (path.mkdir, "foreign"),
    ):
        make()
        with pytest.raises(CorruptRecord) as found:
            read_whole(path)
        assert found.value.fault == fault
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    with pytest.raises(CorruptRecord) as found:
        read_whole(path)
    assert found.value.fault == "gone"


def test_an_open_record_outlives_its_name(tmp_path: Path) -> None:
    path = written_page(tmp_path)
    with RecordFile(path) as file:
        path.unlink()
        assert same_page(file.page(), true_page(TIMELINE, 8, 20))


def test_a_record_cut_while_it_is_read_is_no_crash(tmp_path: Path) -> None:
    path = written_page(tmp_path)
    with RecordFile(path) as file:
        os.truncate(path, path.stat().st_size - 5)
        with pytest.raises(CorruptRecord) as found:
            file.page()
    assert found.value.fault == "cut"


def test_a_read_error_is_told_from_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written_page(tmp_path)

    def failing(*args: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with RecordFile(path) as file:
        monkeypatch.setattr(os, "readv", failing)
        with pytest.raises(CorruptRecord) as found:
            file.page()
    assert found.value.fault == "unreadable" and not found.value.is_damage


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def failing(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        with pytest.raises(OSError, match="No space"):
            written_page(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    assert same_page(read_whole(written_page(tmp_path)), true_page(TIMELINE, 8, 20))  # type: ignore[arg-type]


def test_writing_stops_when_asked(tmp_path: Path) -> None:
    page = true_page(TIMELINE, 0, 8)
    with pytest.raises(WritingStopped):
        write_record(tmp_path, page_head(TIMELINE, page), record_parts(page)[1], lambda: True)
    assert list(tmp_path.iterdir()) == []


def test_arrays_that_do_not_fit_the_head_are_not_written(tmp_path: Path) -> None:
    page = true_page(TIMELINE, 0, 8)
    arrays = record_parts(page)[1]
    for changes in ({"end": 9}, {"layer_count": 0}, {"identity": b""}, {"recompute_ms": -1.0}):
        with pytest.raises(ValueError, match="cannot be stored"):
            write_record(tmp_path, page_head(TIMELINE, page, **changes), arrays)
    with pytest.raises(ValueError, match="is not"):
        write_record(tmp_path, page_head(TIMELINE, page), arrays[::-1])
    with pytest.raises(ValueError, match="complex64"):
        HostRows.of(np.zeros((2, 2), np.complex64), axes=(1,))
    assert list(tmp_path.iterdir()) == []
