"""`pull owner/repo` with the real huggingface_hub client against a hub on this machine."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import DownloadError
from ds4tui.library import download as downloading
from ds4tui.library import hub as pulling
from ds4tui.library.progress import PullProgress
from ds4tui.library.pull import pull
from tests.engine.gguf_samples import write_gguf
from tests.library import fake_hub
from tests.library.fake_hub import COMMIT, REPO, FakeHub

Q4, Q8 = "Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf"
PARTS = [f"BF16/Tiny-BF16-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
EYES = "mmproj-Tiny-F16.gguf"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)

    def content(name: str, values: int, keys: dict[str, object]) -> bytes:
        raw = rng.normal(size=(1, values)).astype(np.float32)
        tensors = {f"{name}.weight": (raw, GGMLQuantizationType.F32)}
        return write_gguf(folder / name, tensors, keys).read_bytes()

    made = {Q4: content("a", 150_000, {}), Q8: content("b", 1000, {}), EYES: content("c", 8, {})}
    for number, name in enumerate(PARTS):
        keys = {"split.no": np.uint16(number), "split.count": np.uint16(3)}
        made[name] = content(f"part{number}", 2000, keys)
    return made | {"README.md": b"# Tiny", ".gitattributes": b"*"}


@pytest.fixture
def hub(files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub.running(dict(files)) as server:
        server.plain_git = {"README.md", ".gitattributes"}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def cache(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(own_home / "hf"))
    return own_home / "hf" / "hub"


def folder_of(cache: Path) -> Path:
    return cache / "models--someone--Tiny-GGUF"


def half_of(hub: FakeHub, cache: Path, name: str = Q4) -> Path:
    return folder_of(cache) / "blobs" / f"{hub.checksum(name)}.ds4tui.incomplete"


def fetch(name: str, tmp_path: Path, said: list[PullProgress] | None = None) -> Path:
    return pull(name, tmp_path / "data", [].append if said is None else said.append)


def test_the_preferred_quant_lands_in_the_hub_s_cache(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    said: list[PullProgress] = []
    path = fetch(REPO, tmp_path, said)
    assert path == folder_of(cache) / "snapshots" / COMMIT / Q4
    assert path.read_bytes() == hub.files[Q4]
    assert path.resolve().name == hub.checksum(Q4)
    assert (folder_of(cache) / "refs" / "main").read_text() == COMMIT
    assert {p.name for p in (folder_of(cache) / "blobs").iterdir()} == {hub.checksum(Q4)}
    lasting = [str(p) for p in said if p.lasting]
    assert lasting[0] == "taking Q4_K_M; there are also BF16, Q8_0"
    assert lasting[1].startswith(f"for images the repository has {EYES} (")
    fetching = [p for p in said if p.step == "fetching"]
    assert fetching[-1].done_bytes == fetching[-1].total_bytes == len(hub.files[Q4])


def test_huggingface_hub_finds_what_was_fetched(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    path = fetch(REPO, tmp_path)
    assert try_to_load_from_cache(REPO, Q4, cache_dir=cache) == str(path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (f"{REPO}:Q8_0", Q8),
        (f"{REPO}:q8_0", Q8),
        (f"{REPO}/{Q8}", Q8),
        (f"{REPO}/Tiny-Q8_0", Q8),
        (f"{REPO}/{EYES}", EYES),
        (f"hf.co/{REPO}:Q8_0", Q8),
        (f"hf://{REPO}/{Q8}", Q8),
        (f"https://huggingface.co/{REPO}/blob/main/{Q8}", Q8),
        (f"https://huggingface.co/{REPO}", Q4),
    ],
)
def test_ways_to_name_a_file(
    hub: FakeHub, cache: Path, tmp_path: Path, name: str, file: str
) -> None:
    assert fetch(name, tmp_path).relative_to(folder_of(cache) / "snapshots" / COMMIT) == Path(file)
    assert {name for name, _ in hub.fetched} == {file}


@pytest.mark.parametrize("name", [f"{REPO}:BF16", f"{REPO}/{PARTS[1]}"])
def test_a_split_model_is_fetched_whole(
    hub: FakeHub, cache: Path, tmp_path: Path, name: str
) -> None:
    said: list[PullProgress] = []
    path = fetch(name, tmp_path, said)
    assert path.name == "Tiny-BF16-00001-of-00003.gguf"
    assert [p.step for p in said if "part 3 of 3" in p.step]
    with GGUFFile.open(path) as file:
        assert len(file.tensors) == 3


@pytest.mark.parametrize("name", [REPO, f"{REPO}:BF16", f"{REPO}/{Q4}"])
def test_a_model_that_is_there_is_done_at_once_and_offline(
    hub: FakeHub, cache: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(name, tmp_path)
    asked = len(hub.requests)
    assert fetch(name, tmp_path) == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(name, tmp_path) == path
    assert len(hub.requests) == asked


def test_without_a_network_any_quant_that_is_there_will_do(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(f"{REPO}:Q8_0", tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", unused_address())
    assert fetch(REPO, tmp_path) == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch(REPO, tmp_path) == path
    with pytest.raises(DownloadError, match=r"HF_HUB_OFFLINE is set, and .*:Q4_0 is not in"):
        fetch(f"{REPO}:Q4_0", tmp_path)


def unused_address() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


# --- interrupted, damaged ---


def test_a_broken_connection_is_gone_on_with(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading.download, "__defaults__", (lambda seconds: None,))
    hub.drops = [1000, 200_000]
    assert fetch(REPO, tmp_path).read_bytes() == hub.files[Q4]
    assert hub.fetched == [(Q4, None), (Q4, "bytes=1000-"), (Q4, "bytes=201000-")]


KILLED = "import sys; from ds4tui.cli import main; sys.exit(main(sys.argv[1:]))"


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-c", KILLED, *arguments]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_pull_that_is_killed_goes_on_where_it_was(
    hub: FakeHub, cache: Path, how: signal.Signals
) -> None:
    hub.hold_after = 300_000
    process = subprocess.Popen(
        command_line("pull", REPO), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert hub.holding.wait(30)
    half = half_of(hub, cache)
    wait_until(lambda: half.exists() and half.stat().st_size >= 100_000)
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    hub.go_on.set()
    hub.hold_after = None
    kept = half.stat().st_size
    ran = subprocess.run(command_line("pull", REPO), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert hub.fetched[-1] == (Q4, f"bytes={kept}-")
    path = folder_of(cache) / "snapshots" / COMMIT / Q4
    assert str(path) in ran.stdout and path.read_bytes() == hub.files[Q4]
    assert not half.exists()


def wait_until(predicate: "object") -> None:
    for _ in range(3000):
        if predicate():  # type: ignore[operator]
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


def test_a_wrong_checksum_leaves_nothing_behind(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    hub.corrupts = 9
    with pytest.raises(DownloadError, match="arrived damaged: its checksum is not"):
        fetch(REPO, tmp_path)
    assert list((folder_of(cache) / "blobs").iterdir()) == []
    hub.corrupts = 0
    assert fetch(REPO, tmp_path).read_bytes() == hub.files[Q4]


def test_a_kept_half_of_something_else_is_thrown_away_once(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    half = half_of(hub, cache)
    half.parent.mkdir(parents=True)
    half.write_bytes(b"something else" * 1000)
    assert fetch(REPO, tmp_path).read_bytes() == hub.files[Q4]
    assert hub.fetched == [(Q4, "bytes=14000-"), (Q4, None)]


def test_a_hub_that_stays_wrong_is_given_up(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    half = half_of(hub, cache)
    half.parent.mkdir(parents=True)
    half.write_bytes(b"something else" * 1000)
    hub.corrupts = 9
    with pytest.raises(DownloadError, match="arrived damaged"):
        fetch(REPO, tmp_path)
    assert hub.corrupts == 7


def test_a_torn_file_of_the_cache_is_fetched_again(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    path = fetch(REPO, tmp_path)
    blob = path.resolve()
    blob.write_bytes(hub.files[Q4][:1000])
    assert fetch(REPO, tmp_path).read_bytes() == hub.files[Q4]
    blob.write_bytes(b"GGUX" + hub.files[Q4][4:])  # its right length
    said: list[PullProgress] = []
    assert fetch(REPO, tmp_path, said).read_bytes() == hub.files[Q4]
    assert any("is damaged and is fetched again" in p.step for p in said)


def test_a_small_file_that_is_in_git_itself_is_verified_too(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    hub.plain_git.add(Q8)
    assert fetch(f"{REPO}:Q8_0", tmp_path).read_bytes() == hub.files[Q8]
    hub.plain_git.add(Q4)
    hub.corrupts = 1
    with pytest.raises(DownloadError, match="arrived damaged"):
        fetch(REPO, tmp_path)


def test_two_pulls_at_once_fetch_once(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    hub.hold_after = 1000
    found: list[Path] = []
    waiting = threading.Event()

    def note(progress: PullProgress) -> None:
        if progress.step.startswith("waiting"):
            waiting.set()

    threads = [
        threading.Thread(target=lambda: found.append(pull(REPO, tmp_path, note))) for _ in range(2)
    ]
    threads[0].start()
    assert hub.holding.wait(30)
    threads[1].start()
    assert waiting.wait(30)
    hub.go_on.set()
    for thread in threads:
        thread.join(30)
    assert found[0] == found[1] and len(hub.fetched) == 1


def test_what_progress_raises_stops_the_pull_and_keeps_the_half(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop(progress: PullProgress) -> None:
        if progress.step == "fetching" and progress.done_bytes > 0:
            raise Stop

    with pytest.raises(Stop):
        pull(REPO, tmp_path, stop)
    assert half_of(hub, cache).stat().st_size > 0


# --- what goes wrong is told plainly ---


def refused(name: str, match: str, tmp_path: Path) -> str:
    with pytest.raises(DownloadError, match=match) as caught:
        fetch(name, tmp_path)
    assert caught.value.hint and "\n" not in str(caught.value)
    return caught.value.hint


def test_a_gated_repository_says_what_to_do(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "right"
    hint = refused(REPO, f"{REPO} is gated", tmp_path)
    assert f"{hub.url}/{REPO}" in hint and "HF_TOKEN" in hint
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "account of your token" in refused(REPO, "is gated", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "right")
    assert fetch(REPO, tmp_path).is_file()
    # The token goes to the hub, not to the address that it redirects to.
    assert {auth for method, path, _, auth in hub.requests if path.startswith("/cdn/")} == {None}


def test_a_private_repository_needs_the_token(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token, hub.private = "right", True
    assert "HF_TOKEN" in refused(REPO, f"no repository {REPO} on 127.0.0.1, or it is", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "right")
    assert fetch(REPO, tmp_path).is_file()


def test_a_missing_repository(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    assert "Check the name" in refused("nobody/nothing", "no repository nobody/nothing", tmp_path)


def test_a_token_that_the_hub_does_not_know(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "unknown")
    hub.private = True
    assert "HF_TOKEN" in refused(REPO, "127.0.0.1 does not accept the token", tmp_path)


def test_a_missing_file_is_met_with_the_nearest(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    hint = refused(f"{REPO}/Tiny-Q8_1.gguf", "has no file 'Tiny-Q8_1.gguf'", tmp_path)
    assert hint.startswith("Did you mean ") and Q8 in hint
    assert "BF16, Q4_K_M, Q8_0" in refused(f"{REPO}:Q2_K", f"{REPO} has no Q2_K", tmp_path)


def test_without_a_preferred_quant_the_choices_are_named(
    hub: FakeHub, cache: Path, tmp_path: Path
) -> None:
    del hub.files[Q4]
    hint = refused(REPO, "holds several models and none is the one Q4_K_M: BF16, Q8_0", tmp_path)
    assert hint.startswith(f"Name one: ds4tui pull {REPO}:")
    for name in PARTS:
        del hub.files[name]
    assert fetch(REPO, tmp_path).name == Q8  # the only one there is


def test_a_repository_without_ggufs(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    hub.files = {"README.md": b"x"}
    assert "-GGUF" in refused(REPO, "has no GGUF model", tmp_path)
    hub.files = {"model.safetensors": b"x", EYES: b"x"}
    assert "safetensors, which are not read" in refused(REPO, "has no GGUF model", tmp_path)


def test_a_model_without_all_parts_is_no_choice(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    del hub.files[PARTS[2]]
    refused(f"{REPO}/{PARTS[0]}", "but not all parts of it", tmp_path)
    refused(f"{REPO}:BF16", "has no BF16", tmp_path)


def test_no_network(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", unused_address())
    assert "network" in refused(REPO, "127.0.0.1 cannot be reached: Connection ref", tmp_path)


@pytest.mark.parametrize(("status", "hint"), [(429, "patience"), (503, "later"), (500, "later")])
def test_a_hub_that_refuses(
    hub: FakeHub, cache: Path, tmp_path: Path, status: int, hint: str
) -> None:
    hub.status = status
    assert hint in refused(REPO, f"answered {status}", tmp_path)


def test_a_hub_whose_checksum_is_wrong(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    hub.lies_about_checksum = True
    refused(REPO, "arrived damaged", tmp_path)


@pytest.mark.parametrize(
    "info",
    [
        b"<html>hello</html>",
        b"[]",
        b"3",
        b"{}",
        b'{"id": "someone/Tiny-GGUF", "sha": "c1", "siblings": [3]}',
        b'{"id": "someone/Tiny-GGUF", "sha": "c1", "siblings": [{"rfilename": "a-Q4_K_M.gguf"}]}',
        b'{"id": "someone/Tiny-GGUF", "sha": "c1", "siblings": [{"rfilename": "a-Q4_K_M.gguf",'
        b' "size": 3, "blobId": "../../../x"}]}',
        b'{"id": "someone/Tiny-GGUF", "sha": "c1", "siblings": [{"rfilename":'
        b' "../../a-Q4_K_M.gguf", "size": 3, "blobId": "' + b"0" * 40 + b'"}]}',
    ],
)
def test_a_server_that_is_no_hub(hub: FakeHub, cache: Path, tmp_path: Path, info: bytes) -> None:
    hub.info = info
    refused(REPO, "no usable answer|is empty|no GGUF|no checksum", tmp_path)
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.parametrize("where", ["/api/models/", "/resolve/"])
def test_a_hub_that_hangs_up(hub: FakeHub, cache: Path, tmp_path: Path, where: str) -> None:
    hub.hangs_up = where
    assert "network" in refused(REPO, "127.0.0.1 cannot be reached: ", tmp_path)


def test_a_huge_file_is_asked_for_in_pieces(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "PIECE_BYTES", 250_000)
    monkeypatch.setattr(downloading.download, "__defaults__", (lambda seconds: None,))
    hub.drops = [250_000, 1000]
    said: list[PullProgress] = []
    assert fetch(REPO, tmp_path, said).read_bytes() == hub.files[Q4]
    size = len(hub.files[Q4])
    assert hub.fetched == [
        (Q4, "bytes=0-249999"),
        (Q4, "bytes=250000-499999"),
        (Q4, f"bytes=251000-{501_000 - 1}"),
        (Q4, f"bytes=501000-{size - 1}"),
    ]
    assert {p.total_bytes for p in said if p.step == "fetching"} == {size}


def test_a_file_that_is_here_is_not_fetched(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    assert f"ds4tui -m {path}" in refused(str(path), "is a file on this machine", tmp_path)


@pytest.mark.parametrize("name", ["/b:", "a/../b", "a/b/../c.gguf", "a b/c", "a/b:Q4/x.gguf"])
def test_names_that_no_model_has(cache: Path, tmp_path: Path, name: str) -> None:
    refused(name, "not the name|not a file|no model", tmp_path)


def test_too_little_room_is_told_before_anything_is_fetched(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10_000_000))
    assert "HF_HUB_CACHE" in refused(REPO, "has 10 MB free, 17 MB are needed", tmp_path)
    assert hub.fetched == []


def test_a_disk_that_fills_while_writing(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(downloading, "_write_all", full)
    assert "what was fetched is kept" in refused(REPO, "The disk is full", tmp_path)


def test_a_cache_that_cannot_be_written(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(b"a file where the folder should be")
    refused(REPO, "cannot be used", tmp_path)


def test_without_huggingface_hub_the_extra_is_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "ds4tui[hub]" in refused(REPO, "huggingface_hub is needed", tmp_path)


def test_nothing_imports_huggingface_hub_before_it_is_needed() -> None:
    code = "import sys, ds4tui.library.hub, ds4tui.library.pull; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ds4tui.library.hub" in ran.stdout and "huggingface_hub" not in ran.stdout
    assert pulling.ENDPOINT.startswith("https://")
