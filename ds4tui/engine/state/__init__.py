"""What a model keeps of the rows it has seen: one layer state a layer, owned by one session.

Invariants (tests name them):
  (1) Outside a forward pass all layers have the same length.
  (2) Rows below `length` are never rewritten: append writes behind them, growing copies them.
  (3) A rewind or rebuild happens in all layers or in none: every layer is asked before.
  (4) Nothing clamps: a length that was never reached is an error.
  (5) `nbytes` is what is allocated, not what is in use.
  (6) What is handed out to be kept (segments, snapshots) aliases nothing that is ever written.
Buffers grow and are copied a layer at a time, so the peak is the state plus one layer.
"""

from ds4tui.engine.state.append_only import HostKVLayer, KVLayer
from ds4tui.engine.state.indexed import IndexedLayer
from ds4tui.engine.state.latent import LatentLayer
from ds4tui.engine.state.layer import LayerBounded, LayerRows, LayerState
from ds4tui.engine.state.model import BoundedState, ModelState, RowPart, RowSegment, RowSource
from ds4tui.engine.state.pooled import Needed, PoolLayer, RawAndPools, RawRowsLayer
from ds4tui.engine.state.recurrent import HostRecurrentLayer, NGramLayer, RecurrentLayer
from ds4tui.engine.state.window import HostWindowLayer, WindowLayer

__all__ = [
    "BoundedState",
    "HostKVLayer",
    "HostRecurrentLayer",
    "HostWindowLayer",
    "IndexedLayer",
    "KVLayer",
    "LatentLayer",
    "LayerBounded",
    "LayerRows",
    "LayerState",
    "ModelState",
    "NGramLayer",
    "Needed",
    "PoolLayer",
    "RawAndPools",
    "RawRowsLayer",
    "RecurrentLayer",
    "RowPart",
    "RowSegment",
    "RowSource",
    "WindowLayer",
]
