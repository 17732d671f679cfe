"""Images of stored messages: their files once per content, their places by message.

The functions work in the caller's transaction; what sqlite objects to is the caller's.
"""

import hashlib
import sqlite3
import time
from collections.abc import Mapping, Sequence

from ds4tui.chat.messages import Image

_UNKNOWN = "application/octet-stream"
# How files begin; an ISO media file names its brand behind its length.
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
)
_HEIF_BRANDS = (b"heic", b"heix", b"mif1", b"msf1")


def media_type(data: bytes) -> str:
    """Of a picture file, by how it begins."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return "image/heic" if brand in _HEIF_BRANDS else "image/avif"
    return next((kind for start, kind in _BEGINNINGS if data.startswith(start)), _UNKNOWN)


def is_picture(data: bytes) -> bool:
    """Whether it begins as a picture file does."""
    return media_type(data) != _UNKNOWN


def keep(db: sqlite3.Connection, message_id: int, images: Sequence[Image]) -> None:
    """Write the images of a message that has none yet."""
    for number, image in enumerate(images):
        db.execute(
            "INSERT INTO message_attachments (message_id, position, hash, at, name)"
            " VALUES (?, ?, ?, ?, ?)",
            (message_id, number, _keep_file(db, image), image.at, _storable(image.name)),
        )


def keep_of_draft(db: sqlite3.Connection, draft_id: int, images: Sequence[Image]) -> None:
    """Write the images of a draft that has none yet."""
    for number, image in enumerate(images):
        db.execute(
            "INSERT INTO images_of_drafts (draft_id, position, hash, at, name)"
            " VALUES (?, ?, ?, ?, ?)",
            (draft_id, number, _keep_file(db, image), image.at, _storable(image.name)),
        )


def images_of_draft(db: sqlite3.Connection, draft_id: int) -> list[tuple[Image, bool]]:
    """The images of a draft, in order, and whether the file of each is there (else it is empty)."""
    rows = db.execute(
        "SELECT a.content, d.at, d.name FROM images_of_drafts d"
        " LEFT JOIN attachments a ON a.hash = d.hash WHERE d.draft_id = ? ORDER BY d.position",
        (draft_id,),
    )
    return [(Image(content or b"", at, name), content is not None) for content, at, name in rows]


def _keep_file(db: sqlite3.Connection, image: Image) -> str:
    digest = hashlib.blake2b(image.data, digest_size=32).hexdigest()
    db.execute(
        "INSERT OR IGNORE INTO attachments VALUES (?, ?, ?, ?)",
        (digest, media_type(image.data), image.data, time.time()),
    )
    return digest


def _storable(name: str) -> str:
    return name.encode("utf-8", "replace").decode("utf-8")


def images_of(
    db: sqlite3.Connection, message_ids: Sequence[int]
) -> Mapping[int, tuple[Image, ...]]:
    """The images of those messages that have some. A file that stands in several is one object."""
    found: dict[int, list[Image]] = {}
    files: dict[str, bytes] = {}
    for id_ in message_ids:
        rows = db.execute(
            "SELECT hash, at, name FROM message_attachments WHERE message_id = ? ORDER BY position",
            (id_,),
        ).fetchall()
        for digest, at, name in rows:
            if digest not in files:
                row = db.execute("SELECT content FROM attachments WHERE hash = ?", (digest,))
                files[digest] = row.fetchone()[0]
            found.setdefault(id_, []).append(Image(files[digest], at, name))
    return {id_: tuple(images) for id_, images in found.items()}
