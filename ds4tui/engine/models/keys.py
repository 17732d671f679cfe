"""What the families read off a file's keys, and say when a file cannot be right."""

import logging
import math
import re

from ds4tui.engine.gguf import GGUFFile
from ds4tui.errors import GGUFError
from ds4tui.kernels.block import BlockShape

log = logging.getLogger(__name__)

_OF_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.")


def count(gguf: GGUFFile, name: str, default: int | None = None) -> int:
    """A key that must be 1 or more. Raises GGUFError naming it."""
    value = gguf.key(name, int) if default is None else gguf.key(name, int, default)
    if value < 1:
        raise impossible(gguf, f"the key {gguf.architecture}{name} is {value}.")
    return value


def positive(gguf: GGUFFile, name: str, default: float | None = None) -> float:
    """A key that must be a finite number above 0. Raises GGUFError naming it."""
    value = gguf.key(name, float) if default is None else gguf.key(name, float, default)
    if not 0 < value < math.inf:  # NaN too
        raise impossible(gguf, f"the key {gguf.architecture}{name} is {value:g}.")
    return value


def block_count(gguf: GGUFFile) -> int:
    """How many blocks there are, by the key and by the tensors alike: a count above what the
    file holds would take memory for nothing, one below it would leave out a part of the model.

    Blocks that a family appends for its own use (of next-token heads) count in both. Raises
    GGUFError with both numbers.
    """
    told = count(gguf, ".block_count")
    numbers = (int(found[1]) for found in map(_OF_BLOCK.match, gguf.tensors) if found)
    held = 1 + max(numbers, default=-1)
    if told != held:
        key = f"{gguf.architecture}.block_count"
        raise impossible(gguf, f"the key {key} is {told:,}, its tensors are of {held:,} blocks.")
    return told


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
        norm_epsilon=positive(gguf, ".attention.layer_norm_rms_epsilon"),
        scale=gguf.key(".attention.scale", float, 1 / math.sqrt(key_size)),
    )


def rotary_values(gguf: GGUFFile) -> int:
    """How many values of each head are turned. Raises GGUFError for a number that is odd or
    above what the heads have."""
    heads = count(gguf, ".attention.head_count")
    share = count(gguf, ".embedding_length") // heads
    whole = gguf.key(".attention.key_length", int, share)
    rotary = count(gguf, ".rope.dimension_count", whole)
    size = _head_size(gguf, heads) or gguf.key(".attention.key_length", int, rotary)
    if rotary % 2 or rotary > size:
        raise impossible(gguf, f"{rotary} rotary values do not fit heads of {size}.")
    return rotary


def _head_size(gguf: GGUFFile, heads: int) -> int:
    """That of the first block's queries, 0 if it cannot be told."""
    queries = gguf.tensors.get("blk.0.attn_q.weight")
    return 0 if queries is None or not queries.shape else queries.shape[0] // heads


def impossible(gguf: GGUFFile, what: str) -> GGUFError:
    return GGUFError(f"{gguf.path.name}: {what}", "Get another conversion of this model.")


def not_read(gguf: GGUFFile, what: str) -> GGUFError:
    return GGUFError(f"{gguf.path.name}: {what}", "Use a model or a conversion without it.")
