"""What the families read off a file's keys, and say when a file cannot be right."""

import logging
import math

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError
from ds4tui.kernels.block import BlockShape

log = logging.getLogger(__name__)


def count(gguf: GGUFFile, name: str, default: int | None = None) -> int:
    """A key that must be 1 or more. Raises GGUFError naming it."""
    value = gguf.key(name, int) if default is None else gguf.key(name, int, default)
    if value < 1:
        raise impossible(gguf, f"the key {gguf.architecture}{name} is {value}.")
    return value


def block_shape(gguf: GGUFFile) -> BlockShape:
    """The heads of a block without a window. A head is as wide as `attention.key_length` says,
    else `rope.dimension_count`, else its share of the width."""
    heads = count(gguf, ".attention.head_count")
    kv_heads = count(gguf, ".attention.head_count_kv", heads)
    if heads % kv_heads:
        raise impossible(gguf, f"{heads} query heads cannot share {kv_heads} key heads.")
    key_size = count(gguf, ".attention.key_length", rotary_values(gguf))
    return BlockShape(
        heads=heads,
        kv_heads=kv_heads,
        key_size=key_size,
        value_size=count(gguf, ".attention.value_length", key_size),
        norm_epsilon=gguf.key(".attention.layer_norm_rms_epsilon", float),
        scale=gguf.key(".attention.scale", float, 1 / math.sqrt(key_size)),
    )


def rotary_values(gguf: GGUFFile) -> int:
    """How many values of each head are turned."""
    share = count(gguf, ".embedding_length") // count(gguf, ".attention.head_count")
    whole = gguf.key(".attention.key_length", int, share)
    return count(gguf, ".rope.dimension_count", whole)


def impossible(gguf: GGUFFile, what: str) -> GGUFError:
    return GGUFError(f"{gguf.path.name}: {what}", "Get another conversion of this model.")


def not_read(gguf: GGUFFile, what: str) -> GGUFError:
    return GGUFError(f"{gguf.path.name}: {what}", "Use a model or a conversion without it.")
