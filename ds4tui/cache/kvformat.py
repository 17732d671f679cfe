"""The head of a KV record: what it holds, of which timeline, and where each array lies.

All numbers are little-endian. A record is one file:

    offset  bytes
         0      8  magic "DS4TUIKV"
         8      4  version, 1
        12      4  T: length of the text
        16      8  N: number of ids
        24      8  length of the whole file
        32      8  xxh3_64 of bytes 0 to 32, the text and the ids
        40      T  the text: JSON of everything else, padded with spaces
      40+T    8 N  the ids of the page's own positions, int64 (a snapshot has none)
                   the arrays, each padded with zeros to a multiple of 64 bytes

The arrays begin at a multiple of 64, and follow each other without a gap; the checksum of each
covers its padding. So each byte of a file is under a checksum or compared with what it must be.

**Nothing that a file declares is believed.** Lengths are compared with the file's before anything
is allocated; every field is checked for its type and range. Whatever is wrong is CorruptRecord.
"""

import json
import math
import struct
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import xxhash

from ds4tui.cache.kvarrays import DTYPES, Pooled
from ds4tui.cache.timeline import Ids, ImageSpan, Timeline
from ds4tui.errors import StoreError

MAGIC = b"DS4TUIKV"
VERSION = 1
ALIGNMENT = 64
FIXED = struct.Struct("<8sIIQQQ")
_CHECKED_BYTES = FIXED.size - 8

PAGE_POSITIONS_MAX = 1024  # an image that is longer makes a page of its own
LOGITS = -1  # the layer under which the next token's logits are stored

_TEXT_BYTES_MAX = 64 << 20
IDENTITY_BYTES_MAX = 64
_AXES_MAX = 8
_LAYERS_MAX = 1 << 14  # readers make a list of them
_SIZE_MAX = 1 << 40  # of one array's axis, and of a file: more is no record of ours

RecordKind = Literal["page", "snapshot"]

# cut: longer or shorter than it says; flipped: a checksum is wrong; foreign: not ours, or not as
# we write it; version: of another version of ds4tui; misplaced: under another record's name;
# gone, unreadable: the system says so; memory: there is none to read it into.
Fault = Literal["cut", "flipped", "foreign", "version", "misplaced", "gone", "unreadable", "memory"]


class CorruptRecord(StoreError):
    """A record that cannot be used: a miss for who asked for it. `fault` is the word of it."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message, "What it held is computed again.")
        self.fault = fault

    @property
    def is_damage(self) -> bool:
        """Whether the file itself is at fault, and will be the next time."""
        return self.fault in ("cut", "flipped", "foreign", "misplaced")


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """One array. `row_axis` is the axis along which positions lie; None in a snapshot. A row
    stands for `pool` positions, and belongs to the last of them. The xxh3_64 is of its bytes with
    their padding. Where it lies follows from those before it."""

    layer: int
    dtype: str
    shape: tuple[int, ...]
    row_axis: int | None
    checksum: int
    pool: int = 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def stored_bytes(self) -> int:
        """With padding."""
        return padded(self.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class RecordHead:
    """`parent` is the key of the timeline before `start` (of a snapshot: up to its position,
    where `start` = `end`); `stem` the name of the record that holds the row before `start`, ""
    for a root. `recompute_ms` is what it took to compute, `label` and `what` are for people:
    the model's name, how the conversation begins."""

    kind: RecordKind
    identity: bytes
    parent: bytes
    start: int
    end: int
    ids: Ids
    spans: tuple[ImageSpan, ...]
    layer_count: int
    arrays: tuple[ArrayPlace, ...] = ()
    created_at: float = 0.0
    recompute_ms: float = 0.0
    stem: str = ""
    point: str = ""
    label: str = ""
    what: str = ""
    name: str = field(init=False)
    """The file's: it follows from whose rows they are, so equal ones meet. Hashed once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self._name())

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def payload_bytes(self) -> int:
        return sum(array.stored_bytes for array in self.arrays)

    def _name(self) -> str:
        if self.kind == "snapshot":
            return f"{self.parent.hex()}.snapshot"
        own = xxhash.xxh3_64_hexdigest(self.ids.astype("<i8", copy=False).data)
        return f"{self.parent.hex()}-{own}.page"


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def page_end(timeline: Timeline, start: int, end: int) -> int:
    """Where a page ends that begins at `start`: an image stays whole, and if it is longer than a
    page it has one of its own."""
    stop = min(end, start + PAGE_POSITIONS_MAX)
    whole = timeline.snapped(stop)
    if whole > start:
        return whole
    return next(span.end for span in timeline.spans if span.start == start)


def prefix_key(identity: bytes, timeline: Timeline, position: int) -> bytes:
    """xxh3_128 of the model identity, the position and the ids before it (by their digest)."""
    hashed = identity + position.to_bytes(8, "little") + timeline.digest(position)
    return bytes(xxhash.xxh3_128_digest(hashed))


# -- writing ---------------------------------------------------------------------------------------


def encoded(head: RecordHead) -> bytes:
    """All bytes before the arrays. ValueError for a head that no reader would take."""
    text, ids = _text(head), head.ids.astype("<i8", copy=False).tobytes()
    text += b" " * (-(FIXED.size + len(text) + len(ids)) % ALIGNMENT)
    file_bytes = FIXED.size + len(text) + len(ids) + head.payload_bytes
    fields = (MAGIC, VERSION, len(text), len(head.ids), file_bytes)
    checksum = _checksum(FIXED.pack(*fields, 0), text + ids)
    fixed = FIXED.pack(*fields, checksum)
    try:
        decoded(fixed, text + ids, file_bytes)
    except CorruptRecord as exc:
        raise ValueError(f"this record cannot be stored: {exc.message}") from exc
    return fixed + text + ids


def _text(head: RecordHead) -> bytes:
    fields = {
        "kind": head.kind,
        "identity": head.identity.hex(),
        "parent": head.parent.hex(),
        "start": head.start,
        "end": head.end,
        "spans": [[s.start, s.rows, s.fingerprint.hex(), list(s.token_ids)] for s in head.spans],
        "layers": head.layer_count,
        "arrays": [_place_fields(array) for array in head.arrays],
        "created_at": head.created_at,
        "recompute_ms": head.recompute_ms,
        "stem": head.stem,
        "point": head.point,
        "label": head.label,
        "what": head.what,
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _place_fields(array: ArrayPlace) -> list[Any]:
    """What a row stands for is told where it is not one position."""
    shape, checksum = list(array.shape), f"{array.checksum:016x}"
    fields = [array.layer, array.dtype, shape, array.row_axis, checksum]
    return fields if array.pool == 1 else [*fields, array.pool]


def _checksum(fixed: bytes, rest: bytes) -> int:
    hasher = xxhash.xxh3_64(fixed[:_CHECKED_BYTES])
    hasher.update(rest)
    return int(hasher.intdigest())


# -- reading ---------------------------------------------------------------------------------------


def rest_bytes(fixed: bytes, file_bytes: int) -> int:
    """How many bytes of text and ids follow the first `FIXED.size` ones of a file that has
    `file_bytes`. Raises CorruptRecord, before anything is allocated, if it cannot be so."""
    if len(fixed) < FIXED.size:
        raise CorruptRecord("cut", f"It ends after {len(fixed)} bytes.")
    magic, version, text_bytes, ids_count, declared_bytes, _ = FIXED.unpack(fixed)
    if magic != MAGIC:
        raise CorruptRecord("foreign", "It is not a record of ds4tui.")
    if version != VERSION:
        raise CorruptRecord("version", f"Its version is {version}, this ds4tui reads {VERSION}.")
    if declared_bytes != file_bytes:
        raise CorruptRecord("cut", f"It has {file_bytes:,} bytes and says {declared_bytes:,}.")
    rest = int(text_bytes + 8 * ids_count)
    if text_bytes > _TEXT_BYTES_MAX or FIXED.size + rest > file_bytes or file_bytes > _SIZE_MAX:
        raise CorruptRecord("foreign", f"It says that its head has {rest:,} bytes.")
    return rest


def decoded(fixed: bytes, rest: bytes, file_bytes: int) -> RecordHead:
    """The head of a file; `rest` are the `rest_bytes` that follow `fixed`. Raises
    CorruptRecord."""
    if len(rest) != rest_bytes(fixed, file_bytes):
        raise CorruptRecord("cut", "It ends within its head.")
    _, _, text_bytes, _, _, checksum = FIXED.unpack(fixed)
    if _checksum(fixed, rest) != checksum:
        raise CorruptRecord("flipped", "The checksum of its head is wrong.")
    try:
        head = _head(json.loads(rest[:text_bytes]), _ids(rest[text_bytes:]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as exc:
        raise CorruptRecord("foreign", f"Its head makes no sense: {exc}.") from exc
    begin = FIXED.size + len(rest)
    if begin % ALIGNMENT or begin + head.payload_bytes != file_bytes:
        raise CorruptRecord("foreign", f"Its arrays do not fill its {file_bytes:,} bytes.")
    return head


def _ids(stored: bytes) -> Ids:
    ids = np.frombuffer(stored, dtype="<i8").astype(np.int64)
    ids.flags.writeable = False
    return ids


def _head(fields: Any, ids: Ids) -> RecordHead:
    if not isinstance(fields, dict) or fields["kind"] not in ("page", "snapshot"):
        raise ValueError("neither a page nor a snapshot")
    start, end = _count(fields["start"]), _count(fields["end"])
    layer_count = _count(fields["layers"])
    if layer_count > _LAYERS_MAX:
        raise ValueError(f"{layer_count:,} layers")
    head = RecordHead(
        kind=cast(RecordKind, fields["kind"]),
        identity=bytes.fromhex(_string(fields["identity"])),
        parent=bytes.fromhex(_string(fields["parent"])),
        start=start,
        end=end,
        ids=ids,
        spans=tuple(_span(span) for span in fields["spans"]),
        layer_count=layer_count,
        arrays=tuple(_place(place, layer_count) for place in fields["arrays"]),
        created_at=_number(fields["created_at"]),
        recompute_ms=_number(fields["recompute_ms"]),
        stem=_string(fields["stem"]),
        point=_string(fields["point"]),
        label=_string(fields["label"]),
        what=_string(fields["what"]),
    )
    _check_head(head)
    return head


def _check_head(head: RecordHead) -> None:
    if not 1 <= len(head.identity) <= IDENTITY_BYTES_MAX or len(head.parent) != 16:
        raise ValueError("an identity or a key of a wrong length")
    rows = head.end - head.start
    if (rows < 1) is (head.kind == "page") or len(head.ids) != rows or rows < 0:
        raise ValueError(f"{len(head.ids)} ids for positions {head.start} to {head.end}")
    if rows > PAGE_POSITIONS_MAX and (len(head.spans) != 1 or head.spans[0].rows != rows):
        raise ValueError(f"{rows} positions in one page")
    # An image's ids are negative, and only they are.
    Timeline.of(head.ids, tuple(_moved(span, -head.start) for span in head.spans))
    for array in head.arrays:
        axis = array.row_axis
        if (axis is None) is (head.kind == "page") or (array.layer == LOGITS and axis is not None):
            raise ValueError("an array that has no place in such a record")
        if axis is None:
            continue
        if array.shape[axis] != Pooled(array.pool, head.start, head.end).count:
            raise ValueError(f"{array.shape[axis]} rows of {array.pool} for {rows} positions")


def _moved(span: ImageSpan, by: int) -> ImageSpan:
    return ImageSpan(span.start + by, span.rows, span.fingerprint, span.token_ids)


def _span(fields: Any) -> ImageSpan:
    start, rows, fingerprint, token_ids = fields
    if any(type(token_id) is not int for token_id in token_ids):
        raise TypeError("token ids that are no integers")
    fingerprint = bytes.fromhex(_string(fingerprint))
    return ImageSpan(_count(start), _count(rows), fingerprint, tuple(token_ids))


def _place(fields: Any, layer_count: int) -> ArrayPlace:
    layer, dtype, shape, row_axis, checksum, *told = fields
    pool = _count(told[0]) if told else 1
    if len(told) > 1 or not pool or (pool > 1 and row_axis is None):
        raise ValueError(f"rows of {told} positions")
    if type(layer) is not int or not LOGITS <= layer < layer_count:
        raise ValueError(f"an array of layer {layer}")
    if _string(dtype) not in DTYPES:
        raise ValueError(f"an array of {dtype}")
    sizes = tuple(_count(size) for size in shape)
    if len(sizes) > _AXES_MAX or math.prod(sizes) > _SIZE_MAX:
        raise ValueError("an array that is too large")
    if row_axis is not None and _count(row_axis) >= len(sizes):
        raise ValueError(f"rows along axis {row_axis} of {len(sizes)}")
    return ArrayPlace(layer, dtype, sizes, row_axis, int(_string(checksum), 16), pool)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _SIZE_MAX:
        raise ValueError(f"{value!r} where a count belongs")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} where a number belongs")
    return float(value)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a text belongs")
    return value
