"""A copy of a GGUF file with every tensor in float32: the same weights, nothing left to round."""

from pathlib import Path

import gguf


def write_dequantised(source: Path, target: Path) -> None:
    """Tokenizer and other keys are kept; tensors are dequantised by gguf's reference code."""
    reader = gguf.GGUFReader(source)
    kinds = gguf.GGUFValueType
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        of = field.types[-1] if field.types[0] == kinds.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], of)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.reshape(tensor.shape[::-1]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
