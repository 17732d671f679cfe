"""A golden file with other keys, tensors or types: what a family must read or refuse."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ds4tui.engine.gguf import GGUFFile
from tests.golden.files import golden_path

F32 = gguf.GGMLQuantizationType.F32


def changed(
    name: str,
    path: Path,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    matrices: gguf.GGMLQuantizationType = F32,
) -> GGUFFile:
    """Family `name`'s golden file at `path`: `keys` (without the architecture) and `tensors`
    replace or add, None leaves one out. `matrices` is the type of all with two axes or more."""
    reader = gguf.GGUFReader(golden_path(name))
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, architecture)
    _write_keys(writer, reader, {f"{architecture}.{key}": v for key, v in (keys or {}).items()})
    held = {t.name: _plain(np.asarray(t.data)) for t in reader.tensors}
    for tensor_name, values in (held | (tensors or {})).items():
        if values is None:
            continue
        if values.dtype.kind == "i":  # a table of whole numbers
            writer.add_tensor(tensor_name, values)
            continue
        kind = matrices if values.ndim > 1 and values.shape[-1] % 32 == 0 else F32
        writer.add_tensor(tensor_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile.open(path)


def _plain(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "i" else values.astype(np.float32)


def _write_keys(writer: gguf.GGUFWriter, reader: gguf.GGUFReader, keys: dict[str, Any]) -> None:
    kinds = gguf.GGUFValueType
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in keys:
            continue
        of = field.types[-1] if field.types[0] == kinds.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], of)
    for name, value in keys.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif value is not None:
            writer.add_key_value(name, value, _KINDS[type(value)])


_KINDS = {
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
    bool: gguf.GGUFValueType.BOOL,
}
