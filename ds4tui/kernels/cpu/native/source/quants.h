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
  INLINE F numbers() { return F{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
  INLINE Nibbles of(F scale, F offset) { return {numbers() * scale + offset}; }
  INLINE Nibbles around(F scale, float centre) { return {(numbers() - centre) * scale}; }
  // The lookup reads only the lowest four bits.
  __attribute__((always_inline)) F low(I bytes) const {
    return (F)_mm512_permutexvar_ps((__m512i)bytes, (__m512)table);
  }
  __attribute__((always_inline)) F high(I bytes) const { return low(bytes >> 4); }
#else
  F scale, offset;
  INLINE Nibbles of(F scale, F offset) { return {scale, offset}; }
  INLINE Nibbles around(F scale, float centre) { return {scale, scale * -centre}; }
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

INLINE void add_fifth_bits(uint32_t bits, F more, F* w) {
#pragma GCC unroll 8
  for (int i = 0; i < PARTS; i++) w[i] = with_bits(w[i], bits >> (i * W), more);
}

// `w`, and `more` added where the bit of `mask` is set in a lane of `bits`.
INLINE F with_lanes(F w, I bits, int32_t mask, F more) {
#if defined(__AVX512F__)
  const __mmask16 is_set = _mm512_test_epi32_mask((__m512i)bits, _mm512_set1_epi32(mask));
  return (F)_mm512_mask_add_ps((__m512)w, is_set, (__m512)w, (__m512)more);
#else
  return (bits & mask) != 0 ? w + more : w;
#endif
}

struct BlockQ4_0 {
  static constexpr int count = 32, bytes = 18;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    decode_nibbles(b + 2, Nibbles::around(all(half(b)), 8), w);
    fn(0, w);
  }
};

struct BlockQ4_1 {
  static constexpr int count = 32, bytes = 20;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    decode_nibbles(b + 4, Nibbles::of(all(half(b)), all(half(b + 2))), w);
    fn(0, w);
  }
};

struct BlockQ5_0 {
  static constexpr int count = 32, bytes = 22;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    const F d = all(half(b));
    decode_nibbles(b + 6, Nibbles::around(d, 16), w);
    add_fifth_bits(read<uint32_t>(b + 2), d * 16, w);
    fn(0, w);
  }
};

struct BlockQ5_1 {
  static constexpr int count = 32, bytes = 24;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    F w[PARTS];
    const F d = all(half(b));
    decode_nibbles(b + 8, Nibbles::of(d, all(half(b + 2))), w);
    add_fifth_bits(read<uint32_t>(b + 4), d * 16, w);
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

// The 6-bit scales and minima of Q4_K and Q5_K, times those of the block, for 8 groups.
struct Scales {
#if defined(__AVX512F__)
  F scales, offsets;  // of group i: lane i, and lane i + 8
  __attribute__((always_inline)) F scale(int i) const { return lane(scales, i); }
  __attribute__((always_inline)) F offset(int i) const { return lane(offsets, i + 8); }
  INLINE F lane(F v, int i) { return (F)_mm512_permutexvar_ps(_mm512_set1_epi32(i), (__m512)v); }
#else
  float scales[8], offsets[8];  // in memory: a load fills all lanes, a move between registers costs more
  __attribute__((always_inline)) F scale(int i) const { return all(scales[i]); }
  __attribute__((always_inline)) F offset(int i) const { return all(offsets[i]); }
#endif
  __attribute__((always_inline)) Nibbles of(int i) const { return Nibbles::of(scale(i), offset(i)); }
  INLINE void read_from(const uint8_t* b, Scales& s) {
    const F d = all(half(b)), least = all(-half(b + 2));
    const uint32_t low = read<uint32_t>(b + 4), more = read<uint32_t>(b + 8), high = read<uint32_t>(b + 12);
    const uint32_t bytes[] = {low & 0x3f3f3f3f, (high & 0x0f0f0f0f) | ((low >> 2) & 0x30303030),
                              more & 0x3f3f3f3f, ((high >> 4) & 0x0f0f0f0f) | ((more >> 2) & 0x30303030)};
    const uint8_t* p = (const uint8_t*)bytes;
#if defined(__AVX512F__)
    s.scales = floats(widened(p)) * d;
    s.offsets = floats(widened(p)) * least;
#else
    for (int i = 0; i < 8; i += W) {
      store(s.scales + i, floats(widened(p + i)) * d);
      store(s.offsets + i, floats(widened(p + 8 + i)) * least);
    }
#endif
  }
};

struct BlockQ4_K {
  static constexpr int count = 256, bytes = 144;
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    Scales s;
    Scales::read_from(b, s);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {  // 32 bytes hold 32 weights low and 32 high
      const uint8_t* p = b + 16 + 32 * pair;
      const Nibbles a = s.of(2 * pair);
      const Nibbles c = s.of(2 * pair + 1);
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
    Scales s;
    Scales::read_from(b, s);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
      const uint8_t* p = b + 48 + 32 * pair;
      const Nibbles a = s.of(2 * pair), c = s.of(2 * pair + 1);
      const F more = s.scale(2 * pair) * 16, most = s.scale(2 * pair + 1) * 16;
      F low[PARTS], high[PARTS];
#pragma GCC unroll 8
      for (int i = 0; i < PARTS; i++) {
        I v = widened(p + i * W), bits = widened(b + 16 + i * W);
        low[i] = with_lanes(a.low(v), bits, 1 << (2 * pair), more);
        high[i] = with_lanes(c.high(v), bits, 2 << (2 * pair), most);
      }
      fn(64 * pair, low);
      fn(64 * pair + 32, high);
    }
  }
};

struct BlockQ6_K {
  static constexpr int count = 256, bytes = 210;
  INLINE F six(I q, float scale) { return floats(q - 32) * all(scale); }
  template <class Fn>
  INLINE void each(const uint8_t* b, Fn fn) {
    const F d = all(half(b + 208));
    float scales[16];  // of 16 weights each; in memory as those of Q4_K
    for (int i = 0; i < 16; i += W) store(scales + i, floats(widened((const int8_t*)b + 192 + i)) * d);
    for (int side = 0; side < 2; side++) {
      const uint8_t *p = b + 64 * side, *bits = b + 128 + 32 * side;
      const float* s = scales + 8 * side;
      F w[4][PARTS];
#pragma GCC unroll 8
      for (int i = 0; i < PARTS; i++) {
        const I a = widened(p + i * W), c = widened(p + 32 + i * W), h = widened(bits + i * W);
        const int at = i * W / 16;
        w[0][i] = six((a & 15) | ((h << 4) & 48), s[at]);
        w[1][i] = six((c & 15) | ((h << 2) & 48), s[at + 2]);
        w[2][i] = six((a >> 4) | (h & 48), s[at + 4]);
        w[3][i] = six((c >> 4) | ((h >> 2) & 48), s[at + 6]);
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
