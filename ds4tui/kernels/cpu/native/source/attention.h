// Causal attention of a tile of queries over the float32 keys and values of one head.
#pragma once

#include "products.h"

namespace {

// keys [size, capacity] (a column is a row of the sequence), values [capacity, width]
struct HeadRows {
  float *keys, *values;
  int64_t capacity;
  int size, width;
};

// out [depth rows of weights] = weights [n, depth] values [depth, width] for all columns
inline void mix(int n, int depth, Rows weights, const float* values, int width, Rows out) {
  int at = 0;
  for (; at + PANEL <= width; at += PANEL)
    tile(n, depth, values + at, width, weights, {out.at + at, out.stride}, false);
  for (; at < width; at++)
    for (int i = 0; i < n; i++) {
      float total = 0;
      for (int k = 0; k < depth; k++) total += weights.row(i)[k] * values[(int64_t)k * width + at];
      out.row(i)[at] = total;
    }
}

// e^(s - max) of columns `from` to `to`, zero in the rest of 0 .. `all_columns`; their sum.
inline float softmax(float* s, int from, int to, int all_columns) {
  for (int i = 0; i < from; i++) s[i] = 0;
  const int padded = (all_columns + W - 1) / W * W;
  for (int i = to; i < padded; i++) s[i] = -INFINITY;
  // whole vectors from the first that holds a column
  const int start = from / W * W;
  for (int i = start; i < from; i++) s[i] = -INFINITY;
  F most = all(-INFINITY);
  for (int i = start; i < to; i += W) most = larger(most, load(s + i));
  const F peak = all(largest(most));
  F total = {};
  int i = start;
  for (; i < to; i += W) {
    const F v = load(s + i);
    const F e = v < all(-3e38f) ? F{} : exponential(v - peak);
    store(s + i, e);
    total += e;
  }
  for (; i < padded; i++) s[i] = 0;
  return sum(total);
}

// n <= TILE queries q [n, size], scaled; query i sees rows from[i] to seen[i] - 1. `scores` has
// room for n rows of a whole PANEL more than the largest `seen`; `edge` for a panel of keys.
inline void attend(int n, Rows q, const int* from, const int* seen, const HeadRows& kv, Rows scores, Rows out,
                   float* edge) {
  int low = from[0], high = seen[0];
  for (int i = 1; i < n; i++) {
    low = from[i] < low ? from[i] : low;
    high = seen[i] > high ? seen[i] : high;
  }
  low = low / PANEL * PANEL;
  for (int s = low; s < high; s += PANEL) {
    const Rows to = {scores.at + (s - low), scores.stride};
    if (s + PANEL <= kv.capacity) {
      tile(n, kv.size, kv.keys + s, kv.capacity, q, to, false);
      continue;
    }
    const size_t columns = (size_t)(kv.capacity - s);  // the buffer ends inside this panel
    std::memset(edge, 0, sizeof(float) * kv.size * PANEL);
    for (int i = 0; i < kv.size; i++)
      std::memcpy(edge + i * PANEL, kv.keys + i * kv.capacity + s, columns * sizeof(float));
    tile(n, kv.size, edge, PANEL, q, to, false);
  }
  float totals[TILE];
  for (int i = 0; i < n; i++) totals[i] = softmax(scores.row(i), from[i] - low, seen[i] - low, high - low);
  mix(n, high - low, scores, kv.values + (int64_t)low * kv.width, kv.width, out);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < kv.width; j++) out.row(i)[j] /= totals[i];
}

}  // namespace
