// The gated delta rule, row by row, over a matrix a value head (kernels/delta.py): each line of a
// matrix is read and written once a row. Lines and rows are taken in parts that stay in the cache.
#pragma once

#include "simd.h"

namespace {

struct Delta {
  const float *q, *k, *v;       // [rows, key_heads, key_size], the same, [rows, value_heads, value_size]
  const float *kept, *rates;    // [rows, value_heads]: e^g and beta
  float* state;                 // [value_heads, value_size, key_size]
  float* out;                   // [rows, value_heads, value_size]
  int64_t q_stride, k_stride, v_stride;  // from row to row
  int32_t rows, key_heads, value_heads, key_size, value_size, tiled;
};

constexpr int LINES = 4;  // of a matrix at a time
constexpr int LINES_OF_CHUNK = 32;
constexpr int ROWS_OF_PART = 16;

// N lines of one head, from `line` on, through some rows.
template <int N>
void delta_lines(const Delta& d, int head, int line, int from, int to) {
  const int key_head = d.tiled ? head % d.key_heads : head / (d.value_heads / d.key_heads);
  const int size = d.key_size, whole = size / W * W;
  float* const s = d.state + ((int64_t)head * d.value_size + line) * size;
  for (int64_t t = from; t < to; t++) {
    const float* q = d.q + t * d.q_stride + (int64_t)key_head * size;
    const float* k = d.k + t * d.k_stride + (int64_t)key_head * size;
    const float* v = d.v + t * d.v_stride + (int64_t)head * d.value_size + line;
    const float kept = d.kept[t * d.value_heads + head], rate = d.rates[t * d.value_heads + head];
    F found[N] = {}, mixed[N] = {};
    float change[N], out[N];
    for (int i = 0; i < whole; i += W)
      for (int n = 0; n < N; n++) found[n] += load(s + n * size + i) * load(k + i);
    for (int n = 0; n < N; n++) {
      float total = sum(found[n]);
      for (int i = whole; i < size; i++) total += s[n * size + i] * k[i];
      change[n] = rate * (v[n] - kept * total);
    }
    for (int i = 0; i < whole; i += W)
      for (int n = 0; n < N; n++) {
        const F line_part = load(s + n * size + i) * all(kept) + load(k + i) * all(change[n]);
        store(s + n * size + i, line_part);
        mixed[n] += line_part * load(q + i);
      }
    for (int n = 0; n < N; n++) {
      out[n] = sum(mixed[n]);
      for (int i = whole; i < size; i++) {
        float& value = s[n * size + i];
        value = value * kept + k[i] * change[n];
        out[n] += value * q[i];
      }
      d.out[(t * d.value_heads + head) * d.value_size + line + n] = out[n];
    }
  }
}

int delta_chunks(const Delta& d) {
  return d.value_heads * ((d.value_size + LINES_OF_CHUNK - 1) / LINES_OF_CHUNK);
}

void delta_chunk(const Delta& d, int chunk) {
  const int head = chunk % d.value_heads, first = chunk / d.value_heads * LINES_OF_CHUNK;
  const int end = first + LINES_OF_CHUNK < d.value_size ? first + LINES_OF_CHUNK : d.value_size;
  for (int from = 0; from < d.rows; from += ROWS_OF_PART) {
    const int to = from + ROWS_OF_PART < d.rows ? from + ROWS_OF_PART : d.rows;
    int line = first;
    for (; line + LINES <= end; line += LINES) delta_lines<LINES>(d, head, line, from, to);
    for (; line < end; line++) delta_lines<1>(d, head, line, from, to);
  }
}

}  // namespace
