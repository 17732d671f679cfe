"""What people write for a model of the Hugging Face hub, and which files of a repository it means.

Pure: names in, names out. Known forms: owner/repo, owner/repo/path/file.gguf, owner/repo:QUANT
(as llama.cpp and Ollama have it), each with hf.co/, hf:// or https://huggingface.co/ before it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath

from ds4tui.errors import DownloadError

# The usual middle between size and quality; what llama.cpp takes when nothing is named.
PREFERRED_QUANTS = ("Q4_K_M", "UD-Q4_K_M", "Q4_K_XL", "UD-Q4_K_XL")

_PREFIX = re.compile(r"^(?:hf://|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/|hf\.co/)")
_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
_QUANT = re.compile(
    r"(?:^|[-_./])(?P<quant>(?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))"
    r"(?=$|[-_./])",
    re.IGNORECASE,
)
_REPO_PART = re.compile(r"[\w][\w.-]{0,95}", re.ASCII)


class NothingToPull(DownloadError):
    """The name is wrong."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class HubName:
    """`file` is a path inside the repository, `quant` a label such as Q4_K_M; "" if not given."""

    repo: str
    file: str = ""
    quant: str = ""

    def __str__(self) -> str:
        return self.repo + (
            f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        )

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Raises NothingToPull if `text` is no such name."""
        rest = _PREFIX.sub("", text.strip())
        rest = re.sub(r"^([^/]+/[^/]+)/(?:blob|resolve)/[^/]+/", r"\1/", rest).rstrip("/")
        owner, _, rest = rest.partition("/")
        repo, _, file = rest.partition("/")
        repo, _, quant = repo.partition(":")
        parts = (owner, repo, quant or "Q4_0")
        if not all(map(_REPO_PART.fullmatch, parts)) or (file and quant):
            raise NothingToPull(
                f"{text!r} is not the name of a model on the hub.",
                "Write owner/repo, owner/repo:Q4_K_M or owner/repo/file.gguf.",
            )
        if ".." in file.split("/") or file.startswith("/"):
            raise NothingToPull(f"{file!r} is not a file of a repository.", "Write owner/repo.")
        return cls(f"{owner}/{repo}", file, quant)


def looks_like_hub_name(text: str) -> bool:
    """Whether `text` can only mean the hub: catalogue names have no slash."""
    return "/" in text and not text.startswith(("/", "./", "../", "~"))


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model of a repository: its files (all parts, in order) and quantisation label."""

    files: tuple[str, ...]
    quant: str

    @property
    def words(self) -> str:
        return self.quant or PurePosixPath(self.files[0]).name


def quant_of(file: str) -> str:
    """The label in a file's name ("Q4_K_M"; "" if there is none): the last one that it has,
    the folder's if only that has one."""
    found = _QUANT.findall(_without_part(PurePosixPath(file).name).removesuffix(".gguf"))
    found = found or _QUANT.findall(str(PurePosixPath(file).parent))
    return found[-1].upper() if found else ""


def _without_part(name: str) -> str:
    part = _PART.match(name)
    return part["stem"] if part else name


def is_vision_part(file: str) -> bool:
    """mmproj files hold the image encoder of the model beside them."""
    return "mmproj" in PurePosixPath(file).name.lower()


def models_of(files: Iterable[str]) -> list[HubModel]:
    """The models among the files of a repository, sorted; those that lack parts are left out."""
    whole: list[HubModel] = []
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for file in sorted(files):
        if not file.lower().endswith(".gguf") or is_vision_part(file):
            continue
        if part := _PART.match(file):
            parts.setdefault((part["stem"], int(part["count"])), {})[int(part["number"])] = file
        else:
            whole.append(HubModel((file,), quant_of(file)))
    for (_, count), found in parts.items():
        if sorted(found) == list(range(1, count + 1)):
            whole.append(HubModel(tuple(found[n] for n in sorted(found)), quant_of(found[1])))
    return sorted(whole, key=lambda model: model.files)


def choose(wanted: HubName, files: Iterable[str]) -> HubModel:
    """The one model that `wanted` means. Raises DownloadError that names the choices."""
    names = list(files)
    if wanted.file:
        return _named_file(wanted, names)
    models = models_of(names)
    if not models:
        raise _nothing_there(wanted, names)
    if wanted.quant:
        return _named_quant(wanted, models)
    if len(models) == 1:
        return models[0]
    for quant in PREFERRED_QUANTS:
        found = [model for model in models if model.quant == quant]
        if len(found) == 1:
            return found[0]
    raise DownloadError(
        f"{wanted.repo} holds several models and none is the one {PREFERRED_QUANTS[0]}: "
        f"{_listed(models)}.",
        f"Name one: ds4tui pull {wanted.repo}{_example(models)}",
    )


def _named_file(wanted: HubName, names: list[str]) -> HubModel:
    for file in (wanted.file, f"{wanted.file}.gguf"):
        if file in names and is_vision_part(file):
            return HubModel((file,), quant_of(file))
        for model in models_of(names):
            if file in model.files:
                return model
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    by_lower = {name.lower(): name for name in ggufs}
    close = get_close_matches(wanted.file.lower(), by_lower, n=3, cutoff=0.5)
    if not ggufs:
        raise _nothing_there(wanted, names)
    if wanted.file in ggufs:
        raise DownloadError(
            f"{wanted.repo} has {wanted.file}, but not all parts of it.", "Choose another file."
        )
    raise DownloadError(
        f"{wanted.repo} has no file {wanted.file!r}.",
        f"Did you mean {' or '.join(by_lower[name] for name in close)}?"
        if close
        else f"It has {_listed(models_of(names))}.",
    )


def _named_quant(wanted: HubName, models: list[HubModel]) -> HubModel:
    asked = wanted.quant.upper()
    for label in (asked, f"UD-{asked}"):
        found = [model for model in models if model.quant == label]
        if len(found) == 1:
            return found[0]
        if found:
            raise DownloadError(
                f"{wanted.repo} holds several models as {label}: "
                f"{', '.join(model.files[0] for model in found)}.",
                f"Name the file: ds4tui pull {wanted.repo}/{found[0].files[0]}",
            )
    raise DownloadError(f"{wanted.repo} has no {wanted.quant}.", f"It has {_listed(models)}.")


def _nothing_there(wanted: HubName, names: list[str]) -> DownloadError:
    if any(name.endswith(".safetensors") for name in names):
        what = "safetensors, which are not read; look for a conversion to GGUF, often in a "
        hint = f"It holds {what}repository whose name ends in -GGUF."
    else:
        hint = "Choose a repository that holds .gguf files: their names often end in -GGUF."
    return DownloadError(f"{wanted.repo} has no GGUF model.", hint)


def _listed(models: list[HubModel], most: int = 12) -> str:
    words = list(dict.fromkeys(model.words for model in models))
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def _example(models: list[HubModel]) -> str:
    middle = models[len(models) // 2]
    alone = [model.quant for model in models].count(middle.quant) == 1
    return f":{middle.quant}" if middle.quant and alone else f"/{middle.files[0]}"
