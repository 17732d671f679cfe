// GGUF's block formats. `each` calls fn(at, w) for every GROUP weights of one block, decoded to
// float32 in PARTS vectors; `at` is their place in the block. Layouts: gguf.quants.
#pragma once

#include "simd.h"

namespace {

enum Type {  // the numbers of GGUF
  F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
  Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30,
};

// w = scale * q + offset for q in 0..15, as vectors look it up or work it out.
struct Nibbles {
#if defined(__AVX512F__)
  F table;
  INLINE Nibbles of(float scale, float offset) {
    const F q = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return {q * all(scale) + all(offset)};
  }
  // The lookup reads only the lowest four bits.
  __attribute__((always_inline)) F low(I bytes) const {
    return (F)_mm512_permutexvar_ps((__m512i)bytes, (__m512)table);
  }
  __attribute__((always_inline)) F high(I bytes) const { return low(bytes >> 4); }
#else
  F scale, offset;
  INLINE Nibbles of(float scale, float offset) { return {all(scale), all(offset)}; }
  __attribute__((always_inline)) F low(I bytes) const { return floats(bytes & 15) * scale + offset; }
  __attribute__((always_inline)) F high(I bytes) const { return floats(bytes >> 4) * scale + offset; }
#endif
};

// `w`, and `more` added where bit i of `bits` is set.
INLINE F with_bits(F w, uint32_t bits, F more) {
#if defined(__AVX512F__)
  return (F)_mm512_mask_add_ps((__m512)w, (__mmask16)bits, (__m512)w, (__m512)more);
#else
  I place;
  for (int i = 0; i < W; i++) place[i] = 1 << i;
  I is_set = ((I{} + (int32_t)bits) & place) != 0;
  return is_set ? w + more : w;
#endif
}

// 16 bytes whose low halves are weights 0..15 and whose high halves are weights 16..31.
INLINE void decode_nibbles(const uint8_t* p, Nibbles n, F* w) {
#pragma GCC unroll 8
  for (int i = 0; i < PARTS / 2; i++) {
    I bytes = widened(p + i * W);
    w[i] = n.low(bytes);
    w[i + PARTS / 2] = n.high(bytes);
  }
}

INLINE void add_fifth_bits(uint32_t bits, float more, F* w) {
#pragma GCC unroll 8
  for (int i = 0; i < PARTS; i++) w[i] = with_bits(w[i], bits >> (i * W), all(more));
}

struct BlockQ4_0 {
  static constexpr int count = 32, bytes = 18;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    float d = half(b);
    decode_nibbles(b + 2, Nibbles::of(d, -8 * d), w);
    fn(0, w);
  }
};

struct BlockQ4_1 {
  static constexpr int count = 32, bytes = 20;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    decode_nibbles(b + 4, Nibbles::of(half(b), half(b + 2)), w);
    fn(0, w);
  }
};

struct BlockQ5_0 {
  static constexpr int count = 32, bytes = 22;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    float d = half(b);
    decode_nibbles(b + 6, Nibbles::of(d, -16 * d), w);
    add_fifth_bits(read<uint32_t>(b + 2), 16 * d, w);
    fn(0, w);
  }
};

struct BlockQ5_1 {
  static constexpr int count = 32, bytes = 24;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    float d = half(b);
    decode_nibbles(b + 8, Nibbles::of(d, half(b + 2)), w);
    add_fifth_bits(read<uint32_t>(b + 4), 16 * d, w);
    fn(0, w);
  }
};

struct BlockQ8_0 {
  static constexpr int count = 32, bytes = 34;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS], d = all(half(b));
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; i++) w[i] = floats(widened((const int8_t*)b + 2 + i * W)) * d;
    fn(0, w);
  }
};

// The 6-bit scales and minima of Q4_K and Q5_K, times those of the block.
struct Scales {
  float scale[8], offset[8];
  INLINE Scales of(const uint8_t* b) {
    Scales s;
    float d = half(b), least = half(b + 2);
    const uint8_t* p = b + 4;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
      s.scale[i] = d * (p[i] & 63);
      s.offset[i] = -least * (p[i + 4] & 63);
      s.scale[i + 4] = d * ((p[i + 8] & 15) | ((p[i] >> 6) << 4));
      s.offset[i + 4] = -least * ((p[i + 8] >> 4) | ((p[i + 4] >> 6) << 4));
    }
    return s;
  }
};

struct BlockQ4_K {
  static constexpr int count = 256, bytes = 144;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    const Scales s = Scales::of(b);
    for (int pair = 0; pair < 4; pair++) {  // 32 bytes hold 32 weights low and 32 high
      const uint8_t* p = b + 16 + 32 * pair;
      const Nibbles a = Nibbles::of(s.scale[2 * pair], s.offset[2 * pair]);
      const Nibbles c = Nibbles::of(s.scale[2 * pair + 1], s.offset[2 * pair + 1]);
      F low[PARTS], high[PARTS];
#pragma GCC unroll 8
      for (int i = 0; i < PARTS; i++) {
        I v = widened(p + i * W);
        low[i] = a.low(v);
        high[i] = c.high(v);
      }
      fn(64 * pair, low);
      fn(64 * pair + 32, high);
    }
  }
};

struct BlockQ5_K {
  static constexpr int count = 256, bytes = 176;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    const Scales s = Scales::of(b);
    for (int pair = 0; pair < 4; pair++) {
      const uint8_t* p = b + 48 + 32 * pair;
      const F a = all(s.scale[2 * pair]), c = all(s.scale[2 * pair + 1]);
      const F m = all(s.offset[2 * pair]), n = all(s.offset[2 * pair + 1]);
      F low[PARTS], high[PARTS];
#pragma GCC unroll 8
      for (int i = 0; i < PARTS; i++) {
        I v = widened(p + i * W), bits = widened(b + 16 + i * W) >> (2 * pair);
        low[i] = floats((v & 15) | ((bits & 1) << 4)) * a + m;
        high[i] = floats((v >> 4) | ((bits & 2) << 3)) * c + n;
      }
      fn(64 * pair, low);
      fn(64 * pair + 32, high);
    }
  }
};

struct BlockQ6_K {
  static constexpr int count = 256, bytes = 210;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    const float d = half(b + 208);
    for (int side = 0; side < 2; side++) {
      const uint8_t *p = b + 64 * side, *bits = b + 128 + 32 * side;
      const int8_t* s = (const int8_t*)b + 192 + 8 * side;
      F w[4][PARTS];
#pragma GCC unroll 8
      for (int i = 0; i < PARTS; i++) {
        const I a = widened(p + i * W), c = widened(p + 32 + i * W), h = widened(bits + i * W);
        const int at = i * W / 16;  // a scale is of 16 weights
        w[0][i] = floats(((a & 15) | ((h & 3) << 4)) - 32) * all(d * s[at]);
        w[1][i] = floats(((c & 15) | ((h & 12) << 2)) - 32) * all(d * s[at + 2]);
        w[2][i] = floats(((a >> 4) | (h & 48)) - 32) * all(d * s[at + 4]);
        w[3][i] = floats(((c >> 4) | ((h >> 2) & 48)) - 32) * all(d * s[at + 6]);
      }
#pragma GCC unroll 4
      for (int part = 0; part < 4; part++) fn(128 * side + 32 * part, w[part]);
    }
  }
};

// Formats without blocks: GROUP values are taken for one, and rows may end inside it.
struct BlockF32 {
  static constexpr int count = GROUP, bytes = 4 * GROUP;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; i++) w[i] = load((const float*)b + i * W);
    fn(0, w);
  }
};

struct BlockF16 {
  static constexpr int count = GROUP, bytes = 2 * GROUP;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; i++) w[i] = halves((const uint16_t*)b + i * W);
    fn(0, w);
  }
};

struct BlockBF16 {
  static constexpr int count = GROUP, bytes = 2 * GROUP;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
#pragma GCC unroll 8
    for (int i = 0; i < PARTS; i++) {
      I v = widened((const uint16_t*)b + i * W) << 16;
      std::memcpy(&w[i], &v, sizeof v);
    }
    fn(0, w);
  }
};

// every weight of `count` from the start of a block on, as fn(at, w); the last block may be cut,
// and is then handed out with zeros behind its end
template <class B, class Fn>
INLINE void each_group(const uint8_t* row, int count, Fn fn) {
  int at = 0;
  for (; at + B::count <= count; at += B::count, row += B::bytes)
    B::each(row, [&](int in_block, const F* w) __attribute__((always_inline)) { fn(at + in_block, w); });
  if (B::count == GROUP && at < count) {
    uint8_t last[B::bytes] = {};
    std::memcpy(last, row, (size_t)(count - at) * B::bytes / GROUP);
    B::each(last, [&](int, const F* w) __attribute__((always_inline)) { fn(at, w); });
  }
}

}  // namespace
