"""Models of the Hugging Face hub, fetched into its own cache, where other programs find them too.

huggingface_hub asks the hub, holds the token and lays out the cache; the bytes are fetched by
download.py, because huggingface_hub (2.4) begins a file anew when its process was killed, and
does not compare checksums on plain HTTP. Its variables are respected: HF_TOKEN, HF_ENDPOINT,
HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
(1) A blob gets its own name by renaming a file whose checksum was verified;
(2) what is half fetched is kept and gone on with;
(3) a model that is there is found without asking anybody.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ds4tui.errors import DownloadError, GGUFError
from ds4tui.files import move_into_place, write_atomically
from ds4tui.library import checksum
from ds4tui.library.discover import snapshots
from ds4tui.library.download import check_space, disk_error, download, length_of
from ds4tui.library.hub_errors import Unreachable, hub_hints, telling_what_went_wrong
from ds4tui.library.hub_names import (
    PREFERRED_QUANTS,
    HubModel,
    HubName,
    choose,
    is_vision_part,
    models_of,
)
from ds4tui.library.locks import only_one
from ds4tui.library.places import hub_cache
from ds4tui.library.progress import PullProgress, Report
from ds4tui.library.web import Address

if TYPE_CHECKING:
    from huggingface_hub import HfApi

ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 10.0  # huggingface_hub's own for such questions


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the repository; `checksum` is its sha256, or the git blob id of a small one."""

    name: str
    size_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class _Repository:
    name: str  # as the hub has it: a renamed one answers with its new name
    commit: str
    files: dict[str, _File]


def pull_from_hub(text: str, report: Report = lambda at: None) -> Path:
    """The file (of a split model, its first part) in the hub's cache; fetched if it is not there.

    What `report` raises stops it; run again it goes on. Raises DownloadError.
    """
    wanted = HubName.parse(text)
    cache = hub_cache()
    present = _present(wanted, cache)
    if present is not None and _is_sound(present):
        return present
    if _is_set(os.environ.get("HF_HUB_OFFLINE")):
        return _any_present(wanted, cache, _offline(wanted, cache))
    api = _api()
    try:
        with telling_what_went_wrong(wanted, api.endpoint):
            repository = _ask(api, wanted, report)
    except Unreachable as exc:  # a model that is there will do
        return _any_present(wanted, cache, exc)
    model = choose(wanted, repository.files)
    _tell_choice(wanted, model, repository, report)
    try:
        return _fetch_all(api, repository, model, cache, report, is_suspect=present is not None)
    except OSError as exc:
        raise disk_error(cache, exc) from exc


# -- what is there -----------------------------------------------------------------------------


def repository_folder(repo: str, cache: Path) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def _present(wanted: HubName, cache: Path, any_quant: bool = False) -> Path | None:
    """The first file of what `wanted` means, if all of it is there. Without a quantisation in
    the name only the preferred one will do, unless `any_quant`."""
    for snapshot in snapshots(repository_folder(wanted.repo, cache)):
        names = [
            path.relative_to(snapshot).as_posix()
            for path in snapshot.rglob("*.gguf")
            if os.path.isfile(path)
        ]
        try:
            model = choose(wanted, names)
        except DownloadError:
            continue
        named = wanted.file or wanted.quant
        if named or any_quant or model.quant == PREFERRED_QUANTS[0]:
            return snapshot / model.files[0]
    return None


def _is_sound(path: Path) -> bool:
    """Whether the header fits the file: a torn copy is fetched again."""
    from ds4tui.engine.gguf import GGUFFile

    try:
        GGUFFile.open(path).close()
    except GGUFError:
        return False
    return True


def _any_present(wanted: HubName, cache: Path, otherwise: DownloadError) -> Path:
    found = _present(wanted, cache, any_quant=True)
    if found is None or not _is_sound(found):
        raise otherwise
    return found


def _offline(wanted: HubName, cache: Path) -> DownloadError:
    return DownloadError(
        f"HF_HUB_OFFLINE is set, and {wanted} is not in {cache}.",
        "Unset it and run the same command again.",
    )


def _is_set(value: str | None) -> bool:
    return (value or "").strip().upper() in ("1", "ON", "YES", "TRUE")


# -- what the hub says -------------------------------------------------------------------------


def _api() -> "HfApi":
    try:
        from huggingface_hub import HfApi
    except ImportError as exc:
        raise DownloadError(
            f"The package huggingface_hub is needed for models of the hub: {exc}.",
            "Install it: pip install 'ds4tui[hub]'",
        ) from exc
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT)


def _ask(api: "HfApi", wanted: HubName, report: Report) -> _Repository:
    report(PullProgress(f"asking {api.endpoint} about {wanted.repo}"))
    info = api.model_info(wanted.repo, files_metadata=True, timeout=TIMEOUT_S)
    if info.sha is None:
        raise DownloadError(f"{wanted.repo} is empty.", "Choose another repository.")
    files = {s.rfilename: _file(s) for s in info.siblings or () if _is_inside(s.rfilename)}
    return _Repository(info.id, info.sha, files)


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _file(sibling: Any) -> _File:
    known = (sibling.lfs.sha256 if sibling.lfs else sibling.blob_id) or ""
    # It becomes a file's name: nothing else may.
    return _File(sibling.rfilename, sibling.size or 0, known if checksum.is_checksum(known) else "")


def _tell_choice(wanted: HubName, model: HubModel, repository: _Repository, report: Report) -> None:
    if not (wanted.file or wanted.quant) and len(models_of(repository.files)) > 1:
        others = [m.words for m in models_of(repository.files) if m != model]
        words = f"taking {model.words}; there are also {', '.join(dict.fromkeys(others))}"
        report(PullProgress(words, lasting=True))
    eyes = [f for f in repository.files.values() if is_vision_part(f.name) and ".gguf" in f.name]
    if eyes and not is_vision_part(model.files[0]):
        listed = ", ".join(f"{f.name} ({f.size_bytes / 1e6:,.0f} MB)" for f in eyes)
        report(PullProgress(f"for images the repository has {listed}", lasting=True))


# -- fetching ----------------------------------------------------------------------------------


def _fetch_all(
    api: "HfApi",
    repository: _Repository,
    model: HubModel,
    cache: Path,
    report: Report,
    is_suspect: bool,
) -> Path:
    """`is_suspect`: what is there is read again and compared."""
    folder = repository_folder(repository.name, cache)
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    locks = cache / ".locks" / folder.name
    locks.mkdir(parents=True, exist_ok=True)
    files = [repository.files[name] for name in model.files]
    for file in files:
        if not file.checksum:
            raise DownloadError(
                f"The hub gives no checksum of {file.name}: it would not be known to be right.",
                "Choose another repository.",
            )
    paths = []
    with only_one(locks / "ds4tui.lock", report):
        missing = sum(f.size_bytes - _have(f, folder) for f in files)
        if missing > 0:
            check_space(folder, missing)
        for number, file in enumerate(files, 1):
            part = f" part {number} of {len(files)}" if len(files) > 1 else ""
            blob = folder / "blobs" / file.checksum
            if is_suspect:
                _drop_if_wrong(blob, file, report)
            if length_of(blob) != file.size_bytes:
                with telling_what_went_wrong(HubName(repository.name, file.name), api.endpoint):
                    address = _address(api, repository, file)
                _fetch(address, file, blob, report, f"fetching{part}")
            paths.append(_link(api, repository, file, cache))
        write_atomically(folder / "refs" / "main", repository.commit.encode())
    return paths[0]


def _have(file: _File, folder: Path) -> int:
    blob = folder / "blobs" / file.checksum
    return min(file.size_bytes, length_of(blob) or length_of(_half(blob)))


def _half(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.ds4tui.incomplete")


def _drop_if_wrong(blob: Path, file: _File, report: Report) -> None:
    if blob.exists() and not checksum.matches(blob, file.checksum, report):
        report(PullProgress(f"{file.name} is damaged and is fetched again", lasting=True))
        blob.unlink()


def _address(api: "HfApi", repository: _Repository, file: _File) -> Address:
    """Where the file is, having asked whether we may have it."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(repository.name, file.name, revision=repository.commit, endpoint=api.endpoint)
    metadata = get_hf_file_metadata(url, token=None, endpoint=api.endpoint)
    if metadata.etag != file.checksum:
        raise DownloadError(
            f"The hub says two things about {file.name}: its checksum is {file.checksum} "
            f"and {metadata.etag}.",
            "Try again later: run the same command.",
        )
    token = None if _is_set(os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")) else get_token()
    authorization = f"Bearer {token}" if token else None
    return Address(url, authorization, hub_hints(repository.name, api.endpoint))


def _fetch(address: Address, file: _File, blob: Path, report: Report, step: str) -> None:
    half = _half(blob)
    resumed = half.exists()
    while True:
        if length_of(half) < file.size_bytes:
            download(address, half, file.size_bytes, report, step=step)
        if length_of(half) == file.size_bytes and checksum.matches(half, file.checksum, report):
            with open(half, "rb+") as whole:
                os.fsync(whole.fileno())
            return move_into_place(half, blob)
        half.unlink()
        if not resumed:
            raise DownloadError(
                f"{file.name} arrived damaged: its checksum is not {file.checksum}.",
                "Run the same command again; if it stays so, the server or a proxy is at fault.",
            )
        # What was kept may be of a torn write: once more, from its beginning.
        resumed = False


def _link(api: "HfApi", repository: _Repository, file: _File, cache: Path) -> Path:
    """Let huggingface_hub name the blob in the snapshot."""
    with telling_what_went_wrong(HubName(repository.name, file.name), api.endpoint):
        path = api.hf_hub_download(
            repository.name, file.name, revision=repository.commit, cache_dir=cache
        )
    return Path(path)
