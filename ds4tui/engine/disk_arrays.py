"""Layer states as the disk tier has them, and back: host arrays under the names of their dtypes.

What is copied out of a state is in memory of its own, since the state goes on being written to.
What comes back is in the form that each layer works with, MLX's or NumPy's, with the same bits:
bfloat16, which NumPy does not have, travels as uint16.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from ds4tui.cache.kvarrays import DTYPES, Array, HostBounded, HostRows, HostSnapshot, dtype_name
from ds4tui.engine.state import (
    BoundedState,
    IndexedLayer,
    KVLayer,
    LatentLayer,
    LayerBounded,
    LayerRows,
    LayerState,
    PoolLayer,
    RawRowsLayer,
    RecurrentLayer,
    WindowLayer,
)

_ON_DEVICE = (
    KVLayer,
    WindowLayer,
    RecurrentLayer,
    IndexedLayer,
    LatentLayer,
    PoolLayer,
    RawRowsLayer,
)


def is_on_device(layer: LayerState) -> bool:
    """Whether the arrays of a layer are MLX's."""
    return isinstance(layer, _ON_DEVICE)


def host_rows(rows: LayerRows) -> HostRows:
    """Copies. ValueError for a dtype that no record can hold."""
    arrays, names = _host_arrays(rows.arrays)
    return HostRows(arrays, rows.axes, names, rows.pooled)


def host_bounded(bounded: LayerBounded) -> HostBounded:
    """As `host_rows`."""
    return HostBounded(*_host_arrays(bounded.arrays))


def host_snapshot(bounded: BoundedState) -> HostSnapshot:
    """As `host_rows`."""
    layers = (None if layer is None else host_bounded(layer) for layer in bounded.layers)
    return HostSnapshot(bounded.position, tuple(layers))


def layer_rows(rows: HostRows, on_device: bool) -> LayerRows:
    """In the form that a layer works with, to be copied at once: on a host they are views."""
    arrays = _layer_arrays(rows.arrays, rows.dtypes, on_device)
    return LayerRows(arrays, rows.axes, rows.pooled)


def bounded_state(snapshot: HostSnapshot, layers: Sequence[LayerState]) -> BoundedState:
    """For a state of these layers, in arrays that nothing else writes to.

    A window of one row has a bounded part without arrays, of which a record says nothing.
    ValueError for a snapshot of another model.
    """
    if len(snapshot.layers) != len(layers):
        raise ValueError(f"A snapshot of {len(snapshot.layers)} layers, not of {len(layers)}.")
    return BoundedState(
        snapshot.position,
        tuple(
            _layer_bounded(held, is_on_device(layer)) if layer.is_bounded else None
            for held, layer in zip(snapshot.layers, layers, strict=True)
        ),
    )


def _layer_bounded(held: HostBounded | None, on_device: bool) -> LayerBounded:
    if held is None:
        return LayerBounded(())
    copies = held.arrays if on_device else tuple(array.copy() for array in held.arrays)
    return LayerBounded(_layer_arrays(copies, held.dtypes, on_device))


def _host_arrays(arrays: Sequence[Any]) -> tuple[tuple[Array, ...], tuple[str, ...]]:
    pairs = [_host_array(array) for array in arrays]
    return tuple(array for array, _ in pairs), tuple(name for _, name in pairs)


def _host_array(array: Any) -> tuple[Array, str]:
    if not isinstance(array, mx.array):
        return np.array(array, order="C"), dtype_name(array)
    name = str(array.dtype).rpartition(".")[2]
    if name not in DTYPES:
        raise ValueError(f"arrays of {name} cannot be stored")
    bits = array.view(mx.uint16) if name == "bfloat16" else array
    return np.array(bits, order="C"), name


def _layer_arrays(
    arrays: Sequence[Array], names: Sequence[str], on_device: bool
) -> tuple[Any, ...]:
    if not on_device:
        return tuple(arrays)
    pairs = zip(arrays, names, strict=True)
    return tuple(_device_array(array, name) for array, name in pairs)


def _device_array(array: Array, name: str) -> mx.array:
    made = mx.array(np.ascontiguousarray(array))
    return made.view(mx.bfloat16) if name == "bfloat16" else made
