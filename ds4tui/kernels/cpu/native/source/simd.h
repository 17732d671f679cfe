// Vectors of W floats. Arithmetic is that of the compilers' vector types, so that one text serves
// every instruction set; a * b + c becomes a fused multiply-add (-ffp-contract=fast). Written out
// per set is only what those types cannot say well: widening bytes and halves, and shuffles.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr int TILE = 12;  // rows of x that a micro-kernel holds: 2 * TILE accumulators
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int TILE = 6;
#elif defined(__aarch64__)
constexpr int W = 4;
constexpr int TILE = 12;
#else
#error "There are kernels for AVX-512, AVX2 and NEON."
#endif

constexpr int PANEL = 2 * W;      // rows of a matrix that a micro-kernel holds
constexpr int GROUP = 32;         // weights that are decoded at a time
constexpr int PARTS = GROUP / W;  // in so many vectors

typedef float F __attribute__((vector_size(W * 4)));
typedef int32_t I __attribute__((vector_size(W * 4)));
typedef float UnalignedF __attribute__((vector_size(W * 4), aligned(4), may_alias));

INLINE F load(const float* p) { return *reinterpret_cast<const UnalignedF*>(p); }
INLINE void store(float* p, F v) { *reinterpret_cast<UnalignedF*>(p) = v; }
INLINE F all(float x) { return F{} + x; }
INLINE F floats(I v) { return __builtin_convertvector(v, F); }
INLINE F larger(F a, F b) { return a > b ? a : b; }

INLINE float sum(F v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
#else
  return vaddvq_f32((float32x4_t)v);
#endif
}

INLINE float largest(F v) {
  float m = v[0];
  for (int i = 1; i < W; i++) m = v[i] > m ? v[i] : m;
  return m;
}

template <class T>
INLINE T read(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

#if defined(__AVX512F__)
INLINE I widened(const uint8_t* p) {
  return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
}
INLINE I widened(const int8_t* p) {
  return (I)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
}
INLINE I widened(const uint16_t* p) {
  return (I)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
}
INLINE F halves(const uint16_t* p) {
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
INLINE float half(const uint8_t* p) { return _cvtsh_ss(read<uint16_t>(p)); }
#elif defined(__AVX2__)
INLINE I widened(const uint8_t* p) {
  return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
INLINE I widened(const int8_t* p) {
  return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
}
INLINE I widened(const uint16_t* p) {
  return (I)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
}
INLINE F halves(const uint16_t* p) {
  return (F)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
INLINE float half(const uint8_t* p) { return _cvtsh_ss(read<uint16_t>(p)); }
#else
INLINE I widened(const uint8_t* p) {
  uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(read<uint32_t>(p)));
  return (I)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}
INLINE I widened(const int8_t* p) {
  int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(read<uint32_t>(p)));
  return (I)vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
INLINE I widened(const uint16_t* p) { return (I)vmovl_u16(vld1_u16(p)); }
INLINE F halves(const uint16_t* p) {
  return (F)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
INLINE float half(const uint8_t* p) { return (float)read<__fp16>(p); }
#endif

// -- transposing W x W values ---------------------------------------------------------------

#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif

#if defined(__AVX512F__)
INLINE F zip_low(F a, F b) {
  return SHUFFLED(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
INLINE F zip_high(F a, F b) {
  return SHUFFLED(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
#elif defined(__AVX2__)
INLINE F zip_low(F a, F b) { return SHUFFLED(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
INLINE F zip_high(F a, F b) { return SHUFFLED(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
#else
INLINE F zip_low(F a, F b) { return SHUFFLED(a, b, 0, 4, 1, 5); }
INLINE F zip_high(F a, F b) { return SHUFFLED(a, b, 2, 6, 3, 7); }
#endif

// A perfect shuffle of rows i and i + W/2, log2(W) times.
INLINE void transpose(F (&r)[W]) {
  for (int stage = 1; stage < W; stage *= 2) {
    F t[W];
#pragma GCC unroll 8
    for (int i = 0; i < W / 2; i++) {
      t[2 * i] = zip_low(r[i], r[i + W / 2]);
      t[2 * i + 1] = zip_high(r[i], r[i + W / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) r[i] = t[i];
  }
}

// -- functions ------------------------------------------------------------------------------

// e^x = 2^n e^r with |r| <= ln(2)/2 and e^r by its series up to r^7 (relative error 6e-9).
INLINE F exponential(F x) {
  x = x < all(-87.0f) ? all(-87.0f) : x;
  x = x > all(88.0f) ? all(88.0f) : x;
  const F magic = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to whole numbers
  F n = (x * 1.44269504f + magic) - magic;
  F r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;  // ln 2 in two parts, the first with trailing zeros
  F p = all(1.0f / 5040);
  p = p * r + all(1.0f / 720);
  p = p * r + all(1.0f / 120);
  p = p * r + all(1.0f / 24);
  p = p * r + all(1.0f / 6);
  p = p * r + all(0.5f);
  p = p * r + all(1.0f);
  p = p * r + all(1.0f);
  I power = (__builtin_convertvector(n, I) + 127) << 23;
  F scale;
  std::memcpy(&scale, &power, sizeof scale);
  return p * scale;
}

INLINE F silu(F x) { return x / (all(1.0f) + exponential(-x)); }

// x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3) is x / (1 + e^(-2u)).
INLINE F gelu(F x) {
  F u = (x + x * x * x * 0.044715f) * 1.59576912f;
  return x / (all(1.0f) + exponential(-u));
}

}  // namespace
