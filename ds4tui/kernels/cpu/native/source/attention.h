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

// What one row gave: the largest score, and the sum of e^(score - largest).
struct Weight {
  float largest, total;
};

// e^(s - max) of columns `from` to `to`, zero in the rest of 0 .. `all_columns`.
inline Weight softmax(float* s, int from, int to, int all_columns) {
  const int padded = (all_columns + W - 1) / W * W;
  if (from >= to) {
    for (int i = 0; i < padded; i++) s[i] = 0;
    return {-INFINITY, 0};
  }
  const int start = from / W * W;  // whole vectors from the first that holds a column
  for (int i = 0; i < start; i++) s[i] = 0;
  for (int i = start; i < from; i++) s[i] = -INFINITY;
  for (int i = to; i < padded; i++) s[i] = -INFINITY;
  F most = all(-INFINITY);
  for (int i = start; i < to; i += W) most = larger(most, load(s + i));
  const float peak = largest(most);
  F total = {};
  int i = start;
  for (; i < to; i += W) {
    const F v = load(s + i);
    const F e = v < all(-3e38f) ? F{} : exponential(v - peak);
    store(s + i, e);
    total += e;
  }
  for (; i < padded; i++) s[i] = 0;
  return {peak, sum(total)};
}

struct Tile {
  int n;                     // queries, at most TILE
  Rows q;                    // [n, size], scaled
  const int *from, *seen;    // query i sees rows from[i] to seen[i] - 1 of the sequence,
  int begin, end;            // and of these only `begin` to `end` are looked at
};

// The values of each query weighted by e^(score - largest), not yet divided by the total. `scores`
// has room for n rows of end - begin and two PANELs more; `edge` for a panel of keys.
inline void attend(const Tile& t, const HeadRows& kv, Rows scores, float* edge, Rows out, Weight* weights) {
  int low = t.from[0], high = t.seen[0];
  for (int i = 1; i < t.n; i++) {
    low = t.from[i] < low ? t.from[i] : low;
    high = t.seen[i] > high ? t.seen[i] : high;
  }
  low = (low > t.begin ? low : t.begin) / PANEL * PANEL;
  high = high < t.end ? high : t.end;
  high = high > low ? high : low;
  for (int s = low; s < high; s += PANEL) {
    const Rows to = {scores.at + (s - low), scores.stride};
    if (s + PANEL <= kv.capacity) {
      tile(t.n, kv.size, kv.keys + s, kv.capacity, t.q, to, false);
      continue;
    }
    const size_t columns = (size_t)(kv.capacity - s);  // the buffer ends inside this panel
    std::memset(edge, 0, sizeof(float) * kv.size * PANEL);
    for (int i = 0; i < kv.size; i++)
      std::memcpy(edge + i * PANEL, kv.keys + i * kv.capacity + s, columns * sizeof(float));
    tile(t.n, kv.size, edge, PANEL, t.q, to, false);
  }
  for (int i = 0; i < t.n; i++) {
    const int from = t.from[i] > low ? t.from[i] - low : 0;
    const int to = t.seen[i] < high ? t.seen[i] - low : high - low;
    weights[i] = softmax(scores.row(i), from, to, high - low);
  }
  mix(t.n, high - low, scores, kv.values + (int64_t)low * kv.width, kv.width, out);
}

// to [width] = the parts [parts, width] put together and divided by their total.
inline void join(int parts, const float* values, int64_t stride, const Weight* weights, int64_t weight_stride,
                 int width, float* to) {
  float peak = -INFINITY, total = 0;
  for (int p = 0; p < parts; p++) peak = weights[p * weight_stride].largest > peak ? weights[p * weight_stride].largest : peak;
  for (int j = 0; j < width; j++) to[j] = 0;
  for (int p = 0; p < parts; p++) {
    const Weight w = weights[p * weight_stride];
    if (w.largest == -INFINITY) continue;
    const float share = std::exp(w.largest - peak);
    total += share * w.total;
    for (int j = 0; j < width; j++) to[j] += share * values[p * stride + j];
  }
  for (int j = 0; j < width; j++) to[j] /= total;
}

}  // namespace
