// y = x W^T + b for W in any block format: few rows of x with weights decoded in registers, many
// rows with a panel of weights decoded once into the cache.
#pragma once

#include "quants.h"

namespace {

struct Matrix {
  const uint8_t* data;
  const float* bias;     // or null
  const int64_t* order;  // row r of W is row order[r] of the data, or null
  int64_t row_bytes;
  int32_t type, out, in;
  int32_t unused;
  const uint8_t* row(int64_t r) const { return data + (order ? order[r] : r) * row_bytes; }
};

// Rows of floats: element (t, i) is at[t * stride + i].
struct Rows {
  float* at;
  int64_t stride;
  float* row(int64_t t) const { return at + t * stride; }
};

#define FOR_TYPE(type, Block, ...)                                              \
  switch (type) {                                                               \
    case F32: { using Block = BlockF32; __VA_ARGS__; break; }                   \
    case F16: { using Block = BlockF16; __VA_ARGS__; break; }                   \
    case BF16: { using Block = BlockBF16; __VA_ARGS__; break; }                 \
    case Q4_0: { using Block = BlockQ4_0; __VA_ARGS__; break; }                 \
    case Q4_1: { using Block = BlockQ4_1; __VA_ARGS__; break; }                 \
    case Q5_0: { using Block = BlockQ5_0; __VA_ARGS__; break; }                 \
    case Q5_1: { using Block = BlockQ5_1; __VA_ARGS__; break; }                 \
    case Q8_0: { using Block = BlockQ8_0; __VA_ARGS__; break; }                 \
    case Q4_K: { using Block = BlockQ4_K; __VA_ARGS__; break; }                 \
    case Q5_K: { using Block = BlockQ5_K; __VA_ARGS__; break; }                 \
    case Q6_K: { using Block = BlockQ6_K; __VA_ARGS__; break; }                 \
  }

// -- decoding ------------------------------------------------------------------------------------

// `count` weights from the start of a block on, to `to`, which has room for a whole GROUP more.
template <class B>
void decode(const uint8_t* row, int count, float* to) {
  each_group<B>(row, count, [&](int at, const F* w) __attribute__((always_inline)) {
    for (int i = 0; i < PARTS; i++) store(to + at + i * W, w[i]);
  });
}

inline void decode(int type, const uint8_t* row, int count, float* to) {
  FOR_TYPE(type, B, decode<B>(row, count, to))
}

inline int64_t bytes_before(int type, int column) {
  int64_t bytes = 0;
  FOR_TYPE(type, B, bytes = (int64_t)column * B::bytes / B::count)
  return bytes;
}

// -- few rows of x -------------------------------------------------------------------------------

constexpr int FEW = 4;  // rows of x that are multiplied with weights decoded once

// Rows `begin` to `end` of W with N rows of x, which are padded with zeros to whole GROUPs.
template <class B, int N>
void dots(const Matrix& m, int begin, int end, Rows x, Rows y, bool add) {
  for (int r = begin; r < end; r++) {
    F sums[N][PARTS > 4 ? 4 : PARTS] = {};
    constexpr int CHAINS = PARTS > 4 ? 4 : PARTS;
    each_group<B>(m.row(r), m.in, [&](int at, const F* w) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int t = 0; t < N; t++)
#pragma GCC unroll 8
        for (int i = 0; i < PARTS; i++) sums[t][i % CHAINS] += w[i] * load(x.row(t) + at + i * W);
    });
    for (int t = 0; t < N; t++) {
      F total = sums[t][0];
      for (int i = 1; i < CHAINS; i++) total += sums[t][i];
      const float dot = sum(total) + (m.bias ? m.bias[r] : 0);
      float* to = y.row(t) + r;
      *to = add ? *to + dot : dot;
    }
  }
}

template <class B>
void few_rows(const Matrix& m, int begin, int end, Rows x, int count, Rows y, bool add) {
  for (; count >= FEW; count -= FEW) {
    dots<B, FEW>(m, begin, end, x, y, add);
    x.at = x.row(FEW);
    y.at = y.row(FEW);
  }
  if (count & 2) {
    dots<B, 2>(m, begin, end, x, y, add);
    x.at = x.row(2);
    y.at = y.row(2);
  }
  if (count & 1) dots<B, 1>(m, begin, end, x, y, add);
}

inline void few_rows(const Matrix& m, int begin, int end, Rows x, int count, Rows y, bool add) {
  FOR_TYPE(m.type, B, few_rows<B>(m, begin, end, x, count, y, add))
}

// -- many rows of x ------------------------------------------------------------------------------

// c [N, PANEL] (+)= x [N, depth] panel [depth, PANEL], for N <= TILE. Rows of x are addressed as
// base, base + stride and base + 2 strides, which is what an address can say.
template <int N>
void tile_of(int depth, const float* panel, int64_t panel_stride, Rows x, Rows c, bool add) {
  F low[N], high[N];
#pragma GCC unroll 12
  for (int i = 0; i < N; i++) {
    low[i] = add ? load(c.row(i)) : F{};
    high[i] = add ? load(c.row(i) + W) : F{};
  }
  const float* base[(N + 2) / 3];
#pragma GCC unroll 4
  for (int i = 0; i < (N + 2) / 3; i++) base[i] = x.row(3 * i);
  for (int k = 0; k < depth; k++, panel += panel_stride) {
    const F a = load(panel), b = load(panel + W);
#pragma GCC unroll 12
    for (int i = 0; i < N; i++) {
      const F v = all(base[i / 3][(i % 3) * x.stride]);
      low[i] += v * a;
      high[i] += v * b;
    }
#pragma GCC unroll 4
    for (int i = 0; i < (N + 2) / 3; i++) base[i]++;
  }
#pragma GCC unroll 12
  for (int i = 0; i < N; i++) {
    store(c.row(i), low[i]);
    store(c.row(i) + W, high[i]);
  }
}

inline void tile(int n, int depth, const float* panel, int64_t panel_stride, Rows x, Rows c, bool add) {
  switch (n) {
    case 1: return tile_of<1>(depth, panel, panel_stride, x, c, add);
    case 2: return tile_of<2>(depth, panel, panel_stride, x, c, add);
    case 3: return tile_of<3>(depth, panel, panel_stride, x, c, add);
    case 4: return tile_of<4>(depth, panel, panel_stride, x, c, add);
    case 5: return tile_of<5>(depth, panel, panel_stride, x, c, add);
    case 6: return tile_of<6>(depth, panel, panel_stride, x, c, add);
#if !defined(__AVX2__) || defined(__AVX512F__)
    case 7: return tile_of<7>(depth, panel, panel_stride, x, c, add);
    case 8: return tile_of<8>(depth, panel, panel_stride, x, c, add);
    case 9: return tile_of<9>(depth, panel, panel_stride, x, c, add);
    case 10: return tile_of<10>(depth, panel, panel_stride, x, c, add);
    case 11: return tile_of<11>(depth, panel, panel_stride, x, c, add);
    case 12: return tile_of<12>(depth, panel, panel_stride, x, c, add);
#endif
  }
}

constexpr int DEPTH = 512;  // columns of a panel: it stays in the second cache

struct alignas(64) PanelSpace {
  float decoded[PANEL][DEPTH + GROUP];
  float panel[DEPTH * PANEL];
};

// Columns `from` to `from + depth` of rows `first` to `first + rows` as panel [depth, PANEL].
inline void make_panel(const Matrix& m, int first, int rows, int from, int depth, PanelSpace& space) {
  const int64_t skipped = bytes_before(m.type, from);
  for (int r = 0; r < PANEL; r++) {
    if (r < rows)
      decode(m.type, m.row(first + r) + skipped, depth, space.decoded[r]);
    else
      std::memset(space.decoded[r], 0, sizeof space.decoded[r]);
  }
  for (int k = 0; k < depth; k += W)
    for (int r = 0; r < PANEL; r += W) {
      F square[W];
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) square[i] = load(&space.decoded[r + i][k]);
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < W; i++) store(space.panel + (k + i) * PANEL + r, square[i]);
    }
}

// y[:, first .. first + PANEL) (+)= x W^T for `count` rows; columns behind m.out are not touched.
inline void many_rows(const Matrix& m, int first, Rows x, int count, Rows y, bool add, PanelSpace& space) {
  const int rows = m.out - first < PANEL ? m.out - first : PANEL;
  for (int from = 0; from < m.in; from += DEPTH) {
    const int depth = m.in - from < DEPTH ? m.in - from : DEPTH;
    make_panel(m, first, rows, from, depth, space);
    for (int t = 0; t < count; t += TILE) {
      const int n = count - t < TILE ? count - t : TILE;
      const Rows in = {x.row(t) + from, x.stride};
      Rows out = {y.row(t) + first, y.stride};
      const bool adds = add || from > 0;
      if (rows == PANEL) {
        tile(n, depth, space.panel, PANEL, in, out, adds);
        continue;
      }
      float edge[TILE * PANEL] = {};
      for (int i = 0; adds && i < n; i++) std::memcpy(edge + i * PANEL, out.row(i), rows * sizeof(float));
      tile(n, depth, space.panel, PANEL, in, {edge, PANEL}, adds);
      for (int i = 0; i < n; i++) std::memcpy(out.row(i), edge + i * PANEL, rows * sizeof(float));
    }
  }
  if (m.bias)
    for (int t = 0; t < count; t++)
      for (int r = 0; r < rows; r++) y.row(t)[first + r] += m.bias[first + r];
}

}  // namespace
