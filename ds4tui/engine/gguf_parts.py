"""The parts of a split model, as llama-gguf-split writes them: NAME-00001-of-00003.gguf and so on.

The first part has all keys of the model; each part has split.no (from 0), split.count,
split.tensors.count (of all parts together) and its own tensors. Source of the layout:
https://github.com/ggml-org/llama.cpp/blob/master/tools/gguf-split/README.md and the keys' names in
its llama-arch.cpp. Each part was checked by itself before (gguf_format.py); here it is checked
that they belong together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ds4tui.engine.gguf_cursor import shown
from ds4tui.engine.gguf_format import MAX_TENSORS, Header, TensorInfo
from ds4tui.errors import GGUFError

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

OTHER_DOWNLOAD = "Download all parts again, into one folder."


def part_paths(path: Path, header: Header) -> list[Path]:
    """The files of the split model that `path` is a part of, first part first.

    Raises GGUFError if its name and its keys disagree, or if a part is not there.
    """
    found = _PART_NAME.fullmatch(path.name)
    expected = f"-{header.part + 1:05}-of-{header.parts:05}.gguf"
    if found is None or not path.name.endswith(expected):
        raise GGUFError(
            f"{path.name} is part {header.part + 1} of {header.parts} of a split model, "
            f"but its name does not end in {expected}: the other parts cannot be found.",
            "Give the parts the names that they were published with.",
        )
    paths = [
        path.with_name(f"{found['stem']}-{number:05}-of-{header.parts:05}.gguf")
        for number in range(1, header.parts + 1)
    ]
    missing = [part.name for part in paths if not part.exists()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise GGUFError(
            f"{path.name} is part {header.part + 1} of {header.parts} of a split model; "
            f"missing beside it: {', '.join(missing[:3])}{more}.",
            "Download the missing parts into the same folder; "
            "`ds4tui pull owner/repo/file.gguf` fetches all of them.",
        )
    return paths


def joined_tensors(paths: Sequence[Path], headers: Sequence[Header]) -> Mapping[str, TensorInfo]:
    """The tensors of all parts in order. Raises GGUFError for parts that do not belong together."""
    tensors: dict[str, TensorInfo] = {}
    for number, (path, header) in enumerate(zip(paths, headers, strict=True)):
        _check_part(path, header, number, headers[0])
        if len(tensors) + len(header.tensors) > MAX_TENSORS:
            raise GGUFError(
                f"{path.name}: up to this part the model has more than {MAX_TENSORS:,} tensors.",
                OTHER_DOWNLOAD,
            )
        for name, info in header.tensors.items():
            if name in tensors:
                raise GGUFError(
                    f"{path.name}: the tensor {shown(name)} stands in "
                    f"{paths[tensors[name].part].name} too.",
                    OTHER_DOWNLOAD,
                )
            tensors[name] = replace(info, part=number)
    _check_count(paths[0], headers[0], len(tensors))
    return MappingProxyType(tensors)


def _check_count(path: Path, first: Header, found: int) -> None:
    declared = first.metadata.get("split.tensors.count")
    if first.parts == 1 or declared is None:
        return
    if type(declared) is not int:
        raise GGUFError(f"{path.name}: split.tensors.count is no whole number.", OTHER_DOWNLOAD)
    if declared != found:
        raise GGUFError(
            f"{path.name}: {declared:,} tensors are declared for all parts, {found:,} are in them.",
            OTHER_DOWNLOAD,
        )


# What the other parts must agree on with the first where they have it; texts or numbers.
_SHARED_KEYS = ("general.architecture", "general.name", "split.tensors.count")


def _check_part(path: Path, header: Header, number: int, first: Header) -> None:
    if (header.part, header.parts) != (number, first.parts):
        raise GGUFError(
            f"{path.name} says that it is part {header.part + 1} of {header.parts}: it does not "
            f"belong to the other parts.",
            OTHER_DOWNLOAD,
        )
    for key in _SHARED_KEYS:
        if number == 0 or key not in header.metadata:
            continue
        ours, theirs = header.metadata[key], first.metadata.get(key)
        if type(ours) not in (int, str) or type(ours) is not type(theirs) or ours != theirs:
            raise GGUFError(
                f"{path.name}: the key {shown(key)} is not that of the first part: "
                f"the parts are of different models.",
                OTHER_DOWNLOAD,
            )
