"""Where a Python package index keeps a file: its simple API as JSON (PEP 691) or HTML (PEP 503)."""

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from ds4tui.errors import DownloadError
from ds4tui.library import web
from ds4tui.library.catalogue import DEFAULT_INDEX, WheelSource

# uv's newest name first: whoever sets several means the same index by them.
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")

# The largest page of a real project is a few MB; more is not an index.
MAX_PAGE_BYTES = 32 * 2**20

ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)


def index_address(environment: Mapping[str, str]) -> web.Address:
    """The index that pip or uv is told to use, else the usual one."""
    for variable in INDEX_VARIABLES:
        if text := environment.get(variable, "").strip():
            # uv also accepts NAME=URL.
            return web.Address.of(re.sub(r"^[\w.-]+=", "", text))
    return web.Address.of(DEFAULT_INDEX)


def find_wheel(index: web.Address, source: WheelSource) -> web.Address:
    """The address of the wheel. Its content is judged by what is in it, not by the index's hash.

    Raises DownloadError if the index cannot be asked or does not have the file."""
    project = re.sub(r"[-_.]+", "-", source.project).lower()  # PEP 503, normalised names
    page = index.sibling(index.url.rstrip("/") + f"/{project}/")
    with web.get(page, {"Accept": ACCEPT}) as response:
        try:
            body = response.read(MAX_PAGE_BYTES)
        except web.BROKEN as exc:
            raise web.unreachable(page.url, exc) from exc
        base, kind = response.geturl(), response.headers.get_content_type()
    links = _json_links(body, base) if kind.endswith("json") else _html_links(body, base)
    for name, url in links:
        if name == source.file_name:
            return page.sibling(url)
    raise DownloadError(
        f"The index {index.url} does not have {source.file_name}.",
        "PIP_INDEX_URL and UV_DEFAULT_INDEX choose another index.",
    )


def _json_links(body: bytes, base: str) -> list[tuple[str, str]]:
    try:
        files: list[dict[str, Any]] = json.loads(body)["files"]
        return [(f["filename"], urljoin(base, f["url"])) for f in files]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise DownloadError(
            f"{base} is not a page of a package index: {exc!r}.",
            "PIP_INDEX_URL and UV_DEFAULT_INDEX choose another index.",
        ) from exc


def _html_links(body: bytes, base: str) -> list[tuple[str, str]]:
    reader = _LinkReader()
    reader.feed(body.decode("utf-8", "replace"))
    links = []
    for href in reader.hrefs:
        url = urldefrag(urljoin(base, href)).url
        links.append((unquote(urlsplit(url).path.rpartition("/")[2]), url))
    return links


class _LinkReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value for name, value in attrs if tag == "a" and name == "href" and value]
