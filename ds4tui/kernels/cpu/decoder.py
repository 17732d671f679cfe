"""The CPU twin of a whole decoder step: NumPy from the token ids to the logits.

MLX's small operations cost about 50 µs each on a CPU and a step has hundreds; NumPy's cost 1 to
5 µs. Matrices that read the same rows lie side by side (q, k and v; gate and up), so a block has
four products. What is written in place was made here; what a caller holds is only read.
"""

from collections.abc import Sequence
from typing import Protocol, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ds4tui.kernels.attention import attend_images
from ds4tui.kernels.block import AttentionWeights, BlockShape, BlockWeights, Sight
from ds4tui.kernels.cpu.attention import host_attend
from ds4tui.kernels.cpu.feed_forward import host_feed_forward
from ds4tui.kernels.cpu.linear import HostLinear, host_view, in_numpy
from ds4tui.kernels.cpu.threads import workers
from ds4tui.kernels.decoder import NO_IMAGES, Ends, ImageRows, Logits, Source
from ds4tui.kernels.rope import Turn

Floats = npt.NDArray[np.float32]


class HostAppender(Protocol):
    """Where a block keeps its keys and values (engine/state/)."""

    @property
    def length(self) -> int: ...
    def append(self, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """Add rows; those up to the last one, with all that the new rows' queries see."""


class HostBlock:
    """As `kernels.block.Block`, over float32 NumPy rows [T, width]."""

    def __init__(self, weights: BlockWeights, shape: BlockShape) -> None:
        """Copies the matrices of `weights`, which must be HostLinears, to where it wants them."""
        self.shape, attention = shape, weights.attention
        self._attn_norm, self._ffn_norm = host_view(weights.attn_norm), host_view(weights.ffn_norm)
        self._attn_post_norm = _optional_view(weights.attn_post_norm)
        self._ffn_post_norm = _optional_view(weights.ffn_post_norm)
        self._head_norms = head_norms(attention, shape)
        parts = (attention.q, attention.k, attention.v)
        self._qkv = HostLinear.side_by_side(*(in_numpy(part) for part in parts))
        self._output = in_numpy(attention.output)
        self._feed_forward = host_feed_forward(weights.feed_forward)
        self._workers = workers()

    def __call__(
        self, x: Floats, layer: HostAppender, turn: Turn, sight: Sight | None = None
    ) -> Floats:
        """Tiles of rows are independent but for this: all keys are there before one attends."""
        tiles = self._workers.tiles(len(x))
        qkv, y = np.empty((len(x), self._qkv.shape[0]), np.float32), np.empty_like(x)

        def project(tile: slice) -> None:
            qkv[tile] = self._projected(x[tile], turn.part(tile))

        self._workers.each(tiles, project)
        q, k, v = self._split(qkv)
        keys, values = layer.append(k, v)
        first = keys.shape[1] - len(x)  # of these rows, which may begin late in the sequence
        of_images = None if sight is None else self._of_images((q, keys, values), first, sight)

        def finish(tile: slice) -> None:
            past, shape = first + tile.start, self.shape
            if of_images is None:
                attended = host_attend(q[:, tile], keys, values, shape.scale, past, shape.window)
            else:
                attended = of_images[:, tile]
            mixed = self._norm(self._output.apply(_joined(attended)), self._attn_post_norm)
            y[tile] = self._fed_forward(x[tile] + mixed)

        self._workers.each(tiles, finish)
        return y

    def _of_images(self, qkv: tuple[Floats, Floats, Floats], first: int, sight: Sight) -> Floats:
        """By the reference: steps with images that are seen whole are few."""
        q, k, v = (mx.array(part) for part in qkv)
        return host_view(attend_images(q, k, v, self.shape.scale, first, self.shape.window, sight))

    def _projected(self, x: Floats, turn: Turn) -> Floats:
        """[q | k | v] of rows, with the heads of q and k normalised and turned."""
        shape = self.shape
        qkv = self._qkv.apply(self._norm(x, self._attn_norm))
        heads = shape.heads + shape.kv_heads  # q's and k's are of one size and lie side by side
        turning = qkv[:, : heads * shape.key_size].reshape(len(x), heads, shape.key_size)
        if self._head_norms is not None:
            turning[...] = self._norm(turning, self._head_norms)
        turn_heads(turning, turn)
        return qkv

    def _split(self, qkv: Floats) -> tuple[Floats, Floats, Floats]:
        """[T, ..] to q [H, T, D], k [Hkv, T, D] and v [Hkv, T, Dv]: views."""
        shape, count = self.shape, len(qkv)
        keys_at = shape.heads * shape.key_size
        values_at = keys_at + shape.kv_heads * shape.key_size
        q = qkv[:, :keys_at].reshape(count, shape.heads, shape.key_size)
        k = qkv[:, keys_at:values_at].reshape(count, shape.kv_heads, shape.key_size)
        v = qkv[:, values_at:].reshape(count, shape.kv_heads, shape.value_size)
        return q.swapaxes(0, 1), k.swapaxes(0, 1), v.swapaxes(0, 1)

    def _fed_forward(self, h: Floats) -> Floats:
        fed = self._feed_forward(self._norm(h, self._ffn_norm))
        y = self._norm(fed, self._ffn_post_norm)
        y += h
        return y

    def _norm(self, x: Floats, weight: Floats | None) -> Floats:
        return x if weight is None else rms_norm(x, weight, self.shape.norm_epsilon)


class HostDecoder:
    """As `kernels.decoder.DenseDecoder`; the layers must keep their rows in NumPy."""

    def __init__(self, ends: Ends, blocks: Sequence[HostBlock]) -> None:
        self._embedding, self._output = in_numpy(ends.embedding), in_numpy(ends.output)
        self._norm, self._epsilon = host_view(ends.norm), ends.norm_epsilon
        self._scale, self._blocks = np.float32(ends.embedding_scale), blocks

    def __call__(
        self,
        source: Source,
        layers: Sequence[HostAppender],
        turns: Sequence[Turn],
        logits: Logits,
        images: ImageRows = NO_IMAGES,
    ) -> mx.array | None:
        """As `kernels.decoder.Decoder`."""
        x = self._rows(source)
        for i, (block, layer) in enumerate(zip(self._blocks, layers, strict=True)):
            x = block(x, layer, turns[block.shape.turn], images.sight)
            if i < len(images.added):
                x += images.added[i]
        if logits == "none":
            return None
        wanted = x[-1:] if logits == "last" else x
        return mx.array(self._output.apply(rms_norm(wanted, self._norm, self._epsilon)))

    def _rows(self, source: Source) -> Floats:
        if isinstance(source, mx.array):
            return host_view(source)
        rows = self._embedding.host_rows(source)
        rows *= self._scale
        return rows


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    """Over the last axis; a new array."""
    squares = np.einsum("...i,...i->...", x, x)
    roots = np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(epsilon))
    y = x / roots[..., None]
    y *= weight
    return cast(Floats, y)


def head_norms(weights: AttentionWeights, shape: BlockShape) -> Floats | None:
    """The weights of the norms of q's heads, then of k's: [heads, key_size]."""
    if weights.q_norm is None or weights.k_norm is None:
        return None
    q, k = host_view(weights.q_norm), host_view(weights.k_norm)
    return np.concatenate([np.tile(q, (shape.heads, 1)), np.tile(k, (shape.kv_heads, 1))])


def _optional_view(weight: mx.array | None) -> Floats | None:
    return None if weight is None else host_view(weight)


def turn_heads(x: Floats, turn: Turn) -> None:
    """Rotate the first 2J values of each head of x [T, H, D] in place, as complex numbers."""
    rotary = 2 * turn.factors.shape[1]
    x[..., :rotary].view(np.complex64)[...] *= turn.factors[:, None]


def _joined(x: Floats) -> Floats:
    """[H, T, Dv] to [T, H * Dv]."""
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)
