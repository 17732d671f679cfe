"""How many rows the buffers of a layer have for a sequence of so many tokens.

Predictions (is there room for this prompt? what context fits?) and the layer states themselves
(engine/state/) read the same numbers here. MLX is not needed.

Buffers of layers that see all rows grow in steps. Those of a layer whose queries see the last
`window` rows only grow up to `window_capacity`:
- window - 1 rows: what the next query sees besides itself.
- A slack of rows before these, `slack_rows`: so far a rewind is always possible without a
  snapshot. What is taken back in a chat without being a turn's border is part of one reply
  (a cancelled one, a tail that tokenises otherwise), and replies are a few hundred tokens; but a
  quarter of the window at most, since snapshots at turn borders serve all else.
- MOVE_ROWS to write to before the rows that are still wanted move to the front: the longest
  prefill chunk (session.CHUNK_SIZES), so that a chunk moves rows once at most. Moving then costs
  window / 512 rows a token, while attention reads `window` of them. These rows are slack too,
  until they are needed.
So a window of 1,024 takes 1.8 times its rows, one of 512 2.4 times, and all of a short context is
kept as if there were no window.
"""

BLOCK_ROWS = 256  # buffers are whole blocks: a short chat grows them rarely
GROWTH_SHARE = 8  # a grown buffer is an eighth longer than needed, so copying stays amortised,
GROWTH_ROWS_MAX = 2048  # but no more rows than this lie idle in a long one

MOVE_ROWS = 512
SLACK_ROWS_MAX = 256
# Of layers that keep pools beside a window of 128 rows: a quarter of it would be less than the
# tails that are taken back in a chat.
RAW_SLACK_ROWS = 256

# The first row of a window's buffer is at a multiple of it: a kernel that works in panels of 16 or
# 32 rows then cuts the sequence at the same positions whatever was moved before, and gives the
# same bits.
ALIGNED_ROWS = 64


def grown_capacity(rows: int) -> int:
    """Rows to allocate when `rows` are needed. Monotone: a state that never held more than
    `rows` never allocates more than this."""
    slack = min(rows // GROWTH_SHARE, GROWTH_ROWS_MAX)
    return -(-(rows + slack) // BLOCK_ROWS) * BLOCK_ROWS


def slack_rows(window: int) -> int:
    """Rows before those that the next query sees which are always kept, once they were there."""
    return min(window // 4, SLACK_ROWS_MAX)


def window_capacity(window: int, slack: int | None = None) -> int:
    """The most rows that the buffers of such a layer have between steps; `slack`: None for
    slack_rows."""
    rows = window - 1 + (slack_rows(window) if slack is None else slack) + MOVE_ROWS
    # As far as the first row may lie before the first wanted one, and a whole number of panels.
    return aligned(rows + 2 * (ALIGNED_ROWS - 1))


def layer_capacity(rows: int, window: int | None, slack: int | None = None) -> int:
    """The most rows that a layer's buffers have for a sequence of up to `rows`, fed in chunks of
    up to MOVE_ROWS. `window`: None for a layer that sees all rows."""
    grown = grown_capacity(rows)
    return grown if window is None else min(grown, window_capacity(window, slack))


def aligned(position: int) -> int:
    """The last position from which a window's buffer may begin so that it holds this one."""
    return position // ALIGNED_ROWS * ALIGNED_ROWS
