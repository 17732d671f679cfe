"""How a picture stands in a timeline: its marker tokens and the rows that are vectors.

As the models' own processors write it (transformers 5.24). One picture is one span, markers and
tiles included. Needs no mlx.

idefics3    a line a row of tiles: <fake_token_around_image><row_1_col_1> 64 vectors ..
            a blank line, <fake_token_around_image><global-img> 64 vectors <fake_token_around_image>
gemma3      <start_of_image> 256 vectors <end_of_image>, between blank lines
qwen        <|vision_start|> vectors <|vision_end|>
deepseek4v  vectors only, some of them learnt, and as many pads in front as its place asks for
            (paired_rows.py)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import shake_256

import numpy as np
import numpy.typing as npt

from ds4tui.cache.timeline import Ids, ImageSpan
from ds4tui.engine.vision.config import VisionConfig
from ds4tui.engine.vision.paired_rows import ALIGNED_TO, PAD, START, pads_before, row_order
from ds4tui.engine.vision.preprocess import Shape

Piece = str | int  # a text of markers, or how many vectors
Encode = Callable[[str], Sequence[int]]  # text to ids, the texts of control tokens to theirs
Positions = npt.NDArray[np.int32]

FAKE, OVERVIEW = "<fake_token_around_image>", "<global-img>"
PLACEHOLDERS = {
    "idefics3": "<image>",
    "gemma3": "<image_soft_token>",
    "qwen2vl_merger": "<|image_pad|>",
    "qwen2.5vl_merger": "<|image_pad|>",
    "qwen3vl_merger": "<|image_pad|>",
    "deepseek4v": "<｜deepseek_image｜>",
}
# What the vocabulary of a text model must have as tokens of their own.
MARKERS = {
    "idefics3": (FAKE, OVERVIEW),
    "gemma3": ("<start_of_image>", "<end_of_image>"),
    "qwen2vl_merger": ("<|vision_start|>", "<|vision_end|>"),
    "qwen2.5vl_merger": ("<|vision_start|>", "<|vision_end|>"),
    "qwen3vl_merger": ("<|vision_start|>", "<|vision_end|>"),
    "deepseek4v": (PLACEHOLDERS["deepseek4v"],),
}
# Plain text before and behind a picture, which is spelt with what stands next to it.
AROUND = {"gemma3": "\n\n"}
# A row that is a vector of a model whose vocabulary has no token for such rows.
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """The rows of one picture.

    token_ids [R]: the model's own; is_vector bool [R]: which rows take vectors, in their order.
    positions int32 [3, R] from the block's first, in time, height and width, and `advance`, how
    many of them the block takes, for models that tell these apart; else None and R. seen_whole:
    rows of vectors that touch see each other, both ways. around: plain text that stands before
    the rows and behind them. order int64 [V]: which of the encoder's vectors the rows take; None:
    each in its turn. aligned_to: what `at` puts pads in front for; 1: nothing.
    """

    token_ids: tuple[int, ...]
    is_vector: npt.NDArray[np.bool_]
    advance: int
    positions: Positions | None = None
    seen_whole: bool = False
    around: str = ""
    order: npt.NDArray[np.int64] | None = None
    aligned_to: int = 1

    @property
    def rows(self) -> int:
        return len(self.token_ids)

    def at(self, start: int) -> "ImageBlock":
        """With the pads that it has in front where its first row stands at `start`."""
        if self.aligned_to == 1 or self.order is None:
            return self
        count = pads_before(start)
        pad = self.order[0] + PAD - START  # it begins with the vector of the start
        return replace(
            self,
            token_ids=self.token_ids[:1] * count + self.token_ids,
            is_vector=np.ones(count + self.rows, np.bool_),
            advance=count + self.rows,
            order=np.r_[np.full(count, pad), self.order],
            aligned_to=1,
        )

    def span(self, start: int, fingerprint: bytes) -> ImageSpan:
        """Its place in a timeline."""
        return ImageSpan(start, self.rows, fingerprint, self.token_ids)

    def sight(self) -> npt.NDArray[np.int32]:
        """int32 [R]: the end of what each row sees: itself, or its run of vectors."""
        sight = np.arange(1, self.rows + 1, dtype=np.int32)
        if self.seen_whole:
            edges = np.flatnonzero(np.diff(np.r_[False, self.is_vector, False].astype(np.int8)))
            for start, end in edges.reshape(-1, 2):
                sight[start:end] = end
        return sight


def pieces(config: VisionConfig, shape: Shape) -> tuple[Piece, ...]:
    """What stands in the prompt, where the file names no tokens of its own."""
    if config.projector == "idefics3":
        return _tiles(config.vectors, *shape.grid)
    if config.projector == "gemma3":
        return "<start_of_image>", config.vectors, "<end_of_image>"
    rows, columns = shape.grid
    return "<|vision_start|>", rows * columns, "<|vision_end|>"


def missing_markers(config: VisionConfig, encode: Encode) -> tuple[str, ...]:
    """Those markers that are no tokens of the text model; none are needed where the file names
    tokens of its own."""
    if config.opening_ids or config.closing_ids:
        return ()
    return tuple(text for text in MARKERS[config.projector] if len(encode(text)) != 1)


def _tiles(vectors: int, rows: int, columns: int) -> tuple[Piece, ...]:
    parts: list[Piece] = []
    text = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            parts += [f"{text}{FAKE}<row_{row}_col_{column}>", vectors]
            text = ""
        text = "\n"
    return *parts, f"{text}{text}{FAKE}{OVERVIEW}", vectors, FAKE


def block(
    config: VisionConfig, shape: Shape, encode: Encode, placeholder: int = NO_TOKEN
) -> ImageBlock:
    """The rows of a picture of `shape`; `placeholder` is the model's token for rows of vectors.
    Raises what `encode` raises."""
    if config.projector == "deepseek4v":
        return _of_learnt_rows(shape, placeholder)
    ids: list[int] = []
    is_vector: list[bool] = []
    for piece in _own_pieces(config, shape) or pieces(config, shape):
        if isinstance(piece, int):
            new = [placeholder] * piece
        else:
            new = list(encode(piece) if isinstance(piece, str) else piece)
        ids += new
        is_vector += [isinstance(piece, int)] * len(new)
    flags = np.array(is_vector)
    if not config.is_qwen:
        whole, around = config.projector == "gemma3", AROUND.get(config.projector, "")
        return ImageBlock(tuple(ids), flags, len(ids), seen_whole=whole, around=around)
    positions = in_three_directions(flags, shape.grid)
    return ImageBlock(tuple(ids), flags, int(positions.max()) + 1, positions)


def _of_learnt_rows(shape: Shape, placeholder: int) -> ImageBlock:
    order = row_order(*shape.grid)
    return ImageBlock(
        token_ids=(placeholder,) * len(order),
        is_vector=np.ones(len(order), np.bool_),
        advance=len(order),
        seen_whole=True,
        order=order,
        aligned_to=ALIGNED_TO,
    )


def _own_pieces(
    config: VisionConfig, shape: Shape
) -> tuple[tuple[int, ...], int, tuple[int, ...]] | None:
    if shape.squares != 1 or not (config.opening_ids or config.closing_ids):
        return None
    rows, columns = shape.grid
    return (
        config.opening_ids,
        rows * columns if config.is_qwen else config.vectors,
        config.closing_ids,
    )


def in_three_directions(is_vector: npt.NDArray[np.bool_], grid: tuple[int, int]) -> Positions:
    """Text counts on in all three; vectors stand still in time, and count their row and column
    from where they begin; what follows goes on behind the largest (Qwen's `get_rope_index`)."""
    first, (rows, columns) = int(is_vector.argmax()), grid
    positions = np.tile(np.arange(len(is_vector), dtype=np.int32), (3, 1))
    down, right = np.divmod(np.arange(rows * columns, dtype=np.int32), np.int32(columns))
    positions[:, is_vector] = first + np.stack([np.zeros_like(down), down, right])
    positions[:, first + rows * columns :] += max(grid) - rows * columns
    return positions


def row_ids(fingerprint: bytes, rows: int) -> Ids:
    """int64 [rows], all negative: what stands for the rows of a picture in a timeline. Of two
    pictures they differ from the first row on."""
    values = np.frombuffer(shake_256(fingerprint).digest(8 * rows), "<i8").astype(np.int64)
    return values | np.int64(-(2**63))
