"""An mmproj with other keys or without some tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf

from tests.engine.changed_gguf import _write_keys


def with_keys(
    source: Path,
    path: Path,
    keys: dict[str, Any],
    left_out: tuple[str, ...] = (),
    renamed: Callable[[str], str] = str,
) -> Path:
    """`source` at `path`: `keys` (full names) replace or add, None leaves one out; the tensors
    are the same bytes."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    _write_keys(writer, reader, keys)
    for t in reader.tensors:
        if t.name not in left_out:
            plain = t.tensor_type == gguf.GGMLQuantizationType.F32
            writer.add_tensor(
                renamed(t.name), t.data, None if plain else t.data.shape, t.tensor_type
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
