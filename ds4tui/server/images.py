"""Pictures in requests: out of data URIs and base64, in the many ways in which clients write them.

Nothing is fetched: a server that asks for whatever address a client names can be made to ask
its own network. Nothing is decoded here either; what is no picture is told, with the name that
is given here, when the model is to see it.
"""

import base64
import binascii
import re
from urllib.parse import unquote_to_bytes

from ds4tui.chat.attachments import is_picture
from ds4tui.chat.messages import Image
from ds4tui.errors import RequestError
from ds4tui.server.fields import Fields

# More would be read for nothing: no context holds them.
MAX_IMAGES = 1024
SEND_DATA = "Send the picture itself, as data:image/png;base64,..."

_DETAILS = (None, "auto", "low", "high", "original")
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_SHOWN = 40  # characters of what a client sent


def image_source(part: Fields) -> tuple[str | None, str]:
    """What stands in a part's `image_url`, which is text or {url, detail}, and the field in which
    it stands. All pictures are shown to the model as its own preprocessing has them, whatever the
    detail. Raises RequestError naming the field."""
    value = part.get("image_url")
    if isinstance(value, dict):
        inner = Fields(value, part.path("image_url"))
        _check_detail(inner)
        return inner.text("url"), inner.path("url")
    if not isinstance(value, str | None):
        raise part.wrong("image_url", "a data URI or an object with one", value)
    _check_detail(part)
    return value, part.path("image_url")


def image_of(uri: str | None, path: str, at: int) -> Image:
    """The picture in a data URI, called by its place in the request, at character `at` of its
    message. Raises RequestError naming the field at `path`."""
    return Image(read_uri(uri, path), at, path)


def read_base64(text: str, path: str) -> bytes:
    """The bytes of `text`: of either alphabet, with or without padding, line ends in it or not.
    Raises RequestError naming the field at `path`."""
    plain = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
    if not plain:
        raise RequestError(f"{path} holds no picture: it is empty.", path, SEND_DATA)
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise RequestError(f"{path} is not base64: {exc}.", path, SEND_DATA) from exc


def require_few(images: int) -> None:
    """Raises RequestError for more than MAX_IMAGES of one request."""
    if images > MAX_IMAGES:
        raise RequestError(
            f"The request holds {images:,} images; at most {MAX_IMAGES:,} are read.",
            "messages",
            "Leave out earlier ones.",
        )


def _check_detail(fields: Fields) -> None:
    detail = fields.text("detail")
    if detail not in _DETAILS:
        raise RequestError(
            f"{fields.path('detail')} must be one of auto, low, high and original.",
            fields.path("detail"),
        )


def read_uri(uri: str | None, path: str) -> bytes:
    """The file in a data URI, or in base64 alone that begins as a picture does. Raises
    RequestError naming the field at `path`."""
    if uri is None:
        raise RequestError(f"{path} must be given.", path, SEND_DATA)
    uri = uri.strip()
    scheme = _SCHEME.match(uri)
    if scheme is None:  # some clients send the base64 alone
        data = read_base64(uri, path)
        if is_picture(data):
            return data
        raise RequestError(f"{path} is no data URI: {uri[:_SHOWN]!r}.", path, SEND_DATA)
    kind = scheme[1].lower()
    if kind != "data":
        what = "from the network" if kind in ("http", "https", "ftp") else f"from {kind}: addresses"
        raise RequestError(f"{path}: pictures are not fetched {what}.", path, SEND_DATA)
    return _of_data_uri(uri[scheme.end() :], path)


def _of_data_uri(rest: str, path: str) -> bytes:
    head, comma, data = rest.partition(",")
    if not comma:
        raise RequestError(f"{path} is a data URI without data: it has no comma.", path, SEND_DATA)
    media_type, *parameters = (word.strip().lower() for word in head.split(";"))
    if media_type and not media_type.startswith(("image/", "application/octet-stream")):
        raise RequestError(f"{path} holds {media_type[:_SHOWN]!r}, not a picture.", path, SEND_DATA)
    if "base64" not in parameters:
        return unquote_to_bytes(data)
    return read_base64(unquote_to_bytes(data).decode("ascii", "replace"), path)
