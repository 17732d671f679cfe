"""A Hugging Face hub on 127.0.0.1: one repository, the few endpoints that a pull uses, and the
faults that real ones have. The client is the real huggingface_hub."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

REPO = "someone/Tiny-GGUF"
COMMIT = "c0ffee" + "0" * 34


@dataclass
class FakeHub:
    """What the server does, changeable while it runs. `requests` is (method, path, Range, auth)."""

    files: dict[str, bytes]
    url: str = ""
    plain_git: set[str] = field(default_factory=set)  # files that are not in LFS
    token: str | None = None  # wanted for the files: the repository is gated
    private: bool = False  # the token is wanted for the repository itself
    info: bytes | None = None  # what is answered instead of the list of files
    hangs_up: str = ""  # on requests whose path has this in it
    status: int = 200
    lies_about_checksum: bool = False
    corrupts: int = 0  # that many answers have a wrong byte
    drops: list[int] = field(default_factory=list)
    hold_after: int | None = None
    holding: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)

    @property
    def fetched(self) -> list[tuple[str, str | None]]:
        """(file, Range) of each answer that had bytes of a file."""
        return [
            (path.rpartition("/")[2], asked)
            for method, path, asked, _ in self.requests
            if method == "GET" and path.startswith("/cdn/")
        ]

    def checksum(self, name: str) -> str:
        content = self.files[name]
        if self.lies_about_checksum:
            content += b"!"
        if name in self.plain_git:
            return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        headers = self.headers
        asked = headers.get("Range")
        self.hub.requests.append((self.command, path, asked, headers.get("Authorization")))
        has_token = headers.get("Authorization") == f"Bearer {self.hub.token}"
        resolved = re.fullmatch(rf"/{REPO}/resolve/({COMMIT}|main)/(.+)", path)
        if self.hub.hangs_up and self.hub.hangs_up in path:
            self.close_connection = True
        elif self.hub.status != 200:
            self._send(self.hub.status, b"")
        elif path == f"/api/models/{REPO}" and (has_token or not self.hub.private):
            info = json.dumps(self._info()).encode()
            self._send(200, info if self.hub.info is None else self.hub.info)
        elif path.startswith("/api/models/"):
            said = "Invalid username or password."
            if headers.get("Authorization") == "Bearer unknown":
                said = "Invalid credentials in Authorization header"
            self._send(401, b"{}", {"X-Error-Message": said})
        elif resolved and resolved[2] not in self.hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif resolved and self.hub.token and not has_token:
            self._send(401, b"", {"X-Error-Code": "GatedRepo"})
        elif resolved:
            self._send_resolved(resolved[2])
        elif path.startswith("/cdn/"):
            self._send_content(path.removeprefix("/cdn/"), asked)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _info(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.hub.files.items():
            sibling: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": "0" * 40}
            if name in self.hub.plain_git:
                sibling["blobId"] = self.hub.checksum(name)
            else:
                sibling["lfs"] = {
                    "sha256": self.hub.checksum(name), "size": len(content), "pointerSize": 130,
                }  # fmt: skip
            siblings.append(sibling)
        return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings, "tags": []}

    def _send_resolved(self, name: str) -> None:
        self._send(
            302,
            b"",
            {
                # Another host by name: the client must neither follow nor send its token there.
                "Location": f"{self.hub.url.replace('127.0.0.1', 'localhost')}/cdn/{name}",
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{self.hub.checksum(name)}"',
                "X-Linked-Size": str(len(self.hub.files[name])),
                "ETag": '"other"',
            },
        )

    def _send_content(self, name: str, asked: str | None) -> None:
        content = self.hub.files[name]
        if self.hub.corrupts:
            self.hub.corrupts -= 1
            content = content[:-1] + bytes([content[-1] ^ 1])
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), int(last or len(content) - 1) + 1
        body = content[start:end]
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
        self.send_response(206 if asked else 200)
        for key, value in headers.items() if asked else ():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.hub.drops:
            body = body[: self.hub.drops.pop(0)]
        try:
            if self.hub.hold_after is not None:
                self.wfile.write(body[: self.hub.hold_after])
                body = body[self.hub.hold_after :]
                self.wfile.flush()
                self.hub.holding.set()
                self.hub.go_on.wait(30)
            self.wfile.write(body)
        except ConnectionError:
            pass  # the client was killed

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running(files: dict[str, bytes]) -> Iterator[FakeHub]:
    hub = FakeHub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
