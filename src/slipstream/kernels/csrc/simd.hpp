// Sixteen float lanes, the same arithmetic whatever the registers: results do not depend on the
// instruction set, because every operation is a correctly rounded one on each lane.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

// Entry points carry the name of the build that they are compiled in: multiply_avx512.
#define SL_JOIN_(a, b) a##_##b
#define SL_JOIN(a, b) SL_JOIN_(a, b)
#define SL_NAME(name) SL_JOIN(name, SL_VARIANT)

namespace slipstream {
namespace {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

#define SL_INLINE inline __attribute__((always_inline))

SL_INLINE f32x16 splat(float a) { return f32x16{} + a; }
SL_INLINE u32x16 bits_of(f32x16 a) { return reinterpret_cast<u32x16>(a); }
SL_INLINE f32x16 of_bits(u32x16 a) { return reinterpret_cast<f32x16>(a); }

SL_INLINE f32x16 load(const float* p) {
    f32x16 v;
    memcpy(&v, p, 64);
    return v;
}
SL_INLINE void store(float* p, f32x16 v) { memcpy(p, &v, 64); }

SL_INLINE f32x16 load(const uint16_t* p) {
    u16x16 h;
    memcpy(&h, p, 32);
    return of_bits(__builtin_convertvector(h, u32x16) << 16);
}

SL_INLINE f32x16 load(const int8_t* p) {
    i8x16 codes;
    memcpy(&codes, p, 16);
    return __builtin_convertvector(__builtin_convertvector(codes, i32x16), f32x16);
}
// Whole numbers of -127 to 127.
SL_INLINE void store(int8_t* p, f32x16 v) {
    const i8x16 codes = __builtin_convertvector(__builtin_convertvector(v, i32x16), i8x16);
    memcpy(p, &codes, 16);
}

// Round to nearest even; a NaN stays one.
SL_INLINE void store(uint16_t* p, f32x16 v) {
    u32x16 u = bits_of(v);
    u32x16 rounded = u + 0x7fff + ((u >> 16) & 1);
#if defined(__AVX512F__)
    const __mmask16 is_nan = _mm512_cmp_ps_mask(__m512(v), __m512(v), _CMP_UNORD_Q);
    const __m512i words =
        _mm512_mask_or_epi32(__m512i(rounded), is_nan, __m512i(u), _mm512_set1_epi32(0x00400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
#else
    u32x16 nan = (u & 0x7fffffff) > 0x7f800000 ? (u32x16{} + 0xffffffffu) : u32x16{};
    rounded = (rounded & ~nan) | ((u | 0x00400000) & nan);
    u16x16 h = __builtin_convertvector(rounded >> 16, u16x16);
    memcpy(p, &h, 32);
#endif
}

SL_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
#if defined(__AVX512F__)
    return f32x16(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
    union Halves {
        f32x16 whole;
        __m256 part[2];
    } x{a}, y{b}, z{c}, r;
    r.part[0] = _mm256_fmadd_ps(x.part[0], y.part[0], z.part[0]);
    r.part[1] = _mm256_fmadd_ps(x.part[1], y.part[1], z.part[1]);
    return r.whole;
#else
    f32x16 r;
    for (int i = 0; i < 16; i++) r[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return r;
#endif
}

// The second one where one is NaN.
SL_INLINE f32x16 max(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return f32x16(_mm512_max_ps(__m512(a), __m512(b)));
#else
    return a > b ? a : b;
#endif
}
SL_INLINE f32x16 min(f32x16 a, f32x16 b) {
#if defined(__AVX512F__)
    return f32x16(_mm512_min_ps(__m512(a), __m512(b)));
#else
    return a < b ? a : b;
#endif
}

template <int... I>
SL_INLINE f32x16 permute(f32x16 a) {
    return __builtin_shufflevector(a, a, I...);
}

// Bit i is set where lane i of a comparison holds.
SL_INLINE uint32_t mask_of(i32x16 a) {
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask(__m512i(a));
#else
    uint32_t mask = 0;
    for (int i = 0; i < 16; i++) mask |= uint32_t(a[i] & 1) << i;
    return mask;
#endif
}

// Sum of the lanes: halves, quarters, pairs.
SL_INLINE float sum(f32x16 a) {
    a = a + permute<8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7>(a);
    a = a + permute<4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11>(a);
    a = a + permute<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(a);
    return a[0] + a[1];
}

SL_INLINE float max(f32x16 a) {
    a = max(a, permute<8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7>(a));
    a = max(a, permute<4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11>(a));
    a = max(a, permute<2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13>(a));
    return a[0] > a[1] ? a[0] : a[1];
}

// exp, relative error below 2e-7; exactly 0 below -87, and of -inf. NaN stays NaN.
SL_INLINE f32x16 exp(f32x16 x) {
    const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const f32x16 clamped = min(splat(88.0f), max(splat(-87.0f), x));
    f32x16 shifted = fma(clamped, splat(1.44269504f), magic);
    f32x16 n = shifted - magic;
    f32x16 r = fma(n, splat(-0.693359375f), clamped);
    r = fma(n, splat(2.12194440e-4f), r);
    f32x16 p = splat(1.9875691500e-4f);
    p = fma(p, r, splat(1.3981999507e-3f));
    p = fma(p, r, splat(8.3334519073e-3f));
    p = fma(p, r, splat(4.1665795894e-2f));
    p = fma(p, r, splat(1.6666665459e-1f));
    p = fma(p, r, splat(5.0000001201e-1f));
    p = fma(p, r * r, r) + 1.0f;
    f32x16 scaled = of_bits(bits_of(p) + (bits_of(shifted) << 23));
    return x < -87.0f ? splat(0.0f) : scaled;
}

// While it lives, this thread takes and gives zeros for subnormal numbers, as AMX does.
#if defined(__SSE__)
struct FlushSubnormals {
    unsigned saved = _mm_getcsr();
    FlushSubnormals() { _mm_setcsr(saved | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(saved); }
};
#else
struct FlushSubnormals {
    FlushSubnormals() {}
};
#endif

}  // namespace
}  // namespace slipstream
