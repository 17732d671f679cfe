"""The keys by which an mmproj names the tokens around its pictures itself, for a text model whose
vocabulary lacks idefics3's markers.

    python -m tools.screen_reader.keys MMPROJ COPY

writes a copy that has them (`export` writes them at once); its tensors are the same bytes.
"""

import sys
from pathlib import Path

import gguf

from tools.screen_reader.prompts import BLANK_LINE, FAKE, GLOBAL

# The short form of the prompt, the picture once: see prompts.around_images.
OWN_KEYS = {
    "ds4tui.image.opening_ids": [BLANK_LINE, FAKE, GLOBAL],
    "ds4tui.image.closing_ids": [FAKE],
}


def add_own_keys(writer: gguf.GGUFWriter) -> None:
    for key, ids in OWN_KEYS.items():
        writer.add_array(key, ids)


def finish_copy(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """All tensors as they are, behind the keys that `writer` has been given."""
    for tensor in reader.tensors:
        is_plain = tensor.tensor_type == gguf.GGMLQuantizationType.F32
        shape = None if is_plain else tensor.data.shape
        writer.add_tensor(tensor.name, tensor.data, shape, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in OWN_KEYS:
            continue
        kinds = field.types
        writer.add_key_value(key, field.contents(), kinds[0], kinds[-1] if kinds[1:] else None)
    add_own_keys(writer)
    finish_copy(reader, writer)


if __name__ == "__main__":
    copy(Path(sys.argv[1]), Path(sys.argv[2]))
